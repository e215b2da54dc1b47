"""Two processes of a run read a stream whose end neither of them knows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch.distributed as dist
from stream_records import CAPACITY, Words, write_records
from trained_packs import launch

from packidx.torch import StreamingPackedDataset, StreamLoader


def read(rank: int, long: str, short: str, told: str) -> None:
    """One rank: the places that it was given until the stream ended, rank 1 slowly."""
    dist.init_process_group("gloo")
    stream = StreamingPackedDataset(
        [long, short], Words(), CAPACITY, rule="best-fit:4", lanes=4, rank=rank, world_size=2
    )
    places: list[int] = []
    for packs in StreamLoader(stream, collate_fn=list, num_workers=2):
        places += [pack.pack_id for pack in packs]
        time.sleep(0.02 * rank)
    Path(told, f"{rank}.json").write_text(json.dumps(places))
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_end_together_however_slow_one_is(tmp_path: Path) -> None:
    for name, number in (("long", 300), ("short", 41)):
        write_records(tmp_path / f"{name}.jsonl", number)
    files = [str(tmp_path / "long.jsonl"), str(tmp_path / "short.jsonl")]
    launch(read, 2, *files, str(tmp_path))
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert len(zero) == len(one) > 10
    assert sorted(zero + one) == list(range(2 * len(zero)))
