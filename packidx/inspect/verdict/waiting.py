"""What the order of the packs costs, in sentences: time that ranks wait for the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.stats import MICRO_STEPS, useful_with_micro_steps
from packidx.inspect.verdict.finding import Finding, percent


def waiting(index: Index, schedule: list[dict[str, Any]]) -> Iterator[Finding]:
    """Time that ranks lose waiting for the slowest, where the schedule has power and where not."""
    result, size = index.snapshot.result, packs_per_step(index.snapshot)
    packs = result.num_packs // index.snapshot.options.epochs
    if size is not None and packs < size:
        said = f"an epoch has {packs:,} packs, fewer than the {size:,} of one step"
        yield Finding(100, f"{said}: plan more data, or smaller steps")
    told = [of_ranks for of_ranks in schedule if _useful(of_ranks) is not None]
    with_power = [each for each in told if not is_powerless(index, each)]
    without = [each for each in told if is_powerless(index, each)]
    if with_power:
        planned_for = [each for each in with_power if each["ranks"] <= result.schedule_chunk]
        best = planned_for[-1] if planned_for else with_power[0]
        lost = 100 * (1 - best["planned"]["useful"])
        yield Finding(lost / 2, f"{_at(best)} {_lost_waiting(lost)}")
    if without:
        yield _without_power(index, without[0])


def _useful(of_ranks: Mapping[str, Any]) -> float | None:
    planned = of_ranks["planned"]
    return None if planned is None else planned["useful"]


def is_powerless(index: Index, of_ranks: Mapping[str, Any]) -> bool:
    """Whether the schedule can do nothing for a number of ranks, or does harm.

    Args:
        of_ranks: an entry of ``schedule`` (`packidx.inspect.stats.sample_stats`) with useful time.
    """
    result = index.snapshot.result
    if result.schedule == "random":
        return True
    # Its micro-steps, planned apart, are all of one micro-step of these ranks.
    joined = of_ranks["micro_steps"] == 1 and result.schedule_chunk < result.schedule_block
    return joined or of_ranks["planned"]["useful"] < of_ranks["random"]["useful"]


def _without_power(index: Index, of_ranks: Mapping[str, Any]) -> Finding:
    result, ranks = index.snapshot.result, of_ranks["ranks"]
    lost = 100 * (1 - of_ranks["planned"]["useful"])
    said = f"{_at(of_ranks)} {_lost_waiting(lost)}"
    if result.schedule == "random":
        return Finding(lost / 2, f"{said}: the packs are in random order, no cost is evened out")
    if of_ranks["micro_steps"] == 1:
        said += ": one micro-step per step leaves the schedule nothing to even out"
    else:
        random = 100 * (1 - of_ranks["random"]["useful"])
        said += f": the schedule does harm there, a random order loses {percent(random)}"
    useful = useful_with_micro_steps(index, ranks)
    if useful is not None and useful > of_ranks["planned"]["useful"]:
        batch = f"`--global-batch {MICRO_STEPS * ranks} --micro-steps {MICRO_STEPS}`"
        said += f"; {batch} would lose {percent(100 * (1 - useful))}"
    return Finding(lost / 4, said)  # only if so many ranks are used


def _lost_waiting(lost: float) -> str:
    return f"{percent(lost)} of the time is lost waiting, by the plan's cost model"


def _at(of_ranks: Mapping[str, Any]) -> str:
    ranks, steps = of_ranks["ranks"], of_ranks["micro_steps"]
    return (
        f"at {ranks:,} rank{'' if ranks == 1 else 's'} × {steps:,} micro-step"
        f"{'' if steps == 1 else 's'}"
    )
