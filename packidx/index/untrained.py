"""What of lengths or of a plan has no label token, in words: training on it teaches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def without_labels(name: str, num_samples: int) -> str:
    """A sentence about a source whose samples are known to have no label token."""
    return (
        f"source {name} has no label token in any of its {num_samples:,} samples, so nothing of it "
        "is trained on: check the roles of its turns and the label policy, or leave it out"
    )


def untrained_sources(manifest: Mapping[str, Any]) -> dict[str, int]:
    """The sources of a snapshot that are known to have no label token, and their packed samples."""
    packed = {
        one["name"]: one["num_samples"] - one["num_dropped"]
        for one in manifest["sources"]
        if one.get("num_label_tokens") == 0
    }
    return {name: number for name, number in packed.items() if number}


def untrained_packs(manifest: Mapping[str, Any]) -> int:
    """Packs of a snapshot that are known to have no label token."""
    return int(manifest["result"].get("num_packs_without_labels", 0))


def untrained(manifest: Mapping[str, Any]) -> list[str]:
    """A sentence for every such source of a snapshot, and one for its packs."""
    told = [without_labels(name, number) for name, number in untrained_sources(manifest).items()]
    if packs := untrained_packs(manifest):
        total = manifest["result"]["num_packs"]
        told.append(
            f"{packs:,} of {total:,} packs hold no label token, and a step on such packs alone "
            "trains on nothing"
        )
    return told
