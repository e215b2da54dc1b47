"""What of lengths or of a plan has no label token, in words: training on it teaches nothing."""

from __future__ import annotations

from packidx.format.index import IndexManifest


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
