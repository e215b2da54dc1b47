"""Random conversations with real files of images, videos and sound."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clips import write_clip
from PIL import Image
from sounds import write_sound

KINDS = ("text", "image", "video", "audio")
NUM_RECORDS = 60
"""With images or none; as many with videos, and with sound."""
NUM_MIXED = 16
"""With media of several kinds in one record."""
SIZES = [(13, 17), (28, 28), (57, 99), (64, 48), (224, 224), (300, 30), (40, 260), (333, 97)]
SIZES += [(448, 448), (640, 360)]
SLIVERS = [(1, 1), (120, 3), (3, 120), (1, 40)]
"""Width and height of images that a processor may stumble over; few records have them."""
CLIPS = [(3, (96, 64), "10"), (8, (50, 38), "2"), (13, (120, 90), "30000/1001")]
CLIPS += [
    (17, (64, 144), "15/2"),
    (30, (36, 34), "25"),
    (45, (160, 120), "24"),
    (61, (66, 50), "50"),
]
CLIPS += [(1, (80, 80), "25"), (90, (34, 60), "12")]
"""Frames, (width, height), and frames per second."""
SOUNDS = [("wav", 16001, 16000, 1), ("wav", 3333, 8000, 2), ("flac", 44100, 44100, 2)]
SOUNDS += [("flac", 70001, 22050, 1), ("wav", 123457, 48000, 1), ("flac", 5000, 24000, 1)]
SOUNDS += [("wav", 250, 16000, 1), ("ogg", 99999, 48000, 2), ("mp3", 33333, 11025, 1)]
SOUNDS += [("wav", 512345, 16000, 1)]
"""Ending, samples, rate, channels."""
CODECS = {"wav": "pcm_s16le", "flac": "flac", "ogg": "libopus", "mp3": "libmp3lame"}
TEXTS = [
    "What is this?",
    "\nWhere?\n\n",
    " and this ",
    "漢字 한글",
    "naïve é 🙂",
    "1\n2",
    "Yes.",
    "\n",
]


def conversations(
    seed: int, folder: Path, num_records: int = NUM_RECORDS, num_mixed: int = NUM_MIXED
) -> list[dict[str, Any]]:
    """Records without media, with media of one kind and of several; some with a system turn."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    clips, sounds = write_clips(folder), write_sounds(folder)
    makers: dict[str, Callable[[], dict[str, str]]] = {
        "image": lambda: image(rng, folder),
        "video": lambda: {"type": "video", "video": str(rng.choice(clips))},
        "audio": lambda: {"type": "audio", "audio": str(rng.choice(sounds))},
    }
    numbers = [(0, 1, 0, 1, rng.randrange(2, 4))[number % 5] for number in range(num_records)]
    records = [record(rng, [makers["image"]] * number) for number in numbers]
    for kind in ("video", "audio"):
        numbers = [1 + (number % 4 == 0) for number in range(num_records)]
        records += [record(rng, [makers[kind]] * number) for number in numbers]
    pairs = [("image", "video"), ("image", "audio"), ("video", "audio"), tuple(makers)]
    return records + [
        record(
            rng, [makers[kind] for kind in rng.sample(pairs[number % 4], len(pairs[number % 4]))]
        )
        for number in range(num_mixed)
    ]


def record(rng: random.Random, media: Sequence[Callable[[], dict[str, str]]]) -> dict[str, Any]:
    """A conversation with these media somewhere in it, in this order."""
    messages = [] if rng.random() < 0.7 else [turn("system", [text(rng)])]
    rounds = rng.randrange(1, 4)
    where = sorted(rng.randrange(rounds) for _ in media)
    left = iter(media)
    for this in range(rounds):
        parts = [text(rng)]
        for at in sorted(rng.randrange(2) for _ in range(where.count(this))):
            parts.insert(len(parts) - 1 + at, next(left)())
        messages += [turn("user", parts), turn("assistant", [text(rng)])]
    return {"messages": messages}


def write_clips(folder: Path) -> list[Path]:
    """Videos of odd sizes, lengths and rates."""
    clips = []
    for number, (frames, size, fps) in enumerate(CLIPS):
        path = folder / f"{number}.mp4"
        clips.append(
            path if path.is_file() else write_clip(path, frames=frames, size=size, fps=fps)
        )
    return clips


def write_sounds(folder: Path) -> list[Path]:
    """Files of sound of odd lengths and rates, in one channel or two."""
    sounds = []
    for number, (ending, samples, rate, channels) in enumerate(SOUNDS):
        path = folder / f"{number}.{ending}"
        if not path.is_file():
            codec = CODECS[ending]
            write_sound(path, samples=samples, rate=rate, channels=channels, codec=codec)
        sounds.append(path)
    return sounds


def turn(role: str, parts: list[dict[str, str]]) -> dict[str, Any]:
    return {"role": role, "content": parts}


def text(rng: random.Random) -> dict[str, str]:
    return {"type": "text", "text": "".join(rng.choices(TEXTS, k=rng.randrange(1, 4)))}


def image(rng: random.Random, folder: Path) -> dict[str, str]:
    """An image in a file below `folder`."""
    sizes = SLIVERS if rng.random() < 0.06 else SIZES
    width, height = rng.choice([*sizes, (rng.randrange(8, 400), rng.randrange(8, 400))])
    path = folder / f"{width}x{height}.png"
    if not path.is_file():
        Image.new("RGB", (width, height), (90, 120, 30)).save(path)
    return {"type": "image", "image": str(path)}


def kinds_of(record: Mapping[str, Any]) -> str:
    """``image``, ``image+video``: the kinds of a record's media; ``text`` where it has none."""
    kinds = {part["type"] for said in record["messages"] for part in said["content"]}
    return "+".join(kind for kind in ("image", "video", "audio") if kind in kinds) or "text"
