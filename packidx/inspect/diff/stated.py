"""What two plans' manifests and packs say: options, lengths, counts, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from packidx.format.index import IndexManifest
from packidx.index.cost import pack_cost
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.diff.results import Both
from packidx.inspect.stats.idle import RANKS, ScheduledPacks, first_epoch, ranks_stats

_COUNTS = (
    "num_packs",
    "num_samples",
    "num_pieces",
    "num_tokens",
    "num_tokens_cut",
    "num_dropped",
    "num_tokens_lost",
    "lost_percent",
    "fill",
    "lower_bound",
    "gap",
    "gap_percent",
)


def options(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Options that differ; those within others by ``cost_model.vit_linear``."""
    return _differences(_flat(a.options.to_json()), _flat(b.options.to_json()))


def lengths(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """What differs in the lengths that were planned."""
    differing = _differences(_lengths(a), _lengths(b))
    if a.lengths.encoder is None or b.lengths.encoder is None:  # then all of one's would be told
        differing = {k: v for k, v in differing.items() if not k.startswith("settings.")}
    return differing


def _lengths(snapshot: IndexManifest) -> dict[str, Any]:
    planned, encoder = snapshot.lengths, snapshot.lengths.encoder
    told: dict[str, Any] = {
        "fingerprint": planned.fingerprint,
        "num_samples": planned.num_samples,
        "transform": None if planned.transform is None else planned.transform.fingerprint,
        "encoder": None if encoder is None else encoder.name,
        "labels": None if encoder is None else encoder.labels,
        "encoder.fingerprint": None if encoder is None else encoder.fingerprint,
    }
    settings = {} if encoder is None else encoder.settings or {}
    told |= {f"methods.{name}": number for name, number in planned.methods.items()}
    return told | {f"settings.{name}": value for name, value in settings.items()}


def counts(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Numbers of both plans by their names in the manifest."""
    one, two = a.result, b.result
    numbers = {name: Both(getattr(one, name), getattr(two, name)) for name in _COUNTS}
    known = {"num_samples_in": Both(a.lengths.num_samples, b.lengths.num_samples)}
    return known | numbers | {"packs_per_step": Both(packs_per_step(a), packs_per_step(b))}


def dropped(a: IndexManifest, b: IndexManifest) -> dict[str, Both]:
    """Samples by the reason for which they are in no pack."""
    one, two = a.result.dropped, b.result.dropped
    return {name: Both(one.get(name, 0), two.get(name, 0)) for name in _union(one, two)}


def costs(a: Index, b: Index) -> tuple[Both, dict[str, Both]]:
    """Cost of the first epoch, and useful share of the time by number of ranks, by A's weights."""
    weights = a.snapshot.options.cost_model.to_json()
    of_a, of_b = (_scheduled(index, weights) for index in (a, b))
    ranks = [
        ranks_stats(packs, packs_per_step(index.snapshot) or 1)
        for index, packs in ((a, of_a), (b, of_b))
    ]
    useful = {
        str(number): Both(
            *(None if (o := each["planned"]) is None else o["useful"] for each in two)
        )
        for number, *two in zip(RANKS, *ranks, strict=True)
    }
    totals = (float(packs.llm.sum() + packs.vit.sum()) for packs in (of_a, of_b))
    return Both(*totals), useful


def _scheduled(index: Index, weights: Mapping[str, Any]) -> ScheduledPacks:
    columns, _, _ = first_epoch(index)
    return ScheduledPacks(*pack_cost(weights, columns), columns["length"])


def _flat(stated: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in stated.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return flat


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Both]:
    both = {name: Both(one.get(name), two.get(name)) for name in _union(one, two)}
    return {name: values for name, values in both.items() if values.a != values.b}


def _union(one: Iterable[str], two: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*one, *two]))
