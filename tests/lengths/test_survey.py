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
from packidx.lengths.survey import SourceTotals, survey
from packidx.lengths.table import read_lengths

KEYS = ("source", "ok", "method", "length")
SUMS = ("count", "num_with_media")


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


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a survey of the rows has to say, by plain Python."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        key = (row["source"], row["status"] == "ok", row["method"], row["length"])
        one = sums.setdefault(key, Counter())
        one["count"] += 1
        media = [row[f"{kind}_tokens"] or 0 for kind in ("image", "video", "audio")]
        one["num_with_media"] += sum(media) > 0
    ordered = sorted(sums, key=lambda key: [(v is not None, _comparable(v)) for v in key])
    return [
        dict(zip(KEYS, key, strict=True)) | {name: sums[key][name] for name in SUMS}
        for key in ordered
    ]


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else 0 if value is None else value


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


def test_a_survey_counts_every_row(parts: Path) -> None:
    found = survey(read_lengths(str(parts)))
    assert found.table.to_dicts() == counted(some_rows())
    assert found.table.columns == [*KEYS, *SUMS]
    assert found.num_samples == 3000


def test_threads_change_nothing(parts: Path) -> None:
    table = read_lengths(str(parts))
    assert survey(table, threads=1).table.equals(survey(table, threads=2).table)


def by_hand(longest: int, shift: int) -> dict[str | None, SourceTotals]:
    found: dict[str | None, Counter[str]] = {}
    for row in some_rows():
        sums = found.setdefault(row["source"], Counter())
        tokens = (row["length"] or 0) - shift
        if row["status"] == "ok" and 0 < tokens <= longest:
            sums["num_samples"] += 1
            sums["num_tokens"] += tokens
    return {name: SourceTotals(**sums) for name, sums in found.items()}


def test_totals_add_up_what_a_plan_may_use(parts: Path) -> None:
    found = survey(read_lengths(str(parts)))
    assert found.totals() == by_hand(1 << 31, 0)
    assert found.totals(shift=True, longest=499) == by_hand(499, 1)
    assert found.totals(longest=1)["web"].num_tokens == found.totals(longest=1)["web"].num_samples
    assert found.usable(longest=0).height == 0


def test_methods_are_counted_among_rows_that_are_not_rejected(parts: Path) -> None:
    want = Counter(row["method"] for row in some_rows() if row["status"] == "ok" and row["method"])
    found = survey(read_lengths(str(parts)))
    assert found.methods == dict(want) and list(found.methods) == ["exact", "heuristic"]
    assert found.weakest_method == "heuristic"


def test_length_alone_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "source=x" / "bare.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"length": pa.array([5, 3, 5, None], pa.uint16())}), path)
    found = survey(read_lengths(str(path)))
    assert [(row["length"], row["count"]) for row in found.table.to_dicts()] == [
        (None, 1),
        (3, 1),
        (5, 2),
    ]
    assert found.methods == {} and found.weakest_method == "exact"
    assert found.totals() == {None: SourceTotals(3, 13)}


def test_columns_may_be_in_some_parts_only(tmp_path: Path) -> None:
    tables = [
        pa.table({"length": [4], "source": ["a"], "label_tokens": pa.nulls(1)}),
        pa.table({"label_tokens": [3], "other": [b"x"], "length": [9]}),
        pa.table({"length": pa.nulls(2), "method": ["exact", "exact"]}),
    ]
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    found = survey(read_lengths(str(tmp_path)))
    assert found.totals() == {None: SourceTotals(1, 9), "a": SourceTotals(1, 4)}
    assert found.methods == {"exact": 2} and found.num_samples == 4
    assert survey(read_lengths(str(paths[2]))).usable().height == 0


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
        survey(read_lengths(str(tmp_path)))


def test_a_method_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"length": [1], "method": ["guess"]}), path)
    with pytest.raises(FormatError, match="method is 'guess', not one of"):
        _ = survey(read_lengths(str(path))).methods
