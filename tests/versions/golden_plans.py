"""Plans of a lengths table with every kind of column, made and read by whatever pyarrow is here.

python golden_plans.py make FOLDER           # prints the ids, one for each of `RULES`
python golden_plans.py read FOLDER FOLDER…   # prints what the plans in each folder say
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx import open_index, plan_packs
from packidx.format.schema import LENGTHS
from packidx.inspect.verify import verify_index
from packidx.torch import PackSampler

N = 4000
CAPACITY = 1024
RULES: dict[str, dict[str, Any]] = {
    "split-groups-windows": {
        "on_long": "split",
        "group_by": "source",
        "window": 1500,
        "global_batch": 8,
    },
    "dropped-limits-mix": {
        "on_long": "drop",
        "max_images": 6,
        "strategy": "balanced",
        "mix": ("a=0.5", "b=2", "c=1"),
        "holdout": "0.05",
        "align": 8,
    },
    "lp": {"strategy": "lp", "on_long": "truncate"},
    "media-without-any": {},
}


def record(number: int, rng: random.Random) -> dict[str, Any]:
    """A row of the lengths table: text, images or a video; some too long, some bad, some nulls."""
    images = rng.choice((0, 0, 1, 2, 5, 9))
    videos = int(not images and rng.random() < 0.1)
    text = rng.randrange(4, 300) if rng.random() < 0.97 else rng.randrange(1500, 4000)
    place = text // 2
    media = []
    for _ in range(images + videos):
        kind = "video" if videos else "image"
        t, h, w = (4 if videos else 1), 2 * rng.randrange(1, 9), 2 * rng.randrange(1, 9)
        tokens = t * h * w // 4
        at = None if number % 11 == 0 else place
        grid = {"tokens": tokens, "patches": t * h * w, "t": t, "h": h, "w": w}
        media.append({"kind": kind, **grid, "at": at})
        place += tokens
    of_kind = {kind: [m["tokens"] for m in media if m["kind"] == kind] for kind in KINDS}
    patches = [m["patches"] for m in media]
    bad = number % 97 == 5
    return {
        "sample_id": number,
        "source": "abc"[number * 3 // N],
        "key": f"k{number}" if number % 5 else None,
        "shard": number * 6 // N,
        "row": number % 700,
        "offset": number * 100 if number % 2 else None,
        "nbytes": 90 if number % 2 else None,
        "text_tokens": text,
        "image_tokens": sum(of_kind["image"]),
        "video_tokens": sum(of_kind["video"]),
        "audio_tokens": None,
        "length": None if bad else text + sum(m["tokens"] for m in media),
        "label_tokens": text // 3 if number % 7 else None,
        "num_turns": 2,
        "num_images": images,
        "num_videos": videos,
        "vision_patches": sum(patches),
        "vision_cost": sum(n * n for n in patches),
        "media": media if number % 13 else None,
        "method": "exact",
        "status": "bad_media" if bad else "ok",
        "reason": "bad_media" if bad else None,
        "detail": "no such file" if bad else None,
    }


KINDS = ("image", "video")


def lengths_table(*, with_media: bool) -> pa.Table:
    """The rows; without media their lists are empty or null, the column is there."""
    rng = random.Random(0)
    rows = [record(number, rng) for number in range(N)]
    if not with_media:
        for row in rows:
            row |= {"media": None if row["media"] is None else []}
    return pa.Table.from_pylist(rows, LENGTHS)


def make(folder: Path) -> dict[str, str]:
    """Plan by each of `RULES` into `folder`; ids by name of the rules."""
    folder.mkdir(parents=True)
    ids = {}
    for name, rules in RULES.items():
        lengths = folder / f"{name}.parquet"
        pq.write_table(lengths_table(with_media=name != "media-without-any"), lengths)
        ids[name] = plan_packs(lengths, folder / name, capacity=CAPACITY, **rules).snapshot_id
    return ids


def read(folder: Path) -> dict[str, Any]:
    """What the plans in `folder` say: packs looked up, tables, orders of a sampler, checks."""
    said = {}
    for name in RULES:
        index = open_index(folder / name)
        samples = [index.pack(number).samples for number in range(0, index.num_packs, 3)]
        packs = [
            [{key: getattr(one, key) for key in one.__slots__} for one in own] for own in samples
        ]
        tables = [index.packs(), index.samples(), index.dropped()]
        sampler = PackSampler(index, rank=1, world_size=2, global_batch=4, seed=3, epoch=1)
        said[name] = {
            "id": index.id,
            "packs": digest(packs),
            "tables": digest([table.to_pylist() for table in tables]),
            "order": digest(list(sampler)),
            "dropped": index.dropped().num_rows,
            "split": sum(1 for piece in index.samples()["piece"].to_pylist() if piece),
            "media": sum(
                len(media or []) for media in index.samples(["media"])["media"].to_pylist()
            ),
            "failed": [check.name for check in verify_index(index) if not check.ok],
        }
    return said


def digest(value: Any) -> str:
    """Eight hex digits of what JSON makes of `value`."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:8]


if __name__ == "__main__":
    step, *folders = sys.argv[1:]
    found = make(Path(folders[0])) if step == "make" else [read(Path(name)) for name in folders]
    print(json.dumps({"pyarrow": pa.__version__, "found": found}))
