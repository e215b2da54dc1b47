"""Descriptions of a snapshot, in a line or a sentence."""

from __future__ import annotations

from packidx.format.index import IndexManifest
from packidx.index.order import packs_per_step
from packidx.words import number_of

_MOST = 50  # percent of the tokens


def short_name(path: str, snapshot: IndexManifest) -> str:
    """``index@84b471c9198f, 725 packs``."""
    return f"{path}@{snapshot.snapshot_id[:12]}, {number_of(snapshot.result.num_packs, 'pack')}"


def plan_line(path: str, snapshot: IndexManifest) -> str:
    """``index@84b471c9198f, 725 packs of 8,192 tokens, 99.93 % full, 67 samples in no pack``."""
    result, capacity = snapshot.result, number_of(snapshot.options.capacity, "token")
    dropped = f"{number_of(result.num_dropped, 'sample')} in no pack"
    return f"{short_name(path, snapshot)} of {capacity}, {100 * result.fill:.2f} % full, {dropped}"


def without_labels(name: str, num_samples: int) -> str:
    """A sentence about a source whose samples are known to have no label token."""
    return (
        f"source {name} has no label token in any of its {num_samples:,} samples, so training "
        "learns nothing from it: check the roles of its turns and the label policy, or leave it out"
    )


def untrained_sources(snapshot: IndexManifest) -> dict[str, int]:
    """The sources of a snapshot that are known to have no label token, and their packed samples."""
    packed = {
        source.name: source.num_samples - source.num_dropped
        for source in snapshot.sources
        if source.num_label_tokens == 0
    }
    return {name: number for name, number in packed.items() if number}


def too_large_step(snapshot: IndexManifest) -> str | None:
    """A sentence about a planned global batch of which an epoch has no step."""
    size, packs = packs_per_step(snapshot), snapshot.result.num_packs
    if size is None or packs >= size:
        return None
    said = f"an epoch has {number_of(packs, 'pack')}, fewer than the {size:,} of one step"
    return f"{said}: plan more data, or smaller steps"


def describe_waste(snapshot: IndexManifest) -> list[str]:
    """A sentence for each reason for which a plan trains on little or nothing."""
    sentences, lost = describe_untrained(snapshot), snapshot.result.lost_percent
    if snapshot.options.global_batch and (said := too_large_step(snapshot)):
        sentences.append(said)
    if lost > _MOST:
        sentences.append(f"{lost:.1f} % of the tokens to be packed are in no pack")
    return sentences


def describe_untrained(snapshot: IndexManifest) -> list[str]:
    """A sentence for every such source of a snapshot, and one for its packs."""
    sources = untrained_sources(snapshot).items()
    sentences = [without_labels(name, number) for name, number in sources]
    if packs := snapshot.result.num_packs_without_labels:
        sentences.append(
            f"{packs:,} of {snapshot.result.num_packs:,} packs have no label token; a step "
            "that has only such packs trains on nothing"
        )
    return sentences
