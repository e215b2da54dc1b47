"""What a schedule could do where it has no power: where a step is one micro-step."""

from __future__ import annotations

import numpy as np

from packidx.hashing import derive_key
from packidx.index.cost import COLUMNS, pack_cost
from packidx.index.order.epochs import Epochs
from packidx.index.reader import Index
from packidx.inspect.stats.idle import ScheduledPacks, ranks_stats
from packidx.plan.schedule.pack_order import schedule

MICRO_STEPS = 4


def useful_with_micro_steps(index: Index, ranks: int) -> float | None:
    """Useful share of the time if each step of `ranks` ranks had `MICRO_STEPS` micro-steps.

    The first epoch's packs are put in order anew, for a global batch of so many times `ranks`.
    None where there are too few packs for one such step.
    """
    packs = index.packs(COLUMNS)
    mine = Epochs.of(index.snapshot).scheduled(0)
    columns = {
        name: packs[name].fill_null(0).to_numpy().astype(np.int64)[mine]
        for name in packs.column_names
        if packs[name].null_count < packs.num_rows
    }
    llm, vit = pack_cost(index.snapshot.options.cost_model.to_json(), columns)
    batch = MICRO_STEPS * ranks
    key = derive_key(index.snapshot.options.seed, "micro-steps")
    # Exchanges between steps, for the sake of their shares, move whole micro-steps: no share here.
    order = schedule("stratified", llm, vit, global_batch=batch, micro_steps=MICRO_STEPS, key=key)
    ordered = ScheduledPacks(llm[order], vit[order], columns["length"][order])
    found = ranks_stats(ordered, batch, [ranks])[0]["planned"]
    return None if found is None else found["useful"]
