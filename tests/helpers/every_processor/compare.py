"""Two lengths of the same conversations: packidx's, and the real processor's."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from PIL import Image

from every_processor.build import build
from every_processor.classes import processor_classes
from every_processor.needs import NOT_BUILT
from packidx import estimate_lengths
from packidx.processor import ProcessorFiles, load_processor
from packidx.records.dialects.parse import parse

NUM_RECORDS = 60
SIZES = [(13, 17), (28, 28), (57, 99), (64, 48), (224, 224), (300, 30), (40, 260), (333, 97)]
SIZES += [(448, 448), (640, 360)]
SLIVERS = [(1, 1), (120, 3), (3, 120), (1, 40)]
"""Width and height of images that a processor may stumble over; few records have them."""
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


class Outcome(NamedTuple):
    """What came of one class."""

    name: str
    model_types: list[str]
    text: str
    """What packidx calls its counts of records without images, or why it gives none."""
    images: str
    """The same of records with images."""
    num_built: int
    """Records that the processor itself builds."""
    num_compared: int
    """Of these, such that packidx counts, too."""
    num_different: int
    """Of these, such whose lengths differ."""
    num_exact_different: int
    """Of these, such that packidx calls exact."""
    first: str
    """The first that differs."""


# -- the conversations -----------------------------------------------------------------------------


def conversations(seed: int, folder: Path) -> list[dict[str, Any]]:
    """Records without an image, with one, with several; some with a system turn."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for number in range(NUM_RECORDS):
        num_images = (0, 1, 0, 1, rng.randrange(2, 4))[number % 5]
        messages = [] if rng.random() < 0.7 else [turn("system", [text(rng)])]
        rounds = rng.randrange(1, 4)
        rounds_of_images = [rng.randrange(rounds) for _ in range(num_images)]
        for this in range(rounds):
            parts = [text(rng)]
            for _ in range(rounds_of_images.count(this)):
                parts.insert(rng.randrange(len(parts) + 1), image(rng, folder))
            messages += [turn("user", parts), turn("assistant", [text(rng)])]
        records.append({"messages": messages})
    return records


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


def has_images(record: Mapping[str, Any]) -> bool:
    return any(part["type"] == "image" for said in record["messages"] for part in said["content"])


# -- two lengths of each ---------------------------------------------------------------------------


def estimated(data: Path, processor: Path, lengths: Path) -> tuple[list[dict[str, Any]], str]:
    """A row of packidx's lengths table for each record, and the first difference that it saw."""
    summary = estimate_lengths(str(data), lengths, processor=processor, workers=1)
    rows = [
        row for part in lengths.glob("part-*.parquet") for row in pq.read_table(part).to_pylist()
    ]
    return sorted(rows, key=lambda row: row["row"]), (summary.compared or {}).get("detail", "")


def real_length(processor: Any, files: ProcessorFiles, record: dict[str, Any]) -> int | None:
    """Tokens that the real processor makes of a record, or None where it builds none.

    It is given text alone as its template reads it: as a string, or as a list.
    """
    talk = parse(record)
    assert files.template is not None
    messages = files.template.messages(talk)
    opened = [Image.open(medium.ref).convert("RGB") for medium in talk.media]
    remaining = iter(opened)
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part["image"] = next(remaining)
    for built in _attempts(processor, messages, opened):
        if built is not None:
            return int(built["input_ids"].shape[-1])
    return None


def _attempts(processor: Any, messages: Any, images: Sequence[Any]) -> Iterator[Any]:
    """What the processor builds by its template, or else called with the images in two forms."""
    options = {"return_tensors": "pt"}
    yield _tried(
        processor.apply_chat_template, messages, tokenize=True, return_dict=True, **options
    )
    written = processor.apply_chat_template(messages, tokenize=False)
    for given in (list(images), [list(images)]) if images else (None,):
        yield _tried(processor, text=written, images=given, **options)


def _tried(call: Any, *given: Any, **options: Any) -> Any:
    try:
        return call(*given, **options)
    except Exception:  # a foreign class: whatever it raises, nothing was built
        return None


def outcome_of(
    name: str, model_types: list[str], records: Sequence[dict[str, Any]], tmp: Path
) -> Outcome:
    """Builds a class's processor below `tmp`, and compares the two lengths of each record."""
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
    of_images = [has_images(record) for record in records]
    return Outcome(
        name=name,
        model_types=model_types,
        text=verdict([row for row, has in zip(rows, of_images, strict=True) if not has]),
        images=verdict([row for row, has in zip(rows, of_images, strict=True) if has]),
        num_built=sum(length is not None for length in real),
        num_compared=len(pairs),
        num_different=len(different),
        num_exact_different=sum(row["method"] == "exact" for row, _ in different),
        first=first,
    )


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """What packidx says of these rows: their method, or the reason why they are refused."""
    said = Counter(f"refused: {row['reason']}" if row["reason"] else row["method"] for row in rows)
    [(most, _), *others] = said.most_common()
    return most + "".join(f" ({number} {other})" for other, number in others)


def outcomes(tmp: Path, seed: int = 1) -> Iterator[Outcome]:
    """All classes that can be built, one by one."""
    records = conversations(seed, tmp / "images")
    (tmp / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model_types in processor_classes().items():
            if name not in NOT_BUILT:
                yield outcome_of(name, model_types, records, tmp)
