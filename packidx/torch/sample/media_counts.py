"""How many images and videos the samples of a pack brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packidx.index import Pack
from packidx.torch.sample.encoded import Encoded
from packidx.torch.sample.media_rows import Planned, grids_in

COUNTED = {"image": "num_images", "video": "num_videos"}
"""Kind of media → its number in a pack, which the packs table has under the same name."""


def media_counts(
    samples: Sequence[Encoded],
    pack: Pack,
    happened: Sequence[Mapping[str, Any]] = (),
) -> dict[str, int]:
    """``num_images`` and ``num_videos`` of a pack, each as far as it is known.

    Args:
        samples: as they were read, holes among them; without the dummy image.
        pack: as planned, without samples that were left out.
        happened: the events of reading it.
    """
    # The plan says nothing of a sample that is another and was taken all the same.
    others = {
        event["position"]
        for event in happened
        if event["kind"] == "mismatch" and event["done"] != "hole"
    }
    counts = {}
    for kind, name in COUNTED.items():
        each = [
            _count(kind, sample, None if planned.position in others else planned.media)
            for sample, planned in zip(samples, pack.samples, strict=True)
        ]
        known = [count for count in each if count is not None]
        total = sum(known) if len(known) == len(each) else None
        if total is None and not others and len(pack.samples) == pack.stats["num_samples"]:
            total = pack.stats[name]
        if total is not None:
            counts[name] = int(total)
    return counts


def _count(kind: str, sample: Encoded, planned: Planned | None) -> int | None:
    """Media of a kind in one sample or piece; None where neither plan nor tensors say it."""
    if not sample.media:
        return 0
    # A medium whose place is unknown is planned in every piece of its sample.
    if planned is not None and all(medium["at"] is not None for medium in planned):
        return sum(bool(medium["kind"] == kind) for medium in planned)
    grids = grids_in(sample.media, kind)
    if grids is None:
        # Models with grids have tensors for each kind; others may take frames for images.
        has_grids = any(grids_in(sample.media, other) is not None for other in COUNTED)
        return 0 if has_grids else None
    if kind == "video" and all(t == 1 for t, _, _ in grids):
        return None  # some models want a row for each frame
    return len(grids)
