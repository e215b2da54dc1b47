"""Steps and samples of a run, as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .console import (
    count,
    format_table,
    number_of,
    print_facts,
    print_table,
    print_text,
    say,
    shortened,
    visible,
)

if TYPE_CHECKING:
    from packidx.inspect.trace import (
        Ancestor,
        Place,
        SampleTrace,
        SampleTraces,
        StepTrace,
        TracedPack,
        TracedSample,
    )

_ORIGINS = {"given": "as given", "state": "the state's", "plan": "the plan's"}
_LEAST = 8  # letters of a name that are shown


def print_step(traced: StepTrace) -> None:
    """What a step trains on, a line for each sample."""
    of_rank = "" if traced.rank is None else f", rank {traced.rank} of {traced.world_size}"
    title = f"{traced.path}@{traced.snapshot_id[:12]}, step {traced.step}{of_rank}"
    samples = sum(len(pack.samples) for pack in traced.packs)
    packs = f"{number_of(len(traced.packs), 'pack')}, {number_of(samples, 'sample')}"
    facts = {
        "epoch": f"{traced.epoch}, of {number_of(traced.num_steps, 'step')}",
        "seed": str(traced.seed),
        "global batch": _global_batch(traced.global_batch, traced.global_batch_from),
        "trained on": f"{packs}, {number_of(sum(p.length for p in traced.packs), 'token')}",
    }
    if traced.consumed is not None:
        facts["state"] = "this step is done" if traced.consumed else "this step is not done yet"
    if traced.ancestors:
        facts["before"] = (
            f"{number_of(traced.steps_before, 'step')} on {_names(traced.ancestors)}, so this is "
            f"step {traced.steps_before + traced.step} of what is continued"
        )
    print_facts(title, facts)
    _say_missing(traced.ancestors)
    is_dealt = traced.world_size is not None
    header = ["micro-step", "rank"] if is_dealt else ["place"]
    header += ["pack", "position", "sample", "tokens", "source", "key"]
    rows = [row for pack in traced.packs for row in _pack_rows(pack, is_dealt)]
    is_number = [name not in ("source", "key") for name in header]
    print_text(format_table(header, _fitted(header, rows), is_number))


def _pack_rows(pack: TracedPack, is_dealt: bool) -> Iterable[list[str]]:
    """A line for each sample; what is the pack's stands in the first one."""
    head = [str(pack.micro_step), str(pack.rank)] if is_dealt else [str(pack.place_in_step)]
    head.append(str(pack.pack_id))
    for sample in pack.samples:
        yield [*head, *_cells(sample)]
        head = [""] * len(head)


def _cells(sample: TracedSample) -> list[str]:
    ident = str(sample.sample_id) + (f" {sample.pair}" if sample.pair else "")
    tokens = count(sample.length)
    if sample.piece or sample.token_start:
        tokens += f" from {count(sample.token_start)}"
    key = _record(sample.shard, sample.row) if sample.key is None else sample.key
    return [str(sample.position), ident, tokens, visible(sample.source or "–"), visible(key)]


def print_samples(traced: SampleTraces) -> None:
    """Each sample: where it is, or why it is nowhere, and what was trained on before."""
    facts = {"seed": str(traced.seed), "global batch": "unknown: give --global-batch to see steps"}
    if traced.global_batch is not None and traced.global_batch_from is not None:
        facts["global batch"] = _global_batch(traced.global_batch, traced.global_batch_from)
    asked = f"sample {traced.sample_id}" if traced.key is None else f"key {traced.key}"
    print_facts(f"{traced.path}@{traced.snapshot_id[:12]}, {asked}", facts)
    for sample in traced.samples:
        _print_sample(sample, traced.world_size is not None)
    _say_missing(traced.ancestors)


def _print_sample(sample: SampleTrace, is_dealt: bool) -> None:
    source = "" if sample.source is None else f", source {sample.source}"
    key = "" if sample.key is None else f", key {sample.key}"
    pair = "" if sample.pair is None else f", {sample.pair} side of a pair"
    say("")
    say(f"sample {sample.sample_id}{source}{key}{pair}")
    if sample.shard is not None:
        say(f"record {sample.row} of {sample.shard}")
    for before in sample.before:
        say(f"trained on before, in @{before.snapshot_id[:12]}:")
        _print_places(before.places, is_dealt=False)
    if sample.dropped is not None:
        why = sample.dropped.reason
        if sample.dropped.detail is not None:
            why += f": {sample.dropped.detail}"
        say(f"dropped, so in no pack: {why}")
    if sample.places:
        _print_places(sample.places, is_dealt)


def _print_places(places: Sequence[Place], is_dealt: bool) -> None:
    header = ["epoch", "step", "place", *(("micro-step", "rank") if is_dealt else ())]
    header += ["pack", "position", "copy", "piece", "tokens"]
    has_state = any(place.consumed is not None for place in places)
    rows = []
    for place in places:
        step = "left out" if place.left_out else _number(place.step)
        row = [str(place.epoch), step, _number(place.place_in_step)]
        row += [_number(place.micro_step), _number(place.rank)] if is_dealt else []
        row += [str(place.pack_id), str(place.position), str(place.copy), str(place.piece)]
        row.append(f"{place.token_start:,} – {place.token_start + place.length:,}")
        if has_state:
            row.append("yes" if place.consumed else "no")
        rows.append(row)
    print_table([*header, *(("trained on",) if has_state else ())], rows)


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def _global_batch(size: int, origin: str) -> str:
    said = f"{number_of(size, 'pack')}, {_ORIGINS[origin]}"
    if origin == "plan":
        said += "; if PackSampler was given another, give --global-batch"
    return said


def _names(ancestors: Sequence[Ancestor]) -> str:
    return ", ".join(f"@{ancestor.snapshot_id[:12]}" for ancestor in ancestors)


def _say_missing(ancestors: Iterable[Ancestor]) -> None:
    """Which part of the lineage nobody can look into."""
    for ancestor in ancestors:
        if ancestor.missing is not None:
            say(
                f"@{ancestor.snapshot_id[:12]} cannot be read, so what its "
                f"{number_of(ancestor.position, 'trained pack')} held is unknown: "
                f"{ancestor.missing}",
                err=True,
            )


def _record(shard: str | None, row: int | None) -> str:
    if shard is None:
        return "–" if row is None else f"#{row}"
    return f"{os.path.basename(shard)}#{row}"


def _fitted(header: Sequence[str], rows: list[list[str]], width: int = 100) -> list[list[str]]:
    """`rows` with their last two cells, names, shortened where the table is wider than `width`."""
    sizes = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    room = max(2 * _LEAST, width - sum(sizes[:-2]) - 3 * (len(header) - 1) - 2)
    last = max(room // 2, room - sizes[-2])
    first = max(room - last, room - sizes[-1])
    return [[*row[:-2], shortened(row[-2], first), shortened(row[-1], last)] for row in rows]
