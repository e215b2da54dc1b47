"""How objects tell what they are, in a line and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import NamedTuple

from packidx.format.index import IndexManifest
from packidx.index.order import Epochs, packs_per_step


class Description(NamedTuple):
    """What an object is."""

    line: str
    """In a few words, without the name of its class."""
    facts: Mapping[str, str]
    """More of it, for a notebook."""


class Described:
    """An object with `_description`, for which no file is read."""

    __slots__ = ()

    def _description(self) -> Description:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_of(self).line})"

    def _repr_html_(self) -> str:
        """A small table, in which nothing of the data is markup."""
        line, facts = _of(self)
        title = html.escape(f"{type(self).__name__} {line}")
        rows = "".join(
            f'<tr><th style="text-align: left">{html.escape(name)}</th>'
            f'<td style="text-align: left">{html.escape(value)}</td></tr>'
            for name, value in facts.items()
        )
        caption = f'<caption style="text-align: left">{title}</caption>'
        return f"<table>{caption}<tbody>{rows}</tbody></table>"


def _of(described: Described) -> Description:
    try:
        return described._description()
    except Exception:  # an object that was not made to its end is looked at in a debugger, too
        return Description("not open", {})


def short_name(path: str, snapshot: IndexManifest) -> str:
    """``index@84b471c9198f, 725 packs``."""
    return f"{path}@{snapshot.snapshot_id[:12]}, {_number(snapshot.result.num_packs, 'pack')}"


def plan_line(path: str, snapshot: IndexManifest) -> str:
    """``index@84b471c9198f, 725 packs of 8,192 tokens, 99.93 % full, 67 samples in no pack``."""
    result, capacity = snapshot.result, _number(snapshot.options.capacity, "token")
    dropped = f"{_number(result.num_dropped, 'sample')} in no pack"
    return f"{short_name(path, snapshot)} of {capacity}, {100 * result.fill:.2f} % full, {dropped}"


def plan_facts(snapshot: IndexManifest) -> dict[str, str]:
    """What a plan is, by its manifest."""
    result, options, lengths = snapshot.result, snapshot.options, snapshot.lengths
    reasons = [f"{name} {number:,}" for name, number in result.dropped.items() if number]
    of = f" of {lengths.num_samples:,}, {_percent(result.num_dropped, lengths.num_samples)}"
    why = f": {', '.join(reasons)}" if reasons else ""
    by = f", by {lengths.encoder.name}" if lengths.encoder and lengths.encoder.name else ""
    methods = [f"{number:,} {name}" for name, number in lengths.methods.items() if number]
    sources = f" of {_number(len(snapshot.sources), 'source')}" if snapshot.sources else ""
    return {
        "capacity": _number(options.capacity, "token"),
        "packs": f"{result.num_packs:,}, {100 * result.fill:.2f} % full",
        "samples": f"{result.num_samples:,}{sources}",
        "dropped": f"{_number(result.num_dropped, 'sample')}{of}{why}",
        "lengths": f"{', '.join(methods) or 'taken as given'}{by}",
        "steps": _steps(snapshot),
        "snapshot": snapshot.snapshot_id,
        "planned of": lengths.uri,
        "created": snapshot.created,
    }


def _steps(snapshot: IndexManifest) -> str:
    epochs, size = Epochs.of(snapshot), packs_per_step(snapshot)
    if size is None:
        return "as the trainer's global batch says"
    each = {epochs.num_packs(epoch) // size for epoch in range(len(epochs.variants))}
    numbers = " to ".join(f"{number:,}" for number in sorted({min(each), max(each)}))
    return f"{numbers} of {_number(size, 'pack')} per epoch"


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total if total else 0:.2f} %"


def without_labels(name: str, num_samples: int) -> str:
    """A sentence about a source whose samples are known to have no label token."""
    return (
        f"source {name} has no label token in any of its {num_samples:,} samples, so nothing of it "
        "is trained on: check the roles of its turns and the label policy, or leave it out"
    )


def untrained_sources(snapshot: IndexManifest) -> dict[str, int]:
    """The sources of a snapshot that are known to have no label token, and their packed samples."""
    packed = {
        source.name: source.num_samples - source.num_dropped
        for source in snapshot.sources
        if source.num_label_tokens == 0
    }
    return {name: number for name, number in packed.items() if number}


def untrained(snapshot: IndexManifest) -> list[str]:
    """A sentence for every such source of a snapshot, and one for its packs."""
    told = [without_labels(name, number) for name, number in untrained_sources(snapshot).items()]
    if packs := snapshot.result.num_packs_without_labels:
        told.append(
            f"{packs:,} of {snapshot.result.num_packs:,} packs hold no label token, and a step on "
            "such packs alone trains on nothing"
        )
    return told
