"""One plan from lengths to a published snapshot, window by window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packidx.errors import OptionError, SourceError
from packidx.hashing import derive_key
from packidx.index.reader import Index
from packidx.index.writer import SnapshotWriter, writing
from packidx.lengths.table import Lengths
from packidx.permutation import permutation
from packidx.plan.append import may_append
from packidx.plan.margin import calibrated_margin, unknown_sources
from packidx.plan.options.numbers import number_text
from packidx.plan.options.plan_options import PlanOptions
from packidx.plan.options.resolved import (
    Margin,
    ResolvedOptions,
    overflow_chance,
    planned_share,
    resolve,
)
from packidx.plan.schedule.cost_model import DEFAULT_PRESET
from packidx.plan.schedule.cost_model import parse as parse_cost
from packidx.plan.select.eligible import Rules
from packidx.plan.select.exclusion import read_exclusion
from packidx.plan.select.mixture import Mixture, sample_ratios
from packidx.plan.window import WindowPlan
from packidx.plan.windows import Window, taken_windows, windows_of
from packidx.plan.write.result import PlanTotals, lengths_entry
from packidx.plan.write.write_window import Progress, write_window


class Job:
    """One plan: what it is made of, and how far it is."""

    def __init__(
        self,
        table: Lengths,
        output: str,
        asked: PlanOptions,
        append: Index | None,
        resume: tuple[Index, dict[str, Any]] | None,
        progress: Progress,
    ) -> None:
        self.table, self.output, self.progress, self.append = table, output, progress, append
        self.margin = _margin(table, asked, progress)
        self.options = resolve(asked, table.weakest_method, self.margin)
        self.rules = Rules(None if asked.exclude is None else read_exclusion(asked.exclude))
        continues: tuple[dict[str, Any], ...] = ()
        excluded: str | None = None
        if resume is not None:
            from packidx.plan.select.consumed import continued_rules, lineage

            excluded = resume[0].manifest["options"].get("excluded")

            progress("reading what training has had")
            self.rules = continued_rules(table, *resume, self.rules)
            continues = lineage(*resume)
        self.options = replace(
            self.options,
            weights=_weights(table, asked, self.options),
            cost_model=parse_cost(DEFAULT_PRESET if asked.cost is None else asked.cost).to_json(),
            excluded=self.rules.exclude.fingerprint if self.rules.exclude else excluded,
            continues=continues,
            appends_to=None if append is None else append.id,
        )
        taken = [] if append is None else taken_windows(append.manifest["result"])
        self.taken = may_append(table, self.options, append) if append is not None else taken
        self.windows = windows_of(table, asked, self.taken)
        self.block = 0 if append is None else int(append.manifest["result"]["schedule_block"])
        self.drawn: list[NDArray[np.bool_]] | None = None

    def run(self) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """Plan and write window by window; returns manifest, whether it existed, and its body."""
        totals = PlanTotals(self.options, None if self.append is None else self.append.manifest)
        if self.options.max_packs is not None:
            self.drawn = self._draw(self.options.max_packs)
        self._prepare(totals)
        with writing(self.output, self._uploaded) as writer:
            if self.append is not None:
                writer.take_over(self.append.place, self.append.manifest)
            self._write_all(writer, totals)
            self.progress("publishing")
            body = {
                "lengths": lengths_entry(self.table, self.margin),
                "options": self.options.to_json(),
                "result": totals.result(writer.windows),
                "sources": totals.sources((self.table.manifest or {}).get("sources", [])),
                "shards": self.table.shards,
            }
            manifest, existed = writer.publish(body)
        return manifest, existed, body

    def _uploaded(self, done: int, total: int) -> None:
        self.progress(f"publishing: {done} of {total} files are uploaded")

    def _prepare(self, totals: PlanTotals) -> None:
        """Raise an error, before anything is written, where there is nothing to pack."""
        self._todo = iter(self.windows[len(self.taken) :])
        self._planned = self._first_with_packs(self._todo, totals)

    def _write_all(self, writer: SnapshotWriter, totals: PlanTotals) -> None:
        """Write every window that is not taken over."""
        while self._planned:  # not kept: it holds a window's samples
            self._write(writer, self._planned.pop(0), totals)
        for window in self._todo:
            self._write(writer, self._plan(window), totals)

    def _first_with_packs(self, todo: Iterator[Window], totals: PlanTotals) -> list[WindowPlan]:
        """Windows up to the first that has packs: nothing is written where there is none."""
        plans = []
        for window in todo:
            plans.append(self._plan(window))
            if plans[-1].items.num_items:
                return plans
        if self.append is None or not totals.num_packs:
            self._complain(plans)
        return plans

    def _complain(self, plans: list[WindowPlan]) -> None:
        reasons = [one for plan in plans for one in plan.dropped["reason"].to_pylist()]
        if "too_long" in reasons and not {"mix", "holdout", "consumed"} & set(reasons):
            shortest = min(
                int(plan.items.rows.length[plan.items.rows.length > 0].min())
                for plan in plans
                if plan.items.rows.length.any()
            )
            raise OptionError(
                f"capacity {self.options.longest} is below every usable sample of {self.table.uri} "
                f"(the shortest has {shortest - self.options.shift} tokens): raise --capacity"
            )
        counted = ", ".join(f"{reasons.count(one):,} {one}" for one in sorted(set(reasons)))
        raise SourceError(
            f"{self.table.uri} holds no usable sample ({counted or 'no row'}): nothing to pack"
        )

    def _plan(self, window: Window) -> WindowPlan:
        many = f" of window {window.number + 1} of {len(self.windows)}"
        where = many if len(self.windows) > 1 else ""
        self.progress(f"packing {window.stop - window.start:,} samples{where}")
        rows = self.table.read(window.start, window.stop, self._columns())
        self.table.note(rows)
        return WindowPlan(window.number, rows, self.options, self.rules)

    def _columns(self) -> list[str]:
        """Columns that the plan looks at; of a bare table all, for its fingerprint's sake."""
        unused = {"text_tokens", "num_turns", "method"}
        bare = self.table.manifest is None
        return [name for name in self.table.columns if bare or name not in unused]

    def _draw(self, most: int) -> list[NDArray[np.bool_]]:
        """Which packs of every window stay, of one seeded draw over all."""
        sizes = self._sizes()
        chosen = np.zeros(sum(sizes), bool)
        chosen[permutation(sum(sizes), derive_key(self.options.seed, "max_packs"))[:most]] = True
        return np.split(chosen, np.cumsum(sizes)[:-1])

    def _sizes(self) -> list[int]:
        """Packs of every window in one epoch."""
        return [plan.num_packs() for plan in map(self._plan, self.windows)]

    def _write(self, writer: SnapshotWriter, plan: WindowPlan, totals: PlanTotals) -> None:
        dropped = plan.dropped
        if self.drawn is not None and plan.items.num_items:
            dropped = plan.keep(self.drawn[plan.number])
        if not self.block and plan.items.num_items:
            self.block = block_of(plan.num_packs(), len(self.windows), self.options)
        window = self.windows[plan.number]
        write_window(writer, plan, window, dropped, self.block, totals, self.progress)
        writer.end_window()


def block_of(num_packs: int, num_windows: int, options: ResolvedOptions) -> int:
    """Packs of an optimizer step: as asked, else 512 or, of few packs, a smaller power of two.

    Args:
        num_packs: of the first window that has any.
        num_windows: of the plan.
    """
    if options.global_batch is not None:
        return options.global_batch
    packs = num_packs * num_windows
    fitting = 1 << max(0, (packs // 8).bit_length() - 1)
    steps = options.micro_steps
    return max(steps, min(512, fitting) // steps * steps)


def _weights(table: Lengths, asked: PlanOptions, options: ResolvedOptions) -> dict[str, str]:
    """How often samples of each source are seen per epoch, for those that are not seen once."""
    mixture = Mixture.parse(asked.mix, asked.mix_by)
    ratios = sample_ratios(table.manifest)
    if not mixture.weights and not ratios:
        return {}
    from packidx.lengths.survey import survey  # Arrow's functions take 0.1 s to load

    with table.local_files() as paths:
        counted = survey(paths)
    longest = None if options.on_long in ("split", "truncate") else options.longest
    resolved = mixture.resolve(counted.totals(asked.shift, longest), ratios)
    return {
        name: number_text(weight)
        for name, weight in sorted(resolved.items(), key=lambda one: one[0] or "")
        if weight != 1 and name is not None
    }


def _margin(table: Lengths, asked: PlanOptions, progress: Progress) -> Margin | None:
    """The margin that the lengths' calibration asks for; None where another one holds."""
    calibration = table.calibration
    known = calibration is not None and calibration["num_samples"] > 0
    chance = overflow_chance(asked, table.weakest_method, known)
    if chance is None or calibration is None:
        return None
    progress("computing the margin")
    rows = table.read(0, table.num_samples, ["length", "source", "status"])
    usable = np.flatnonzero(rows.is_ok() & (rows.length > 0))
    sources = rows.frame.get_column("source").fill_null("").to_numpy()[usable]
    lengths = rows.length[usable].astype(np.int64)
    margin = calibrated_margin(
        calibration, lengths, sources, asked.capacity, chance, asked.shift, asked.strategy
    )
    default = math.floor(planned_share(asked, table.weakest_method) * asked.capacity)
    return unknown_sources(calibration, margin, default)
