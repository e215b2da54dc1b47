"""What decides one plan, all of it known before its first window is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from packidx.errors import OptionError
from packidx.format.index import Consumed, Options
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.pack.streams import WINDOW
from packidx.plan.options import PlanOptions, number_text
from packidx.plan.resolved import with_defaults
from packidx.plan.select.consumed import continued
from packidx.plan.select.eligible import Rules, read_exclusion
from packidx.plan.select.mixture import Mixture, sample_ratios
from packidx.plan.stream import check_stream
from packidx.plan.windows import WindowRange, shard_ends, windows_of


@dataclass(frozen=True, slots=True)
class PlanJob:
    """All that decides one plan of the lengths in `table`, into the index at `output`.

    Attributes:
        recipe: the text of the recipe that asks for the plan.
    """

    table: Lengths
    output: str
    options: Options
    rules: Rules
    windows: Sequence[WindowRange]
    recipe: str | None = None

    def block(self, num_packs: int) -> int:
        """Packs of an optimizer step: as asked, else 512 or, of few packs, a smaller power of two;
        `num_packs` is of the first window that has some."""
        if self.options.global_batch is not None:
            return self.options.global_batch
        fitting = 1 << max(0, (num_packs * len(self.windows) // 8).bit_length() - 1)
        steps = self.options.micro_steps
        return max(steps, min(512, fitting) // steps * steps)


def prepare(
    table: Lengths,
    output: str,
    asked: PlanOptions,
    resume: tuple[Index, Mapping[str, Any]] | None,
    progress: Callable[[str], None],
) -> PlanJob:
    """Return what decides the plan of `table` under the options `asked`; arguments as of
    `plan_packs`.

    Raises:
        OptionError: an option has no meaning for these lengths.
        SourceError, FormatError, MismatchError: the lengths or a snapshot cannot be used.
    """
    options = with_defaults(asked, table.weakest_method)
    rules = Rules(None if asked.exclude is None else read_exclusion(asked.exclude))
    excluded = rules.exclude.fingerprint if rules.exclude else None
    continues: Consumed | None = None
    if resume is not None:
        progress("reading what training has had")
        rules, continues = continued(table, *resume, rules)
        excluded = excluded or resume[0].snapshot.options.excluded
    rows_of_window = asked.rows_of_window
    has_shards = bool(shard_ends(table))
    options = replace(
        options,
        window_shards=rows_of_window if has_shards else None,
        window_samples=None if has_shards else rows_of_window,
        weights=_weights(table, asked, options),
        excluded=excluded,
        continues=continues,
    )
    memory = asked.memory_bytes() if rows_of_window is None else None
    if options.lanes is None:
        windows = windows_of(table, options, memory)
    else:
        check_stream(options, table)
        windows = [WindowRange(0, 0, table.num_samples)]
        size = rows_of_window or WINDOW
        options = replace(options, window_shards=None, window_samples=size, schedule="random")
    return PlanJob(table, output, options, rules, windows)


def _weights(table: Lengths, asked: PlanOptions, options: Options) -> dict[str, str]:
    """Return how often samples of each source are seen per epoch, for those that are not seen
    once."""
    mixture = Mixture.parse(asked.mix)
    ratios = sample_ratios(table.manifest)
    if not mixture.weights and not ratios:
        return {}
    from packidx.lengths.survey import source_totals  # Arrow's functions take 0.1 s to load

    cuts = options.on_long in ("split", "truncate")
    totals = source_totals(table, options.longest, cuts_text=cuts)
    resolved = mixture.resolve(totals, ratios)
    transform = None if table.manifest is None else table.manifest.transform
    for name, weight in resolved.items():
        if weight > 1 and transform is not None and transform.is_random:
            raise OptionError(
                f"{name} has weight {number_text(weight)}, and the transform {transform.name} makes"
                " different records of two copies of one: their lengths are not known. Give weights"
                " of at most 1, or write the transformed records to files and estimate these."
            )
    return {
        name: number_text(weight)
        for name, weight in sorted(resolved.items(), key=lambda pair: pair[0] or "")
        if weight != 1 and name is not None
    }
