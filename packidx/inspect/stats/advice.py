"""What a schedule could do where it has no power: where a step is one micro-step."""

from __future__ import annotations

from packidx.hashing import derive_key
from packidx.index.reader import Index
from packidx.inspect.stats.idle import ScheduledPacks, first_epoch, ranks_stats
from packidx.plan.schedule.pack_order import schedule

MICRO_STEPS = 4


def useful_with_micro_steps(index: Index, ranks: int) -> float | None:
    """Useful share of the time if each step of `ranks` ranks had `MICRO_STEPS` micro-steps.

    The first epoch's packs are put in order anew, for a global batch of so many times `ranks`.
    None where there are too few packs for one such step.
    """
    columns, llm, vit = first_epoch(index)
    batch = MICRO_STEPS * ranks
    key = derive_key(index.snapshot.options.seed, "micro-steps")
    # Exchanges between steps, for the sake of their shares, move whole micro-steps: no share here.
    order = schedule("stratified", llm, vit, global_batch=batch, micro_steps=MICRO_STEPS, key=key)
    ordered = ScheduledPacks(llm[order], vit[order], columns["length"][order])
    useful = ranks_stats(ordered, batch, [ranks])[0]["planned"]
    return None if useful is None else useful["useful"]
