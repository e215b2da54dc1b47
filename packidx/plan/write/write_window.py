"""One window's rows of the snapshot, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from packidx.plan.schedule.cost_model import CostModel
from packidx.plan.schedule.pack_order import blocks_of
from packidx.plan.window import WindowPlan
from packidx.plan.write.result import PlanTotals
from packidx.plan.write.tables import packs_table, samples_chunks

Progress = Callable[[str], None]


class RowSink(Protocol):
    """Where rows go: a `SnapshotWriter`, or a window's own `WindowFiles`."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the window's tables, in the schema's types."""


def write_window(
    output: RowSink, plan: WindowPlan, block: int, totals: PlanTotals, progress: Progress
) -> None:
    """Write a window's packs, samples and dropped samples, and take them into `totals`.

    Args:
        output: where the rows go.
        plan: of the window.
        block: packs per optimizer step; 0 where no window had any yet.
        totals: of what was written before: numbers of packs and rows go on from there.
        progress: told what is being done.
    """
    options, number = plan.options, plan.window.number
    model = CostModel.from_json(options.cost_model)
    totals.begin_window(plan)
    epochs = options.epochs if plan.items.num_items else 0
    for epoch in range(epochs):
        variant = plan.variant(epoch, block, model)
        if not len(variant.packs):
            continue
        progress(f"writing {len(variant.packs):,} packs of window {number + 1}")
        first_pack = totals.num_packs
        packs = packs_table(
            variant.packs,
            first_pack=first_pack,
            first_row=totals.num_pieces,
            epoch=epoch,
            window=number,
            groups=plan.group_names,
        )
        output.write("packs", packs)
        for rows in samples_chunks(plan.items, variant.ordered, variant.packs.sizes, first_pack):
            output.write("samples", rows)
        totals.add(epoch, plan, variant)
    if plan.dropped.num_rows:
        output.write("dropped", plan.dropped)
    steps = options.micro_steps
    totals.end_window(plan, blocks_of(options.schedule, block or steps, steps))
