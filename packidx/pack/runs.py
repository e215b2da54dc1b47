"""A plan as runs of equal packs: what every strategy on counts returns."""

from __future__ import annotations

from dataclasses import dataclass

from packidx.arrays import Int64s


@dataclass(frozen=True, slots=True)
class PackRuns:
    """A plan as runs of packs: each of `num_packs` packs gets `per_pack` equal samples.

    Runs stand in the order in which the samples, sorted by length descending, are dealt out.

    Attributes:
        first_pack: int64 [n], the lowest pack number of the run.
        num_packs: int64 [n].
        per_pack: int64 [n].
        position: int64 [n], samples that each of these packs holds already.
        total_packs: number of packs of the whole plan.
    """

    first_pack: Int64s
    num_packs: Int64s
    per_pack: Int64s
    position: Int64s
    total_packs: int
