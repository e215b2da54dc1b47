"""A lengths table as counts, whatever its files are like."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx.errors import FormatError
from packidx.lengths.table import read_lengths
from packidx.plan.job import source_totals
from packidx.plan.select.mixture import SourceTotals


def some_rows(count: int = 3000, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a lengths table with everything that is possible in its columns."""
    rng = np.random.default_rng(seed)

    def pick(values: list[Any]) -> list[Any]:
        return [values[number] for number in rng.integers(0, len(values), count)]

    columns = {
        "sample_id": list(range(count)),
        "source": pick(["web", "code", "Ä", "", None]),
        "image_tokens": pick([0, 0, 7, 2**31 - 1, None]),
        "video_tokens": pick([0, 5, None]),
        "audio_tokens": pick([0, 0, 0, 2]),
        "length": pick([1, 2, 3, 500, 8192, 2**31 - 1, 0, -4, None]),
        "method": pick(["exact", "heuristic", None]),
        "status": pick(["ok", "ok", "ok", "rejected", None]),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    integers = dict.fromkeys(("length", "image_tokens", "video_tokens"), pa.int32())
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return pa.table(
        {name: pa.array(values, integers.get(name)) for name, values in columns.items()}
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One table in parts of other sizes, row groups, types, encodings and names."""
    folder = tmp_path_factory.mktemp("source=disk") / "len[1]*"
    folder.mkdir()
    table = table_of(some_rows())
    pieces = [table[:1000], table[1000:1001], table[1001:]]
    pieces[0] = pieces[0].set_column(
        1, "source", pieces[0]["source"].dictionary_encode().combine_chunks()
    )
    pieces[1] = pieces[1].set_column(5, "length", pieces[1]["length"].cast(pa.int64()))
    paths = [folder / f"part-{number}?.parquet" for number in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        pq.write_table(piece, path, row_group_size=300)
    # As a pattern the first name would take this file in as well.
    (folder.parent / "len1x").mkdir()
    pq.write_table(table, folder.parent / "len1x" / "part-0x.parquet")
    return folder


def by_hand(longest: int) -> dict[str | None, SourceTotals]:
    found: dict[str | None, Counter[str]] = {}
    for row in some_rows():
        sums = found.setdefault(row["source"], Counter())
        tokens = row["length"] or 0
        if row["status"] == "ok" and 0 < tokens <= longest:
            sums["num_samples"] += 1
            sums["num_tokens"] += tokens
    return {name: SourceTotals(**sums) for name, sums in found.items()}


def test_totals_add_up_what_a_plan_may_use(parts: Path) -> None:
    table = read_lengths(str(parts))
    assert source_totals(table) == by_hand(1 << 31)
    assert source_totals(table, longest=499) == by_hand(499)
    assert source_totals(table, longest=0) == dict.fromkeys(by_hand(1), SourceTotals())


def test_length_alone_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "source=x" / "bare.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"length": pa.array([5, 3, 5, None], pa.uint16())}), path)
    assert source_totals(read_lengths(str(path))) == {None: SourceTotals(3, 13)}


def test_columns_may_be_in_some_parts_only(tmp_path: Path) -> None:
    tables = [
        pa.table({"length": [4], "source": ["a"], "label_tokens": pa.nulls(1)}),
        pa.table({"label_tokens": [3], "other": [b"x"], "length": [9]}),
        pa.table({"length": pa.nulls(2), "method": ["exact", "exact"]}),
    ]
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    totals = source_totals(read_lengths(str(tmp_path)))
    assert totals == {None: SourceTotals(1, 9), "a": SourceTotals(1, 4)}
    assert source_totals(read_lengths(str(paths[2]))) == {None: SourceTotals()}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"length": [1.5]}, "column `length` is Float64, not integer: cast it first"),
        ({"length": [1], "source": [1]}, "column `source` is Int64, not text"),
    ],
)
def test_columns_of_other_types_are_refused(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    for number, own in enumerate(({"length": [1]}, columns)):
        pq.write_table(pa.table(own), tmp_path / f"{number}.parquet")
    with pytest.raises(FormatError, match=words):
        source_totals(read_lengths(str(tmp_path)))
