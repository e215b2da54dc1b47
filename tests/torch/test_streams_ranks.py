"""Two processes of a run read one stream: they end together, and refuse to read different ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch.distributed as dist
from stream_records import CAPACITY, OtherWords, Words, write_records
from trained_packs import launch

from packidx.errors import MismatchError
from packidx.torch import StreamingPackedDataset, StreamLoader


def read(rank: int, long: str, short: str, told: str) -> None:
    """One rank: the places that it was given until the stream ended, rank 1 slowly."""
    dist.init_process_group("gloo")
    stream = StreamingPackedDataset(
        [long, short], Words(), CAPACITY, window=30, lanes=4, rank=rank, world_size=2
    )
    places: list[int] = []
    for packs in StreamLoader(stream, collate_fn=list, num_workers=2):
        places += [pack.pack_id for pack in packs]
        time.sleep(0.02 * rank)
    Path(told, f"{rank}.json").write_text(json.dumps(places))
    dist.barrier()
    dist.destroy_process_group()


def refused(rank: int, source: str, told: str) -> None:
    """One rank: what it is told of four mistakes."""
    dist.init_process_group("gloo")
    log = Path(told, "log")
    said = []
    for options in (
        {"rank": 0},  # both
        {"rank": rank, "seed": rank},
        {"rank": rank, "encode": Words() if rank else OtherWords("other words")},
        {"rank": rank, "log": log, "seed": 5},  # which is of another stream: rank 0 alone reads it
    ):
        encode, kept = options.pop("encode", Words()), options.pop("log", None)
        stream = StreamingPackedDataset(
            source, encode, CAPACITY, lanes=4, world_size=2, **{"seed": 1, **options}
        )
        try:
            next(iter(StreamLoader(stream, collate_fn=list, log=kept)))
        except MismatchError as error:
            said.append(str(error))
    Path(told, f"{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_would_read_different_streams_all_stop(tmp_path: Path) -> None:
    write_records(tmp_path / "talk.jsonl", 200)
    source = str(tmp_path / "talk.jsonl")
    stream = StreamingPackedDataset(source, Words(), CAPACITY, lanes=4, seed=1)
    loader = StreamLoader(stream, collate_fn=list, log=tmp_path / "log")
    for _ in loader:
        break
    loader.state_dict()
    launch(refused, 2, source, str(tmp_path))
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert zero == one
    for said, words in zip(
        zero, ("rank 0 (2 processes)", "the stream", "fingerprint", "is the log of"), strict=True
    ):
        assert words in said


def test_two_ranks_end_together_however_slow_one_is(tmp_path: Path) -> None:
    for name, number in (("long", 300), ("short", 41)):
        write_records(tmp_path / f"{name}.jsonl", number)
    files = [str(tmp_path / "long.jsonl"), str(tmp_path / "short.jsonl")]
    launch(read, 2, *files, str(tmp_path))
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert len(zero) == len(one) > 10
    assert sorted(zero + one) == list(range(2 * len(zero)))
