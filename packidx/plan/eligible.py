"""Which rows are to be packed, and how often: a reason or a number of copies for every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.hashing import hash_ints
from packidx.mix import derive_key
from packidx.plan.exclusion import Exclusion
from packidx.plan.holdout import holdout, parse_share
from packidx.plan.mixture import copies as copies_of
from packidx.plan.options import ResolvedOptions
from packidx.plan.pieces import Stretch
from packidx.plan.rows import Rows

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]

# In the order in which they are looked for: the first that holds is the one that is told.
REASONS = (
    "",
    "rejected",
    "invalid_length",
    "empty",
    "excluded",
    "consumed",
    "holdout",
    "train",
    "mix",
    "too_long",
    "max_images",
    "max_vision_patches",
    "max_samples",
    "max_packs",
)


@dataclass(frozen=True, slots=True)
class Consumed:
    """Pieces that training has had already, in order of sample_id.

    Attributes:
        sample_id, copy: int64 [n].
        stretches: what is left of a copy of which only some pieces were consumed:
            (sample_id, copy) -> (start, stop, first free piece number), in tokens.
    """

    sample_id: Int64s
    copy: Int64s
    stretches: Mapping[tuple[int, int], list[tuple[int, int, int]]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What is left out of the plan besides what cannot be packed.

    Attributes:
        exclude: what the user names.
        consumed: what training has had.
        before: reason -> int64 [n], ids of samples that the plan which is continued left out by
            choice, for that reason.
    """

    exclude: Exclusion | None = None
    consumed: Consumed | None = None
    before: Mapping[str, Int64s] = field(default_factory=dict)


class Verdicts:
    """A reason for every row, or none where it is to be packed."""

    def __init__(self, size: int) -> None:
        self._code = np.zeros(size, np.int8)

    def usable(self) -> Bools:
        """bool [n]: nothing speaks against the row."""
        return np.equal(self._code, 0)

    def set(self, rows: Int64s | Int32s | Bools, reason: str) -> None:
        """Drop `rows` (numbers or a mask) for `reason`, unless they are dropped already."""
        code = REASONS.index(reason)
        if rows.dtype == bool:
            self._code[rows & (self._code == 0)] = code
        else:
            self._code[rows] = np.where(self._code[rows] == 0, code, self._code[rows])

    def dropped(self) -> Int64s:
        """Row numbers, ascending."""
        return np.flatnonzero(self._code)

    def reasons(self, rows: Int64s) -> pa.Array:
        """The reason of each of `rows`."""
        codes = pa.array(self._code[rows])
        return pa.DictionaryArray.from_arrays(codes, pa.array(REASONS)).cast(pa.string())


@dataclass
class Copies:
    """How often each row is packed.

    Attributes:
        number: int64 [n], or None where each is packed once.
        is_partial: bool [n]: training has had a part of one of its copies.
        had: row -> numbers of the copies that training has had.
        left: (row, copy) -> what is left of it.
    """

    number: Int64s | None
    is_partial: Bools
    had: dict[int, set[int]] = field(default_factory=dict)
    left: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)

    def of(self, rows: Int32s) -> tuple[Int32s, Int64s]:
        """Each of `rows` as often as it is packed, and the copies' numbers."""
        if self.number is None:
            return rows, np.zeros(len(rows), np.int64)
        times = self.number[rows]
        repeated = np.repeat(rows, times)
        numbers = np.arange(len(repeated)) - np.repeat(np.cumsum(times) - times, times)
        for row in self.had.keys() & set(rows.tolist()):
            at = np.flatnonzero(repeated == row)
            numbers[at] = self._free(row, len(at))
        return repeated, numbers

    def stretches(self, row: int, length: int) -> Iterator[Stretch]:
        """What is to be cut of a row of `length` tokens, copy by copy."""
        times = 1 if self.number is None else int(self.number[row])
        for copy in self._free(row, times):
            left = self.left.get((row, copy), [(0, length, 0)])
            for start, stop, piece in left:
                yield Stretch(row, copy, start, stop, piece)

    def _free(self, row: int, times: int) -> list[int]:
        """The lowest `times` copy numbers that training has not had, begun ones first."""
        had = self.had.get(row, set())
        begun = [copy for (at, copy) in self.left if at == row] if self.is_partial[row] else []
        fresh = (copy for copy in range(times + len(had)) if copy not in had and copy not in begun)
        return sorted([*begun, *fresh][:times])


def judge(
    rows: Rows, weight: Int32s, options: ResolvedOptions, rules: Rules
) -> tuple[Verdicts, Copies]:
    """What is dropped before lengths and caps are looked at, and the copies of the rest.

    Args:
        rows: a run of the table.
        weight: int64 [n], tokens of each row after the shift.
    """
    verdicts = Verdicts(rows.num_rows)
    ok = rows.is_ok()
    verdicts.set(~ok, "rejected")
    if (weight <= 0).any():
        stated, null = rows.ints("length")
        verdicts.set((stated < 0) if null is None else null | (stated < 0), "invalid_length")
        verdicts.set(weight <= 0, "empty")
    if rules.exclude is not None:
        verdicts.set(rules.exclude.of(rows), "excluded")
    for reason, ids in rules.before.items():
        verdicts.set(np.isin(rows.sample_id, ids), reason)
    number = _copies(rows, options)
    copies = Copies(number, np.zeros(rows.num_rows, bool))
    if rules.consumed is not None:
        _take_off(rows, rules.consumed, copies, verdicts)
    if options.holdout is not None:
        source = rows.arrow("source") if "source" in rows.frame.columns else None
        key = rows.arrow("key") if "key" in rows.frame.columns else None
        out = holdout(source, key, rows.sample_id, parse_share(str(options.holdout)))
        verdicts.set(
            out if options.side == "train" else ~out,
            "holdout" if options.side == "train" else "train",
        )
    if copies.number is not None:
        verdicts.set(copies.number == 0, "mix")
    return verdicts, copies


def _copies(rows: Rows, options: ResolvedOptions) -> Int64s | None:
    """Copies of each row by its source's weight; None where every weight is 1."""
    if not options.weights:
        return None
    number = np.ones(rows.num_rows, np.int64)
    source = rows.frame.get_column("source")
    draws = hash_ints(rows.sample_id, derive_key(options.seed, "mix"))
    for name, weight in options.weights.items():
        mine = (source == name).fill_null(False).to_numpy()
        number[mine] = copies_of(Fraction(weight), draws[mine])
    return number


def _take_off(rows: Rows, consumed: Consumed, copies: Copies, verdicts: Verdicts) -> None:
    """Take what training has had off the copies."""
    ids = rows.sample_id
    first, last = np.searchsorted(consumed.sample_id, [ids[0], ids[-1] + 1]) if len(ids) else (0, 0)
    had = consumed.sample_id[first:last]
    at = np.searchsorted(ids, had)
    found = at < len(ids)
    found[found] = ids[at[found]] == had[found]
    at = at[found]
    numbers = np.ones(rows.num_rows, np.int64) if copies.number is None else copies.number.copy()
    planned = numbers.copy()
    numbers = np.maximum(numbers - np.bincount(at, minlength=rows.num_rows), 0)
    verdicts.set((numbers == 0) & (planned > 0), "consumed")
    copies.number = numbers
    for row, copy in zip(at.tolist(), consumed.copy[first:last][found].tolist(), strict=True):
        if numbers[row]:
            copies.had.setdefault(row, set()).add(copy)
    for (ident, copy), left in consumed.stretches.items():
        row = int(np.searchsorted(ids, ident))
        if row < len(ids) and ids[row] == ident and numbers[row]:
            copies.is_partial[row] = True
            copies.left[row, copy] = left
