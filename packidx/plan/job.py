"""What decides one plan, all of it known before its first window is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from packidx.errors import OptionError
from packidx.format.index import Consumed, Options
from packidx.format.manifest import setting_differences
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.plan.options import PlanOptions, number_text
from packidx.plan.resolved import with_defaults
from packidx.plan.select.consumed import continued_rules, lineage
from packidx.plan.select.eligible import Rules, read_exclusion
from packidx.plan.select.mixture import Mixture, sample_ratios
from packidx.plan.stream import is_stream, resolved
from packidx.plan.windows import WindowRange, shard_ends, windows_of


@dataclass(frozen=True, slots=True)
class PlanJob:
    """All that decides one plan of the lengths in `table`, into the index at `output`.

    Attributes:
        append: the snapshot whose windows are taken over.
        todo: the windows that are not taken over.
        recipe: the text of the recipe that asks for the plan.
    """

    table: Lengths
    output: str
    options: Options
    rules: Rules
    append: Index | None
    windows: Sequence[WindowRange]
    todo: Sequence[WindowRange]
    recipe: str | None = None

    @property
    def block_before(self) -> int | None:
        """Packs of an optimizer step in the snapshot that is appended to."""
        return None if self.append is None else self.append.snapshot.result.schedule_block

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
    append: Index | None,
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
    continues: tuple[Consumed, ...] = ()
    if resume is not None:
        progress("reading what training has had")
        rules, continues = continued_rules(table, *resume, rules), lineage(*resume)
        excluded = excluded or resume[0].snapshot.options.excluded
    rows_of_window = asked.rows_of_window
    has_shards = bool(shard_ends(table, 0))
    options = replace(
        options,
        window_shards=rows_of_window if has_shards else None,
        window_samples=None if has_shards else rows_of_window,
        weights=_weights(table, asked, options),
        excluded=excluded,
        continues=continues,
        appends_to=None if append is None else append.id,
    )
    taken = [] if append is None else _taken_windows(table, options, append)
    memory = asked.memory_bytes() if rows_of_window is None else None
    windows = windows_of(table, options, taken, memory)
    if is_stream(options):
        options = resolved(options, asked.lanes, table, len(windows))
    return PlanJob(table, output, options, rules, append, windows, windows[len(taken) :])


def _taken_windows(table: Lengths, options: Options, append: Index) -> list[WindowRange]:
    """The windows of `append`, if these lengths and options go on where it ends, with new samples.

    Raises:
        OptionError: they do not; the message says in what.
    """
    planned = f"{append.path}@{append.id[:12]}"
    mine, theirs = options.to_json(), append.snapshot.options.to_json()
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        if name != "appends_to" and mine.get(name) != theirs.get(name):
            raise OptionError(
                f"append: {name} is {mine.get(name)!r}, in {planned} it is {theirs.get(name)!r}: "
                "plan with the same options, or without --append"
            )
    old, new = append.snapshot.shards, table.shards
    rows = append.snapshot.lengths.num_samples
    if not old or sum(shard.rows for shard in old) != rows:
        raise OptionError(
            f"append: {planned} does not say which shards its samples are of: estimate the lengths "
            "with packidx"
        )
    for number, shard in enumerate(old):
        if number >= len(new) or any(
            getattr(new[number], name) != getattr(shard, name)
            for name in ("fingerprint", "rows", "source")
        ):
            raise OptionError(
                f"append: shard {number} of {planned} is {shard.uri}, and of {table.uri} "
                f"{new[number].uri if number < len(new) else 'nothing'}: new shards must follow "
                "those that are planned"
            )
    was, now = append.snapshot.lengths.encoder, table.encoder
    if (was and was.fingerprint) != (now and now.fingerprint):
        differences = []
        if was and now and was.settings and now.settings:
            differences = setting_differences(was.settings, now.settings, "planned", "appended")
        said = f" ({', '.join(differences)})" if differences else ""
        raise OptionError(
            f"append: {table.uri} was counted by another encoder than {planned}{said}: plan anew"
        )
    if table.num_samples == rows:
        raise OptionError(
            f"append: {table.uri} has no sample after the {rows:,} that {planned} has planned: "
            "estimate it with the new shards first"
        )
    return [
        WindowRange(placed.number, placed.first_row, placed.first_row + placed.window.num_rows)
        for placed in append.snapshot.placed
    ]


def _weights(table: Lengths, asked: PlanOptions, options: Options) -> dict[str, str]:
    """Return how often samples of each source are seen per epoch, for those that are not seen
    once."""
    mixture = Mixture.parse(asked.mix)
    ratios = sample_ratios(table.manifest)
    if not mixture.weights and not ratios:
        return {}
    from packidx.lengths.survey import source_totals  # Arrow's functions take 0.1 s to load

    cuts = options.on_long in ("split", "truncate")
    totals = source_totals(table, asked.shift, options.longest, cuts_text=cuts)
    resolved = mixture.resolve(totals, ratios)
    return {
        name: number_text(weight)
        for name, weight in sorted(resolved.items(), key=lambda pair: pair[0] or "")
        if weight != 1 and name is not None
    }
