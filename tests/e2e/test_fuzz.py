"""Damaged files of every kind, by the thousand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from reading import read_records
from record_files import WRITERS, chats

from packidx.errors import SourceError
from packidx.records.shards import scan

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_files_are_rows_or_an_error(kind: str, tmp_path: Path) -> None:
    data = WRITERS[kind](chats(4))
    path = str(tmp_path / f"x.{kind}")
    rng = random.Random(0)
    outcomes = set()
    for _ in range(150):
        harmed = bytearray(data)
        for _ in range(rng.choice((1, 1, 4))):
            harmed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        Path(path).write_bytes(harmed)
        try:
            result = scan(path, kind)
            rows = [raw for part in result.ranges for raw in read_records(path, part, kind)]
        except SourceError as error:
            assert path in str(error)
            outcomes.add("error")
        else:
            assert [raw.locator.row for raw in rows] == list(range(result.num_records))
            outcomes.add("rows")
    # A line is a row of these two, whatever it holds; the others have quotes, counts or checksums.
    assert outcomes == ({"rows"} if kind in ("jsonl", "tsv") else {"rows", "error"})
