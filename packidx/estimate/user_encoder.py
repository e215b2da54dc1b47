"""Counting with the user's own encoder: what ``--encode module:name`` runs on every record."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import BadRecord, OptionError, PackidxError
from packidx.io.files import refuse_open_files
from packidx.processor.counts import Spans
from packidx.processor.kinds import KINDS
from packidx.records.conversation import Conversation
from packidx.user_code import fingerprint_of, load_named, name_of

Encode = Callable[[dict[str, Any]], Any]

_IGNORED = -100  # label of what is not trained on, as in transformers
_MAX_TOKENS = 2**31 - 1  # the columns are int32
_MOST_COST = 1 << 48  # above the vision cost of any medium: sums of a plan stay exact
_TYPES = {1: "image", 2: "video", 3: "audio"}  # values of transformers' mm_token_type_ids
Grid = tuple[int, int, int]

Measured = dict[str, Any]
"""Counted columns of one row (`packidx.format.schema.COUNTED`); null where nothing is known."""


class UserEncoder:
    """An encoder that is not ours, as a counter of records.

    Args:
        encode: callable(record) -> {"input_ids": …}, or ``module:NAME`` of it. With a method
            ``count(record)`` that is asked instead; with ``fingerprint()`` it is distinguished from
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
        """The fingerprint of the user's encoder; None if it has none."""
        return fingerprint_of(self._encode)

    def measure(self, record: dict[str, Any], conversation: Conversation | None) -> Measured:
        """Count the sample that `record` becomes.

        Args:
            record: as the reader hands it over, media opened.
            conversation: the record parsed, None if it is of no dialect packidx knows.

        Raises:
            BadRecord: ``encode_failed``, or what the encoder raises itself.
        """
        kinds = None if conversation is None else [each.kind for each in conversation.media]
        count = getattr(self._encode, "count", None)
        try:
            if callable(count):
                return {"length": _check_length(count(record)), **_media_columns(kinds)}
            encoded = self._encode(record)
            if not isinstance(encoded, Mapping) or encoded.get("input_ids") is None:
                given = ", ".join(map(str, encoded)) if isinstance(encoded, Mapping) else ""
                text = f"it returned {given or type(encoded).__name__}, not a dict with input_ids"
                raise BadRecord("encode_failed", text)
            return measure_sample(encoded, kinds)
        except (PackidxError, MemoryError):  # memory that ran out is not a record's error
            raise
        except (Exception, SystemExit) as error:  # whatever it raises costs this record alone
            refuse_open_files(error)
            raise BadRecord("encode_failed", f"{type(error).__name__}: {error}") from error


def _check_length(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"count(record) is {value}, not a number of tokens")
    number = operator.index(value)
    if not 0 <= number <= _MAX_TOKENS:
        raise ValueError(f"count(record) is {number}, not 0 to {_MAX_TOKENS}")
    return number


def measure_sample(encoded: Mapping[str, Any], kinds: list[str] | None) -> Measured:
    """Count a sample that was built.

    Args:
        encoded: shapes as the reader takes them, ``[T]`` or ``[1, T]``; labels default to the ids.
        kinds: of its media, in order of appearance; None if they are not known.

    Raises:
        BadRecord: ``encode_failed``; ``too_many_tokens``.
    """
    ids = _to_vector("input_ids", encoded["input_ids"], None)
    num, given, types = len(ids), encoded.get("labels"), encoded.get("mm_token_type_ids")
    if num > _MAX_TOKENS:
        raise BadRecord("too_many_tokens", f"{num} tokens, over {_MAX_TOKENS}")
    is_trained = (ids if given is None else _to_vector("labels", given, num)) != _IGNORED
    is_trained[:1] = False  # nothing predicts the first token
    row: Measured = {"length": num, "label_tokens": int(is_trained.sum())}
    if 0 < row["label_tokens"] < num - 1:
        _, starts, stops = Spans.of(is_trained, np.zeros_like(ids))
        ends = zip(starts.tolist(), stops.tolist(), strict=True)
        row["label_spans"] = [{"start": start, "stop": stop} for start, stop in ends]
    grids = {kind: own for kind in KINDS if (own := _read_grids(encoded, kind)) is not None}
    runs = [] if types is None else _find_runs(_to_vector("mm_token_type_ids", types, num))
    if types is not None or kinds == []:
        sums = {kind: sum(size for of, _, size in runs if of == kind) for kind in KINDS}
        row |= {f"{kind}_tokens": number for kind, number in sums.items()}
        row["text_tokens"] = num - sum(sums.values())
    return row | _media_columns(kinds, grids, runs)


def _media_columns(
    kinds: list[str] | None,
    grids: Mapping[str, Sequence[Grid]] = MappingProxyType({}),
    runs: Sequence[tuple[str, int, int]] = (),
) -> Measured:
    """Return the columns of a sample's media: `grids` of each kind, where they are known, and
    `_find_runs`."""
    if kinds is None:
        return {"method": "exact"}
    media: list[dict[str, Any]] = [{"kind": kind} for kind in kinds]
    columns: Measured = {"method": "exact", "media": media}
    if all(len(grids.get(kind, ())) == kinds.count(kind) for kind in {*kinds}):
        following = {kind: iter(own) for kind, own in grids.items()}
        known = [next(following[kind]) for kind in kinds]
        for medium, (t, h, w) in zip(media, known, strict=True):
            medium.update(t=t, h=h, w=w, patches=t * h * w)
        columns["vision_patches"] = sum(t * h * w for t, h, w in known)
        columns["vision_cost"] = sum(t * (h * w) ** 2 for t, h, w in known)
    if [kind for kind, _, _ in runs] == kinds:  # one run of tokens per medium
        for medium, (_, first, size) in zip(media, runs, strict=True):
            medium.update(at=first, tokens=size)
    return columns


def _to_vector(name: str, value: Any, length: int | None) -> Int64s:
    try:
        vector = np.asarray(value)
    except (TypeError, RuntimeError):
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


def _find_runs(types: Int64s) -> list[tuple[str, int, int]]:
    """Return (kind, first token, tokens) of each run of media tokens."""
    edges = np.flatnonzero(np.diff(types, prepend=0, append=0)).tolist()
    runs = [(_TYPES.get(int(types[first])), first, end) for first, end in itertools.pairwise(edges)]
    return [(kind, first, end - first) for kind, first, end in runs if kind]


def _read_grids(encoded: Mapping[str, Any], kind: str) -> list[Grid] | None:
    """Return (t, h, w) of each medium of a kind; None if the encoder does not say it."""
    value = encoded.get(f"{kind}_grid_thw")
    if value is None:
        return None
    grids = np.asarray(value)
    if grids.ndim != 2 or grids.shape[1] != 3:
        text = f"it returned {kind}_grid_thw of shape {list(grids.shape)}, not [media, 3]"
        raise BadRecord("encode_failed", text)
    rows = [(int(t), int(h), int(w)) for t, h, w in grids.tolist()]
    for t, h, w in rows:
        if min(t, h, w) < 0 or t * (h * w) ** 2 > _MOST_COST or max(t, h, w) > _MAX_TOKENS:
            text = f"it returned {kind}_grid_thw with {[t, h, w]}, which is no grid"
            raise BadRecord("encode_failed", text)
    return rows
