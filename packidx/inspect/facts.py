"""A plan in words: what `plan` and `stats` say of a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from packidx.plan.options import command_words
from packidx.words import format_count, number_of

if TYPE_CHECKING:
    from packidx.format.index import IndexManifest, Options, Result

_REJECTED = "rejected"
_BOUNDS = {"volume": "⌈Σ/C⌉", "L2": "Martello–Toth L2", "LP": "linear program"}


def format_counts(numbers: Iterable[tuple[str, int]]) -> str:
    """Numbers and what they are of: ``20 exact, 3 heuristic``."""
    return ", ".join(f"{number:,} {name}" for name, number in numbers)


def result_facts(snapshot: IndexManifest) -> dict[str, str]:
    """A manifest's result and options in words; the same for `plan` and `stats`."""
    result, options, lengths = snapshot.result, snapshot.options, snapshot.lengths
    proofs = ", ".join(_BOUNDS.get(name, name) for name in result.bound.split(", "))
    taken = result.strategies
    rules = format_counts(taken.items()) if len(taken) > 1 else "".join(taken)
    num_in, num_packed = map(format_count, (lengths.num_samples, result.num_samples))
    facts = {
        "samples": f"{num_in} in, {num_packed} packed",
        "tokens": format_count(result.num_tokens),
        "packs": f"{format_count(result.num_packs)} of {number_of(options.capacity, 'token')}",
        "fill": f"{100 * result.fill:.3f} %",
        "lower bound": f"{number_of(result.lower_bound, 'pack')} ({proofs})",
        "gap": f"{number_of(result.gap, 'pack')} ({result.gap_percent:.3f} %)",
        "strategy": ": ".join(dict.fromkeys([options.strategy, rules])),
        "schedule": _describe_schedule(result),
        "steps": _describe_steps(snapshot),
        "lost": _describe_losses(snapshot),
    }
    whys = {"copies": options.weights, "pieces of long samples": options.on_long == "split"}
    placed = f"{number_of(result.num_pieces, 'time')}: {', '.join(w for w in whys if whys[w])}"
    cut = f"{number_of(result.num_tokens_cut, 'token')} of long samples"
    optional = {
        "left out": _describe_reasons(result, by_choice=True),
        "mix": _describe_mix(options),
        "options": asked_for(options),
        "continues": _describe_continued(options),
        "aligned": _describe_alignment(snapshot),
        "windows": format_count(len(snapshot.windows)) if len(snapshot.windows) > 1 else None,
        "placed": placed if result.num_pieces != result.num_samples else None,
        "cut off": cut if result.num_tokens_cut else None,
        "margin" if options.margin else "planned": _describe_target(snapshot),
    }
    facts |= {name: said for name, said in optional.items() if said}
    how = format_counts(lengths.methods.items())
    by = f", by {lengths.encoder.name}" if lengths.encoder else ""
    facts["lengths"] = f"{how}{by}" if how else "taken as given"
    compared = None if lengths.encoder is None else lengths.encoder.compared
    stated = None if compared is None else compared.to_json()
    return facts | verified_facts(stated, lengths.methods)


def verified_facts(
    compared: Mapping[str, Any] | None, methods: Mapping[str, int]
) -> dict[str, str]:
    """Return one line on whether lengths were compared with the real processor, by its label.

    Args:
        compared: ``encoder.compared`` of a lengths manifest; None without a processor.
        methods: rows by how they were counted.
    """
    if compared is None:
        return {}
    if compared["with"] is None:
        what = "by the family's rules" if methods.get("exact") else "by guess"
        return {"not verified": f"{compared['reason']}; lengths computed {what}"}
    rare, num_built = compared.get("rare", {}), compared.get("num_built", 0)
    built = compared.get("built", {}) | {kind: why for kind, why in rare.items() if why}
    num_kinds = number_of(len({*compared.get("computed", ()), *built, *rare}), "kind")
    num = sum(methods.values()) - num_built
    said = f"{number_of(num, 'length')} computed ({num_kinds} compared with {compared['with']})"
    if num_built:
        kind, difference = next(iter(built.items()), ("", ""))
        said += f", {format_count(num_built)} built" + (f" ({kind}: {difference})" if kind else "")
    return {"verified": said}


def _describe_alignment(snapshot: IndexManifest) -> str | None:
    """Say what it took that no micro-step mixes packs with media and packs without."""
    if not snapshot.options.align_media:
        return None
    divided = number_of(snapshot.result.num_packs_divided, "pack")
    return f"no micro-step mixes packs with and without media; divided for it: {divided}"


def _describe_schedule(result: Result) -> str:
    """Name the schedule and the ranks it has power for: a rank has one pack of each micro-step."""
    if result.schedule == "random":
        return "random"
    if result.order_kept is not None:
        return (
            f"{result.schedule}: kept to {result.order_kept:.3f} (correlation of samples' ranks and"
            " places; 1 is the column's own order)"
        )
    chunk = result.schedule_chunk
    number, ranks = result.schedule_block // chunk, f"for up to {number_of(chunk, 'rank')}"
    if number > 1:
        parts = f"{format_count(number)} micro-steps of {number_of(chunk, 'pack')}"
        return f"{result.schedule}: {parts} per step, {ranks}"
    one = f"{result.schedule}: one micro-step per step, {ranks}"
    return f"{one}; steps are of packs of one cost, not of the whole mix"


def _describe_steps(snapshot: IndexManifest) -> str:
    """Whole optimizer steps of an epoch at the planned global batch, and what is left over."""
    from packidx.index.order import packs_per_step

    size, packs = packs_per_step(snapshot), snapshot.result.num_packs
    if size is None:
        return "as the trainer's global batch says; a random order has no steps of its own"
    steps, left = divmod(packs, size)
    if not steps:
        return f"none: {number_of(size, 'pack')} per step, but {format_count(packs)} planned"
    said = f"{format_count(steps)} of {number_of(size, 'pack')} each per epoch"
    if left:
        said += f"; left over, others in each epoch: {number_of(left, 'pack')}"
        said += f" ({100 * left / packs:.1f} %)"
    return said


def _describe_losses(snapshot: IndexManifest) -> str:
    """Samples that could not be packed, and their share of the tokens that were to be.

    Rejected records, whose tokens are unknown, have a share of the records.
    """
    result, num_in = snapshot.result, snapshot.lengths.num_samples
    reasons = _describe_reasons(result, by_choice=False)
    rejected, tokens = result.dropped.get(_REJECTED, 0), result.num_tokens_lost
    if not reasons and not rejected and not tokens:
        return "0"
    eligible = format_count(result.num_tokens_eligible)
    of = f"{result.lost_percent:.1f} % of the {eligible} to be packed"
    once = ", each sample counted once" if snapshot.options.weights else ""
    said = f"{number_of(tokens, 'token')}, {of}{once}" + (f" ({reasons})" if reasons else "")
    if rejected:
        said += f"; rejected: {number_of(rejected, 'record')} ({100 * rejected / num_in:.1f} %)"
    return said


def _describe_reasons(result: Result, *, by_choice: bool) -> str:
    """Dropped samples by reason, but for the rejected: those left out by choice, or the others."""
    from packidx.format.terms import BY_CHOICE

    dropped = result.dropped.items()
    return format_counts(
        p for p in dropped if p[0] != _REJECTED and (p[0] in BY_CHOICE) == by_choice
    )


# Options that say themselves in other lines.
_SAID = {"capacity", "strategy", "schedule", "margin", "global_batch", "cost", "mix"}


def _describe_mix(options: Options) -> str:
    """Say how often samples are seen per epoch: a plan does not keep the given shares."""
    weights = ", ".join(f"{name} × {weight}" for name, weight in options.weights.items())
    return f"{weights} per epoch" if weights else ""


def describe_origin(options: Options) -> str:
    """All options of a plan that are not the usual ones, and what it goes on from, in a line."""
    mix, continued = _describe_mix(options), _describe_continued(options)
    words = [asked_for(options, _SAID - {"schedule", "global_batch"})]
    words += [mix and f"mix {mix}", continued and f"--continue {continued}"]
    return " ".join(filter(None, words))


def _describe_continued(options: Options) -> str:
    last = options.continues
    return f"@{last.snapshot_id[:12]} after {number_of(last.position, 'pack')}" if last else ""


def asked_for(options: Options, said: Set[str] = _SAID) -> str:
    """A plan's unusual options as they are given to `packidx plan`, but for those `said` before."""
    from packidx.plan.resolved import changed_options

    asked = {name: value for name, value in changed_options(options).items() if name not in said}
    return " ".join([*command_words(asked), *(["--exclude …"] if options.excluded else [])])


def _describe_target(snapshot: IndexManifest) -> str | None:
    """Return what packs are planned for and why; None if they may be filled."""
    options = snapshot.options
    if options.planned_capacity == options.capacity:
        return None
    said = f"packs of at most {options.planned_capacity:,} tokens are planned"
    if options.margin:
        said = f"{100 * options.margin:.2f} %: {said}"
        if how := format_counts(p for p in snapshot.lengths.methods.items() if p[0] != "exact"):
            said += f" ({how} lengths)"
    return said
