"""From files of every kind through lengths and index back to the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_files import tar_of

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import ChangedSource
from packidx.records.fetch import Fetcher


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_another_record_in_the_place(tmp_path: Path, kind: str) -> None:
    """A shard written anew with the records of another order: the same size, other keys."""

    def rewrite(order: list[int]) -> None:
        turns = [[{"role": "user", "content": f"Number {n}?"}] for n in order]
        records = [{"id": f"r{n}", "messages": t} for n, t in zip(order, turns, strict=True)]
        lines = [json.dumps(one).encode() for one in records]
        if kind == "tar":
            members = [(f"r{n}.json", line) for n, line in zip(order, lines, strict=True)]
            (tmp_path / "shard.tar").write_bytes(tar_of(members))
        else:
            (tmp_path / "shard.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    rewrite([1, 2, 3])
    estimate_lengths(str(tmp_path / f"shard.{kind}"), tmp_path / "lengths", workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=64)
    opened = open_index(tmp_path / "index")
    samples = {str(one.key): one for one in opened.pack(0).samples}
    assert Fetcher(opened).record(samples["r1"])[0].key == "r1"
    rewrite([3, 2, 1])
    fetcher = Fetcher(opened)
    assert fetcher.record(samples["r2"])[0].key == "r2"
    with pytest.raises(ChangedSource, match="has the record 'r3' where 'r1' was counted"):
        fetcher.record(samples["r1"])
