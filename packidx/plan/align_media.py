"""Divide packs so that every micro-step can be of packs with media, or of packs without.

A rank whose pack has no image skips the vision tower, and under FSDP the other ranks then wait for
it; so all packs of a micro-step should be of one kind. That takes a multiple of a micro-step's
packs of each kind:

1. Count packs with media, M, and without, T. With C packs to a micro-step, -M mod C and -T mod C
   packs are missing.
2. Divide as many packs of the kind in two, those of the most samples first; of a pack with media
   each half gets samples with media. Where no pack without media can be divided, the samples
   without media leave a pack that has both.

With C = 4, M = 10, T = 7: two packs with media and one without are divided, which makes 12 and 8.
At most 2·(C - 1) packs are added.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import OptionError
from packidx.packing.slots import Slots


def divide_packs(slots: Slots, has_media: Bools, chunk: int) -> tuple[Slots, Int64s]:
    """Divide packs until those with media, and those without, are multiples of `chunk`.

    Args:
        slots: of all items.
        has_media: bool [items].
        chunk: packs of a micro-step.

    Returns:
        The slots, and int64 [packs], the pack that each one was.

    Raises:
        OptionError: too few packs have two samples of the kind.
    """
    pack, position = slots.pack.copy(), slots.position
    media = has_media[slots.item]
    origin = np.arange(slots.num_packs)
    for kind in (True, False):
        while True:
            held = np.bincount(pack, media if kind else ~media, len(origin)).astype(np.int64)
            is_kind = _hold_media(pack, media, len(origin)) == kind
            missing = -int(is_kind.sum()) % chunk
            if not missing:
                break
            divisible = np.where(is_kind & (held > 1), held, 0)
            leaves = not kind and not divisible.any()
            divisible = np.where(is_kind, 0, held) if leaves else divisible
            chosen = np.argsort(-divisible, kind="stable")[:missing]
            chosen = chosen[divisible[chosen] > 0]
            if not len(chosen):
                name = "with media" if kind else "without media"
                raise OptionError(
                    f"--align-media needs {missing} more packs {name}, and no pack has two"
                    f" samples {name} to divide: plan with fewer than {chunk} packs per micro-step"
                    " (--global-batch, --micro-steps)"
                )
            _divide(pack, position, media, chosen, len(origin), leaves)
            origin = np.concatenate([origin, origin[chosen]])
    order = np.lexsort((position, pack))
    sizes = np.bincount(pack, minlength=len(origin))
    place = np.empty(len(pack), np.int32)
    place[order] = np.arange(len(pack)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Slots(slots.item, len(origin), (pack, place)), origin


def _hold_media(pack: Int32s, media: Bools, num_packs: int) -> Bools:
    """Return True for each pack that has a sample with media, bool [num_packs]."""
    found = np.zeros(num_packs, bool)
    found[pack[media]] = True
    return found


def _divide(
    pack: Int32s, position: Int32s, media: Bools, chosen: Int64s, first: int, leaves: bool
) -> None:
    """Move every other sample of the `chosen` packs, media first, to packs from `first` on; if
    `leaves`, those without media."""
    new = np.full(first, -1, np.int32)
    new[chosen] = np.arange(first, first + len(chosen))
    mine = np.flatnonzero(new[pack] >= 0)
    mine = mine[np.lexsort((position[mine], ~media[mine], pack[mine]))]
    sizes = np.unique(pack[mine], return_counts=True)[1]
    nth = np.arange(len(mine)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = mine[~media[mine] if leaves else nth % 2 == 1]
    pack[moved] = new[pack[moved]]
