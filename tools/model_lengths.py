"""Two lengths of the same random conversations: packidx's, and the real processor's."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import pyarrow.parquet as pq
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from clips import write_clip, write_sound
from every_processor import NOT_BUILT, build, processor_classes
from every_processor.real import real_length
from PIL import Image

from packidx import estimate_lengths
from packidx.encode.loading import load_processor

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


class Outcome(NamedTuple):
    """Outcome for one class."""

    name: str
    model_types: list[str]
    says: dict[str, str]
    """Kind of medium, ``text`` for none → the method of records with that kind alone, or the reason
    of their rejection."""
    num_built: int
    """Records that the processor itself builds."""
    num_compared: int
    """Records that packidx counts as well."""
    num_different: int
    """Compared records whose lengths differ."""
    num_exact_different: int
    """Different records that packidx calls exact."""
    first: str
    """The first that differs."""


def estimated(data: Path, processor: Path, lengths: Path) -> tuple[list[dict[str, Any]], str]:
    """A row of packidx's lengths table for each record, and the first difference that it saw."""
    summary = estimate_lengths(str(data), lengths, processor=processor, workers=1)
    rows = [
        row for part in lengths.glob("part-*.parquet") for row in pq.read_table(part).to_pylist()
    ]
    return sorted(rows, key=lambda row: row["row"]), (summary.compared or {}).get("detail", "")


def outcome_of(
    name: str, model_types: list[str], records: Sequence[dict[str, Any]], tmp: Path
) -> Outcome:
    """Build a class's processor below `tmp`, and compare the two lengths of each record."""
    processor, folder = build(name, model_types, tmp / "processors")
    rows, first = estimated(tmp / "data.jsonl", folder, tmp / "lengths" / name)
    files = load_processor(folder)
    real = [real_length(processor, files, record) for record in records]
    pairs = [
        (row, length)
        for row, length in zip(rows, real, strict=True)
        if length is not None and row["reason"] is None
    ]
    different = [(row, length) for row, length in pairs if row["length"] != length]
    if different and not first:
        row, length = different[0]
        first = f"a sample has {row['length']} tokens, the processor's {length}"
    kinds = [kinds_of(record) for record in records]
    return Outcome(
        name=name,
        model_types=model_types,
        says={
            kind: verdict([row for row, own in zip(rows, kinds, strict=True) if own == kind])
            for kind in KINDS
        },
        num_built=sum(length is not None for length in real),
        num_compared=len(pairs),
        num_different=len(different),
        num_exact_different=sum(row["method"] == "exact" for row, _ in different),
        first=first,
    )


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Summarize rows by their method, or by the reason of their rejection."""
    said = Counter(f"refused: {row['reason']}" if row["reason"] else row["method"] for row in rows)
    [(most, _), *others] = said.most_common()
    return most + "".join(f" ({number} {other})" for other, number in others)


def outcomes(
    tmp: Path,
    records: Sequence[dict[str, Any]],
    names: Iterable[str] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of each class that can be built, or of those of these names."""
    (tmp / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    transformers.logging.set_verbosity_error()
    av.logging.set_level(av.logging.PANIC)
    classes = processor_classes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in classes if names is None else names:
            if name not in NOT_BUILT:
                yield outcome_of(name, classes[name], records, tmp)
