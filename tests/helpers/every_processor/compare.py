"""Two lengths of the same conversations: packidx's, and the real processor's."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import pyarrow.parquet as pq
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers

from every_processor.build import build
from every_processor.classes import processor_classes
from every_processor.conversations import KINDS, kinds_of
from every_processor.needs import NOT_BUILT
from every_processor.real import real_length
from packidx import estimate_lengths
from packidx.encode.loading import load_processor


class Outcome(NamedTuple):
    """What came of one class."""

    name: str
    model_types: list[str]
    says: dict[str, str]
    """What packidx calls its counts of records with media of a kind alone (``text``: with none), or
    why it gives none."""
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
    """What packidx says of these rows: their method, or the reason why they are refused."""
    said = Counter(f"refused: {row['reason']}" if row["reason"] else row["method"] for row in rows)
    [(most, _), *others] = said.most_common()
    return most + "".join(f" ({number} {other})" for other, number in others)


def outcomes(
    tmp: Path,
    records: Sequence[dict[str, Any]],
    names: Iterable[str] | None = None,
) -> Iterator[Outcome]:
    """Classes that can be built, all or those of these names, one by one."""
    (tmp / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    transformers.logging.set_verbosity_error()
    av.logging.set_level(av.logging.PANIC)
    classes = processor_classes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in classes if names is None else names:
            if name not in NOT_BUILT:
                yield outcome_of(name, classes[name], records, tmp)
