"""Write tests/format/vectors: small indexes, and what a reader of FORMAT.md must make of them.

python tools/vectors.py tests/format/vectors
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packidx import open_index, plan_packs
from packidx.torch import PackSampler

RULES: dict[str, dict[str, Any]] = {
    "one-window": {"global_batch": 8, "micro_steps": 2},
    "windows": {"window": 70, "global_batch": 8, "mix": ("a=2",)},
    "many-steps": {"window": 74, "global_batch": 16, "micro_steps": 4},
    "split": {"window": 90, "on_long": "split", "schedule": "random"},
}
RANKS = (1, 2, 4, 8)
GLOBAL_BATCH = 8


def make(folder: Path) -> None:
    """Write the indexes, and beside each NAME.json, what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 400, 220)
    table = pa.table({"length": lengths, "source": np.where(np.arange(220) < 60, "a", "b")})
    pq.write_table(table, folder / "lengths.parquet")
    for name, rules in RULES.items():
        plan_packs(folder / "lengths.parquet", folder / name, capacity=300, **rules)
        (folder / f"{name}.json").write_text(json.dumps(expected(folder / name)) + "\n")
    (folder / "lengths.parquet").unlink()
    for lock in folder.rglob(".lock"):
        lock.unlink()


def expected(path: Path) -> dict[str, Any]:
    """The samples of each pack (sample_id, copy, piece, token_start, length), and the packs of each
    rank of 1, 2, 4 and 8 in two epochs, as `Index` and `PackSampler` have them."""
    index = open_index(path)
    names = ("sample_id", "copy", "piece", "token_start", "length")
    packs = [
        [[getattr(sample, name) for name in names] for sample in index.pack(number).samples]
        for number in range(index.num_packs)
    ]
    orders = [
        {
            "epoch": epoch,
            "world_size": world_size,
            "ranks": [
                list(
                    PackSampler(
                        index,
                        rank=rank,
                        world_size=world_size,
                        global_batch=GLOBAL_BATCH,
                        epoch=epoch,
                        seed=5,
                    )
                )
                for rank in range(world_size)
            ],
        }
        for epoch in (0, 1)
        for world_size in RANKS
    ]
    order = {"seed": 5, "global_batch": GLOBAL_BATCH, "orders": orders}
    return json.loads(json.dumps({"snapshot_id": index.id, "packs": packs, **order}))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
