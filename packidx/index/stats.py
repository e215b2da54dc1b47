"""Numbers about a snapshot's packs."""

from __future__ import annotations

import numpy as np

from packidx.index.reader import Index

_COLUMNS = (
    "num_samples",
    "length",
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "num_images",
    "vision_patches",
    "attention_cost",
)


def pack_stats(index: Index) -> dict[str, dict[str, float]]:
    """Minimum, median, 95th percentile, maximum and mean per pack, of every known column."""
    table = index.packs(_COLUMNS)
    out = {}
    for name in _COLUMNS:
        values = table[name].drop_null().to_numpy()
        if len(values) < table.num_rows or not len(values) or not values.any():
            continue
        quantiles = np.quantile(values, [0, 0.5, 0.95, 1], method="nearest")
        numbers = [*(float(one) for one in quantiles), float(values.mean())]
        out[name] = dict(zip(("min", "p50", "p95", "max", "mean"), numbers, strict=True))
    return out
