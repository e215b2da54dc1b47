"""How much faster training could be if data were free: the headspace of a data loader.

1. Run some steps of the training loop as it is, and take their median time.
2. Keep one batch in memory, and run as many steps on that batch alone.
3. The headspace is the first time over the second one: 1.00 means that data is no bottleneck.

Say a step takes 0.62 s with the loader and 0.47 s with the kept batch: the headspace is 1.31, and
more workers, or `packidx precompute`, can make the run up to 1.31 times as fast. Packs of a
stratified plan cost about the same, so one batch stands for all of them.

``python -m packidx.torch.headspace MODULE:NAME`` does so for what NAME() returns: a loader, and a
function that runs one training step on a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import islice, repeat
from typing import Any, NamedTuple

import torch

from packidx.errors import OptionError, PackidxError
from packidx.user_code import load_named

Step = Callable[[Any], Any]


class Headspace(NamedTuple):
    """Median seconds of a training step.

    Attributes:
        loaded: with the loader.
        cached: with one batch that is kept in memory.
        waited: of `loaded`, the median time until the loader gave the batch.
    """

    loaded: float
    cached: float
    waited: float

    @property
    def ratio(self) -> float:
        """How many times as fast training would be if its data cost nothing; at least about 1."""
        return self.loaded / self.cached

    def __str__(self) -> str:
        return (
            f"a step takes {self.loaded:.3f} s, {self.waited:.3f} s of it waiting for data;"
            f" {self.cached:.3f} s with one cached batch: training could be {self.ratio:.2f} times"
            " as fast"
        )


def measure_headspace(
    loader: Iterable[Any], step: Step, steps: int = 30, warmup: int = 3
) -> Headspace:
    """Measure a training loop with its loader and with one batch of it.

    Args:
        loader: any loader of batches; `steps` + `warmup` of them are drawn.
        step: runs one training step, backward and optimizer included. It really trains: give it a
            model that you do not keep.
        steps: that are measured each way.
        warmup: steps before them, which are not.

    Raises:
        OptionError: `steps` is below 1, or the loader has too few batches.
    """
    if steps < 1 or warmup < 0:
        raise OptionError(f"steps is {steps} and warmup {warmup}: measure at least 1 step")
    loaded, waits, kept = _time_steps(islice(loader, warmup + steps), step)
    if len(loaded) < warmup + steps:
        raise OptionError(
            f"the loader has {len(loaded)} batches, {warmup + steps} are needed: lower steps"
        )
    cached, _, _ = _time_steps(repeat(kept, warmup + steps), step)
    medians = (statistics.median(times[warmup:]) for times in (loaded, cached, waits))
    return Headspace(*medians)


def _time_steps(batches: Iterable[Any], step: Step) -> tuple[list[float], list[float], Any]:
    """Return seconds of each step, those until its batch was there, and the last batch."""
    seconds, waits, batch = [], [], None
    began = time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - began)
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds.append(now - began)
        began = now
    return seconds, waits, batch


def main(arguments: list[str] | None = None) -> None:
    """Print the headspace of a loop; see the module."""
    parser = argparse.ArgumentParser(prog="python -m packidx.torch.headspace")
    parser.add_argument("loop", metavar="MODULE:NAME", help="NAME() returns (loader, step)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        loader, step = load_named(given.loop, "LOOP")()
        print(measure_headspace(loader, step, given.steps, given.warmup))
    except PackidxError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
