"""Checks of preference pairs."""

from __future__ import annotations

import numpy as np

from packidx.format.terms import PAIR_SIDES
from packidx.inspect.verify.check import Looker, Window, ints


class Pairs(Looker):
    """The rejected side of a pair follows the chosen one in its pack."""

    name = "pairs"

    @property
    def are_there(self) -> bool:
        """Whether there was anything to look at."""
        return bool(self.numbers["pairs"] or self.wrong)

    def look(self, window: Window) -> None:
        side = window.samples["pair"].to_numpy()
        first, second = (np.flatnonzero(side == name) for name in PAIR_SIDES)
        self.numbers["pairs"] += len(first)
        follows = np.array_equal(first + 1, second)
        if not follows:
            alone = np.setxor1d(first + 1, second)
            self.wrong.append(
                f"{len(first):,} chosen and {len(second):,} rejected sides, {len(alone):,} without "
                "the other one beside it"
            )
            return
        for name in ("pack_id", "copy", "shard", "row"):
            values = ints(window.samples, name)
            parted = np.flatnonzero(values[first] != values[second])
            self.unless(not len(parted), f"{len(parted):,} pairs have two values of {name}")
        cut = (ints(window.samples, "piece") > 0) | (ints(window.samples, "token_start") > 0)
        parts = int(cut[first].sum() + cut[second].sum())
        self.unless(not parts, f"{parts} sides of pairs are cut")

    def done(self) -> str:
        return f"{self.counted('pairs')}, the sides of each beside each other"
