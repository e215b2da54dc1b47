"""Counting with the user's own encoder: what ``--encode module:name`` runs on every record."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import BadRecord, OptionError, PackidxError
from packidx.io.files import refuse_open_files
from packidx.processor.counts import (
    EXACT,
    UNKNOWN,
    Counts,
    MediaColumns,
    Spans,
    has_spans,
)
from packidx.processor.kinds import KINDS
from packidx.records.conversation import Conversation
from packidx.user_code import fingerprint_of, load_named, name_of

Encode = Callable[[dict[str, Any]], Any]

_IGNORED = -100  # label of what is not trained on, as in transformers
_MAX_TOKENS = 2**31 - 1  # the columns are int32
_TYPES = {1: "image", 2: "video", 3: "audio"}  # values of transformers' mm_token_type_ids


@dataclass(frozen=True, slots=True)
class Measured:
    """An encoder's sample in numbers, `UNKNOWN` where it says nothing."""

    length: int
    label_tokens: int = UNKNOWN
    kinds: tuple[int, ...] | None = None
    """Number in `KINDS` of each medium, in order of appearance; None where nobody says."""
    of_kind: tuple[int, ...] | None = None
    """Tokens of each kind in `KINDS`; None where nobody says which tokens are media."""
    tokens: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    grids: tuple[tuple[int, int, int], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """First label token and the one after the last of each run of them; empty too where nobody
    says."""


class UserEncoder:
    """An encoder that is not ours, as a counter of records.

    Args:
        encode: callable(record) -> {"input_ids": …}, or ``module:NAME`` of it. With a method
            ``count(record)`` that is asked instead; with ``fingerprint()`` it can be told from
            others.

    Raises:
        OptionError: it cannot be loaded.
    """

    def __init__(self, encode: str | Encode) -> None:
        if isinstance(encode, str):
            self.name = encode
            self._encode: Encode = load_named(encode, "--encode")
        else:
            if not callable(encode):
                raise OptionError(f"encode is {type(encode).__name__}, which cannot be called")
            self.name, self._encode = name_of(encode), encode

    def fingerprint(self) -> str | None:
        """Its own, or None where it has none."""
        return fingerprint_of(self._encode)

    def measure(self, record: dict[str, Any], conversation: Conversation | None) -> Measured:
        """The sample that `record` becomes.

        Args:
            record: as the reader hands it over, media opened.
            conversation: the record parsed, None where it is of no dialect packidx knows.

        Raises:
            BadRecord: ``encode_failed``, or what the encoder raises itself.
        """
        kinds = None
        if conversation is not None:
            kinds = tuple(KINDS.index(medium.kind) for medium in conversation.media)
        count = getattr(self._encode, "count", None)
        try:
            if callable(count):
                return Measured(_natural(count(record)), kinds=kinds)
            encoded = self._encode(record)
        except (PackidxError, MemoryError):  # memory that ran out is not a record's error
            raise
        except (Exception, SystemExit) as error:  # whatever it raises costs this record alone
            refuse_open_files(error)
            raise BadRecord("encode_failed", f"{type(error).__name__}: {error}") from error
        if not isinstance(encoded, Mapping) or encoded.get("input_ids") is None:
            given = ", ".join(map(str, encoded)) if isinstance(encoded, Mapping) else ""
            text = f"it returned {given or type(encoded).__name__}, not a dict with input_ids"
            raise BadRecord("encode_failed", text)
        return measure_sample(encoded, kinds)


def _natural(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"count(record) is {value}, not a number of tokens")
    number = operator.index(value)
    if not 0 <= number <= _MAX_TOKENS:
        raise ValueError(f"count(record) is {number}, not 0 to {_MAX_TOKENS}")
    return number


def measure_sample(encoded: Mapping[str, Any], kinds: tuple[int, ...] | None) -> Measured:
    """Shapes as the reader takes them: ``[T]`` or ``[1, T]``; labels default to the ids."""
    ids = _vector("input_ids", encoded["input_ids"], None)
    given = encoded.get("labels")
    labels = ids if given is None else _vector("labels", given, len(ids))
    is_trained = labels != _IGNORED
    is_trained[:1] = False  # nothing predicts the first token
    trained = int(is_trained.sum())
    runs = Spans.of(is_trained, np.zeros_like(ids))
    label_spans = tuple(zip(runs.start.tolist(), runs.stop.tolist(), strict=True))
    kinds, grids = _grids(encoded, kinds)
    types = encoded.get("mm_token_type_ids")
    if kinds is None and _holds_tokens_alone(encoded, len(ids)):
        kinds = None if types is not None and np.any(np.asarray(types)) else ()
    if types is None:
        of_kind = None if kinds is None or kinds else (0,) * len(KINDS)
        return Measured(len(ids), trained, kinds, of_kind, grids=grids, spans=label_spans)
    spans = _spans(_vector("mm_token_type_ids", types, len(ids)))
    sums = [sum(size for kind, _, size in spans if kind == number) for number in range(len(KINDS))]
    at: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    if tuple(kind for kind, _, _ in spans) == kinds:  # one run of tokens per medium
        at = tuple(first for _, first, _ in spans)
        tokens = tuple(size for _, _, size in spans)
    return Measured(len(ids), trained, kinds, tuple(sums), tokens, at, grids, label_spans)


def _holds_tokens_alone(encoded: Mapping[str, Any], length: int) -> bool:
    """Return whether no value can be of media: each has an entry per token, or is null."""
    shapes = [
        np.shape(value)
        for key, value in encoded.items()
        if key != "position_ids" and value is not None
    ]
    return all(shape in ((length,), (1, length)) for shape in shapes)


def _vector(name: str, value: Any, length: int | None) -> Int64s:
    try:
        vector = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if not hasattr(value, "tolist"):
            text = f"it returned {name} as {type(value).__name__}, which is not an array ({error})"
            raise BadRecord("encode_failed", text) from None
        vector = np.asarray(value.tolist())  # a tensor on a device, or with a gradient
    if vector.ndim == 2 and vector.shape[0] == 1:
        vector = vector[0]
    if vector.ndim != 1 or (length is not None and len(vector) != length):
        wanted = "[T] or [1, T]" if length is None else f"[{length}]"
        text = f"it returned {name} of shape {list(vector.shape)}, not {wanted}"
        raise BadRecord("encode_failed", text)
    if vector.dtype.kind not in "iub" and vector.size:
        raise BadRecord("encode_failed", f"it returned {name} of type {vector.dtype}, not integers")
    return vector.astype(np.int64)


def _spans(types: Int64s) -> list[tuple[int, int, int]]:
    """(number in `KINDS`, first token, tokens) of each run of media tokens."""
    edges = np.flatnonzero(np.diff(types, prepend=0, append=0)).tolist()
    runs = [(_TYPES.get(int(types[first])), first, end) for first, end in itertools.pairwise(edges)]
    return [(KINDS.index(kind), first, end - first) for kind, first, end in runs if kind]


def _grids(
    encoded: Mapping[str, Any], kinds: tuple[int, ...] | None
) -> tuple[tuple[int, ...] | None, tuple[tuple[int, int, int], ...]]:
    """The kinds, known from grids of one kind too, and each medium's (t, h, w), all or none."""
    rows: dict[int, list[Any]] = {}
    for number, kind in enumerate(KINDS):
        value = encoded.get(f"{kind}_grid_thw")
        if value is not None:
            grid = np.asarray(value)
            if grid.ndim != 2 or grid.shape[1] != 3:
                text = f"it returned {kind}_grid_thw of shape {list(grid.shape)}, not [media, 3]"
                raise BadRecord("encode_failed", text)
            rows[number] = grid.tolist()
    if kinds is None:
        if len(rows) != 1:
            return None, ()
        kinds = tuple(kind for kind, own in rows.items() for _ in own)
    if any(len(rows.get(kind, ())) != kinds.count(kind) for kind in set(kinds)):
        return kinds, ()
    following = {kind: iter(own) for kind, own in rows.items()}
    grids = [next(following[kind]) for kind in kinds]
    return kinds, tuple((int(t), int(h), int(w)) for t, h, w in grids)


def counts_of(measured: Sequence[Measured]) -> Counts:
    """The columns of n samples that were measured."""
    media = _media_columns(measured)
    offsets = media.offsets
    sums = np.array([sample.of_kind or (UNKNOWN,) * len(KINDS) for sample in measured], np.int64)
    sums = sums.reshape(-1, len(KINDS))
    length = np.array([sample.length for sample in measured], np.int64)
    known = sums[:, 0] != UNKNOWN
    given = [
        sample.kinds is not None and len(sample.grids) == len(sample.kinds) for sample in measured
    ]
    has_grids = np.array(given, bool)
    label_tokens = np.array([sample.label_tokens for sample in measured], np.int64)
    told = has_spans(length, label_tokens)
    spans = [(n, *span) for n in np.flatnonzero(told).tolist() for span in measured[n].spans]
    return Counts(
        text_tokens=np.where(known, length - sums.sum(axis=1), UNKNOWN),
        image_tokens=sums[:, 0],
        video_tokens=sums[:, 1],
        audio_tokens=sums[:, 2],
        length=length,
        label_tokens=label_tokens,
        vision_patches=np.where(has_grids, _sums(media.patches, offsets), UNKNOWN),
        vision_cost=np.where(has_grids, _sums(media.cost, offsets), UNKNOWN),
        method=np.full(len(measured), EXACT, np.int64),
        media=media,
        errors={},
        spans=Spans(*np.array(spans, np.int64).reshape(-1, 3).T),
    )


def _media_columns(measured: Sequence[Measured]) -> MediaColumns:
    columns = MediaColumns.unknown([len(sample.kinds or ()) for sample in measured])
    columns.kind[:] = [kind for sample in measured for kind in sample.kinds or ()]
    columns.method[:] = EXACT
    for sample, first, end in zip(measured, columns.offsets[:-1], columns.offsets[1:], strict=True):
        if sample.tokens:
            columns.tokens[first:end] = sample.tokens
            columns.at[first:end] = sample.at
        if sample.grids and first < end:
            grid = np.array(sample.grids, np.int64)
            columns.grid[first:end] = grid
            columns.patches[first:end] = grid.prod(axis=1)
            columns.cost[first:end] = grid[:, 0] * (grid[:, 1] * grid[:, 2]) ** 2
    return columns


def _sums(values: Int64s, offsets: Int64s) -> Int64s:
    total = np.concatenate([[0], np.cumsum(values)])
    return np.diff(total[offsets])
