"""Counts of records as the values of ``_text_tokens`` and ``mm_inputs_meta``.

``_text_tokens`` is all of the sample that is no medium, template included, so that it and the
media's tokens sum to the sample's length. NeMo Automodel (0.7 and later) reads the entries of
``mm_inputs_meta`` in two ways: its packer and its sampler take numbers by position (`LISTS`), what
logs statistics of a data set takes ``n_tokens`` of an object (`OBJECTS`) and knows no other count.
The packer is what plans, so lists are the default; the count stands behind what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import BadRecord, OptionError
from packidx.estimate.counter import ExaminedRecord, RecordCounter
from packidx.estimate.examine import ShardContext, count_rows
from packidx.format.schema import METHODS
from packidx.processor.counts import HEURISTIC, KINDS
from packidx.records.conversation import MediaInfo

LISTS, OBJECTS = "lists", "objects"
FORMS = (LISTS, OBJECTS)
"""Of the entries of ``mm_inputs_meta``."""

TEXT_TOKENS, META = "_text_tokens", "mm_inputs_meta"


@dataclass(frozen=True, slots=True)
class Values:
    """What one record is given."""

    text_tokens: int
    meta: dict[str, list[Any]] | None
    """None where the record has no media."""
    length: int
    """Tokens of the sample."""
    method: str
    """Of `METHODS`."""


def check_form(form: str) -> str:
    """`form`, if it is one.

    Raises:
        OptionError: it is none of `FORMS`.
    """
    if form not in FORMS:
        raise OptionError(f"the form of mm_inputs_meta is {form!r}: choose {' or '.join(FORMS)}")
    return form


def names_of(shard: ShardContext) -> tuple[str, str]:
    """What the shard's layout calls ``_text_tokens`` and ``mm_inputs_meta``."""
    columns = shard.layout.columns
    return columns.get("text_tokens", TEXT_TOKENS), columns.get("mm_inputs_meta", META)


def count_values(
    rows: Sequence[ExaminedRecord], counter: RecordCounter, form: str
) -> list[Values | BadRecord]:
    """What each of a batch of examined records is given, or why it is given nothing."""
    counts, good = count_rows(rows, counter)
    values: list[Values | BadRecord | None] = [row.error for row in rows]
    offsets = counts.media.offsets
    for at, number in enumerate(good):
        if rows[number].error is not None:
            continue
        infos = rows[number].infos
        own = slice(offsets[at], offsets[at + 1])
        if None in infos:
            values[number] = BadRecord("unknown_size", "the size of a medium is not known")
            continue
        if counts.method[at] == HEURISTIC:
            text = "its counts were not found equal to those of transformers' own processor"
            values[number] = BadRecord("not_compared", text)
            continue
        kinds = [KINDS[kind] for kind in counts.media.kind[own]]
        tokens = counts.media.tokens[own].tolist()
        values[number] = Values(
            text_tokens=int(counts.text_tokens[at]),
            meta=_meta(kinds, [info for info in infos if info is not None], tokens, form),
            length=int(counts.length[at]),
            method=METHODS[counts.method[at]],
        )
    return [BadRecord("uncountable", "it was not counted") if f is None else f for f in values]


def _meta(
    kinds: Sequence[str], infos: Sequence[MediaInfo], tokens: Sequence[int], form: str
) -> dict[str, list[Any]] | None:
    """``mm_inputs_meta`` of media in order of appearance."""
    meta: dict[str, list[Any]] = {}
    for kind, info, number in zip(kinds, infos, tokens, strict=True):
        entry = {**_FACTS[kind](info), "n_tokens": number}
        entries = meta.setdefault(f"{kind}s_meta", [])
        entries.append(entry if form == OBJECTS else list(entry.values()))
    return meta or None


def _image(info: MediaInfo) -> dict[str, Any]:
    return {"height": info.height, "width": info.width}


def _audio(info: MediaInfo) -> dict[str, Any]:
    return {"num_samples": info.num_samples, "sampling_rate": info.sampling_rate}


def _video(info: MediaInfo) -> dict[str, Any]:
    """In the order in which NeMo's packer reads a list; 0 is its word for unknown."""
    fps = info.fps or 0.0
    return {
        "num_frames": info.num_frames,
        "height": info.height,
        "width": info.width,
        "fps": fps,
        "duration": info.num_frames / fps if fps else 0.0,
    }


_FACTS = {"image": _image, "video": _video, "audio": _audio}
