"""A seeded mix of text, images and video as a vision-language model is trained on.

40 % text (log-normal, median 300), 45 % one to four images of 64 to 2,500 tokens, 10 % with 5 to 24
small images, 5 % video of 8k to 24k patches; four patches merge into one token. A processor given
several images scales them into its budget, so that no sample has over 24,576 patches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

SOURCES = ("text", "image", "multi_image", "video")
SHARES = (0.40, 0.45, 0.10, 0.05)
MERGE = 4  # patches that become one token
MAX_IMAGES = 32
MAX_VISION_PATCHES = 24_576


def vlm_mix(n: int, capacity: int = 8192, seed: int = 0) -> dict[str, Int64s]:
    """`n` samples in mixed order; each fits alone into `capacity`, 32 images, 24,576 patches.

    Returns:
        int64 [n] each: length, num_images, num_videos, vision_patches, vision_cost (the sum of
        patches² over attention spans: an image, or a frame of a video), label_tokens, source
        (index into `SOURCES`), image_tokens, video_tokens.
    """
    rng = np.random.default_rng(seed)
    source = rng.choice(len(SOURCES), n, p=SHARES)
    # What media may take: at most the cap, and room for some text.
    budget = min(MAX_VISION_PATCHES // MERGE, capacity * 3 // 4)
    text = rng.lognormal(np.log(300), 0.9, n).astype(np.int64)
    text[source != 0] //= 2  # questions and captions are shorter than documents

    num_images = np.zeros(n, np.int64)
    one = source == 1
    num_images[one] = rng.choice([1, 2, 3, 4], int(one.sum()), p=[0.7, 0.15, 0.08, 0.07])
    many = source == 2
    num_images[many] = rng.integers(5, 25, int(many.sum()))
    image_tokens, image_cost = _images(num_images, many, budget, rng)
    is_video = source == 3
    video_tokens, video_cost = _videos(is_video, budget, rng)

    media = image_tokens + video_tokens
    length = np.clip(text + media, np.maximum(16, media + 8), capacity)
    label_tokens = ((length - media) * rng.uniform(0.2, 0.8, n)).astype(np.int64)
    return {
        "length": length,
        "num_images": num_images,
        "num_videos": is_video.astype(np.int64),
        "vision_patches": MERGE * media,
        "vision_cost": image_cost + video_cost,
        "label_tokens": np.maximum(label_tokens, 1),
        "source": source.astype(np.int64),
        "image_tokens": image_tokens,
        "video_tokens": video_tokens,
    }


def _images(
    num_images: Int64s, small: NDArray[np.bool_], budget: int, rng: np.random.Generator
) -> tuple[Int64s, Int64s]:
    """Tokens and attention cost of each sample's images, int64 [n]."""
    owner = np.repeat(np.arange(len(num_images)), num_images)
    largest = np.where(small, 400, 2500)[owner]
    tokens = np.exp(rng.uniform(np.log(64), np.log(largest))).astype(np.int64)
    tokens = np.minimum(tokens, budget // num_images[owner])
    total = np.bincount(owner, tokens, len(num_images)).astype(np.int64)
    cost = np.bincount(owner, (MERGE * tokens) ** 2, len(num_images)).astype(np.int64)
    return total, cost


def _videos(
    is_video: NDArray[np.bool_], budget: int, rng: np.random.Generator
) -> tuple[Int64s, Int64s]:
    """Tokens and attention cost of each sample's video, int64 [n]: equal frames, each a span."""
    most = MERGE * budget
    patches = rng.integers(most // 3, most + 1, len(is_video))
    frames = rng.integers(4, 65, len(is_video))
    per_frame = patches // frames // MERGE  # tokens of one frame
    tokens = np.where(is_video, frames * per_frame, 0)
    return tokens, np.where(is_video, frames * (MERGE * per_frame) ** 2, 0)


def write_mix(path: Path, n: int) -> Path:
    """A lengths table of `n` such samples, of several sources and with keys."""
    columns = vlm_mix(n)
    source = pa.array([f"source-{number}" for number in columns.pop("source")])
    keys = pa.array([f"k{number}" for number in range(n)])
    pq.write_table(pa.table({**columns, "source": source, "key": keys}), path)
    return path
