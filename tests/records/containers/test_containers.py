"""Containers: the same records from every kind of file, in order, by range and by row."""

from __future__ import annotations

import csv
import gc
import gzip
import hashlib
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Row, read_records, read_row
from record_files import chats, tar_digest, write, zstd

from packidx.errors import BadRecord, SourceError
from packidx.format.manifest import Layout
from packidx.records import shards
from packidx.records.containers import lines as convert
from packidx.records.containers.lines import cell_records, json_kind, list_records
from packidx.records.containers.registry import KINDS, kind_of
from packidx.records.read import parse_record
from packidx.records.shards import scan_shard

RECORDS = chats(300)


def everything(path: str, kind: str, layout: Layout | None = None) -> list[Row]:
    layout = layout or Layout()
    result = scan_shard(path, kind, layout)
    rows = [raw for part in result.ranges for raw in read_records(path, part, kind, layout)]
    assert [raw.locator.row for raw in rows] == list(range(result.num_records))
    return rows


def outcome(record: dict[str, Any] | BadRecord) -> Any:
    return record.reason if isinstance(record, BadRecord) else record


def outcomes(path: Path | str, kind: str) -> list[Any]:
    return [outcome(raw.data) for raw in everything(str(path), kind)]


def by_row(path: str, kind: str, raw: Row) -> Any:
    try:
        return read_row(path, *raw.locator, kind=kind)
    except BadRecord as error:
        return error.reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_gives_the_same_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = write(tmp_path, kind, RECORDS)
    assert kind_of(path) == kind
    monkeypatch.setattr(shards, "TASK_BYTES", 9_000)
    result = scan_shard(path, kind)
    data = Path(path).read_bytes()
    digest = tar_digest(path) if kind == "tar" else hashlib.sha256(data).hexdigest()
    assert (result.nbytes, result.sha256) == (len(data), digest)
    assert result.num_records == len(RECORDS)
    if kind in ("arrow", "tar"):
        assert len(result.ranges) > 5
    ends = [part.first_row + part.num_records for part in result.ranges]
    assert [part.first_row for part in result.ranges] == [0, *ends[:-1]]
    assert ends[-1] == len(RECORDS)
    rows = everything(path, kind)
    assert [parse_record(raw.data) for raw in rows] == [parse_record(record) for record in RECORDS]
    addressed = kind in ("jsonl", "tar")
    assert all(
        (raw.locator.offset is not None) == (raw.locator.nbytes is not None) == addressed
        for raw in rows
    )
    order = random.Random(0).sample(rows, 80)
    assert all(by_row(path, kind, raw) == raw.data for raw in order)


@pytest.fixture
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache's files."""
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "files"


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("jsonl", "parquet", "arrow", "tar")]
)
def test_a_shard_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_of_its_own: Path, kind: str
) -> None:
    path = write(tmp_path, kind, chats(300))
    converted: list[str] = []
    open_text = convert.open_text

    def noted(path: str, codec: str) -> Any:
        converted.append(path)
        return open_text(path, codec)

    monkeypatch.setattr(convert, "open_text", noted)
    rows = everything(path, kind)
    for row in (0, 299, *random.Random(1).sample(range(300), 60)):
        assert read_row(path, row, kind=kind) == rows[row].data
    for row in (-1, 300):
        with pytest.raises(SourceError, match=f"no record {row}: the shard is not the one"):
            read_row(path, row, kind=kind)
    assert {*converted} == {path}
    (copy,) = cache_of_its_own.iterdir()
    assert not copy.name.startswith(".")


def test_gzip_members_and_garbage(tmp_path: Path) -> None:
    members = gzip.compress(b'{"a": 1}\n{"a"') + gzip.compress(b": 2}\n")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(members)
    assert outcomes(path, "jsonl.gz") == [{"a": 1}, {"a": 2}]
    path.write_bytes(members + b"garbage")
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz.*broken"):
        scan_shard(str(path), "jsonl.gz")


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    for kind in ("jsonl.gz", "parquet", "arrow", "csv"):
        path = write(tmp_path, kind, chats(5))
        first = everything(path, kind)[2]
        assert by_row(path, kind, first) == first.data
        changed = [{**record, "id": f"other{number}"} for number, record in enumerate(chats(9))]
        path = write(tmp_path, kind, changed)
        again = everything(path, kind)[2]
        assert by_row(path, kind, again) == again.data != first.data


_text = st.text(st.sampled_from('"\\[]{},: \n\té漢😀a'), max_size=8)
_numbers = st.integers(1 - 2**63, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)


@given(
    records=st.lists(st.dictionaries(_text, _json, max_size=4) | _json, max_size=8),
    held=st.none() | st.dictionaries(_text, st.none() | st.booleans() | _numbers, max_size=3),
    indent=st.sampled_from([None, 0, 3]),
    plain=st.booleans(),
    frame=st.sampled_from([("", ""), ("\ufeff", "\n"), (" \r\n", " \t\n")]),
)
def test_records_are_those_of_json(
    records: list[Any],
    held: dict[str, Any] | None,
    indent: int | None,
    plain: bool,
    frame: tuple[str, str],
) -> None:
    value = records if held is None else {**held, "data": records}
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    data = (frame[0] + text + frame[1]).encode()
    kind, holder = json_kind(io.BufferedReader(io.BytesIO(data)))
    assert kind == "json"
    found = map(convert._encode_record, list_records(io.BufferedReader(io.BytesIO(data)), holder))
    for line, record in zip(found, records, strict=True):
        if isinstance(record, dict):
            assert json.dumps(orjson.loads(line)) == json.dumps(record)
        else:
            assert orjson.loads(line)[0] == "bad_record"


@given(rows=st.lists(st.lists(st.text("a\"',;\n\r é", max_size=5), min_size=3, max_size=3)))
def test_csv_records_are_those_of_the_writer(rows: list[list[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["a", "b", "c"], *rows])
    file = io.BytesIO(text.getvalue().encode())
    filled = [row for row in rows if "".join(row).strip()]
    expected = [{n: cell for n, cell in zip("abc", row, strict=True) if cell} for row in filled]
    assert list(cell_records(io.BufferedReader(file), ",", True)) == expected


GOOD = {"a": "1"}
BAD_TEXT: list[tuple[str, bytes, list[Any]]] = [
    ("jsonl", b"", []),
    ("jsonl", b'\xef\xbb\xbf{"a": "1"}\r\n\r\n \n{"a": "1"}', [GOOD, GOOD]),
    ("jsonl", b'{"a": "1"}\n{"a": "1', [GOOD, "bad_json"]),
    ("jsonl", b'{"a": "\xff"}\n\0\n{"a": "1"}\n', ["bad_utf8", "bad_json", GOOD]),
    ("jsonl", b"[" * 100_000 + b"\n7\n", ["bad_json", "bad_record"]),
    ("jsonl", b'{"a": "\\ud800"}\nnull\n"text"\n', ["bad_json", "bad_record", "bad_record"]),
    ("json", b"[]", []),
    ("json", b"\xef\xbb\xbf [ \n ] \n", []),
    (
        "json",
        b'[{"a": "1"},\r\n7,"x",null,[1],{"a": "1"}]',
        [GOOD, "bad_record", "bad_record", "bad_record", "bad_record", GOOD],
    ),
    ("json", b'[{"a": "]\\"},[\\\\"},{"a": "1"}]', [{"a": ']"},[\\'}, GOOD]),
    ("json", b"[" + b"[" * 5000 + b"]" * 5000 + b"]", ["bad_record"]),
    ("json", b'[{"a":' + b"[" * 500 + b"]" * 500 + b"}]", ["bad_json"]),
    ("csv", b"a\n", []),
    ("csv", b'\xef\xbb\xbfa,b\r\n1,\r\n\r\n"1",""\r\n', [GOOD, GOOD]),
    ("csv", b"a,b\n1,2,3\n1\n1,\n", ["bad_row", "bad_row", GOOD]),
    ("csv", b'a,b\n\xff,x\n1,\n"x"y,1\n1,', ["bad_utf8", GOOD, "bad_row", GOOD]),
    ("csv", b'a,b\n"two\nlines, ""x""",\0\n1,', [{"a": 'two\nlines, "x"', "b": "\0"}, GOOD]),
    ("tsv", b'a\tb\n1\t\n\t\n5" disk\tx\n', [GOOD, {"a": '5" disk', "b": "x"}]),
]


@pytest.mark.parametrize("codec", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("kind", "data", "expected"), BAD_TEXT)
def test_bad_records_are_rows(
    tmp_path: Path, kind: str, data: bytes, expected: list[Any], codec: str
) -> None:
    kind += codec
    path = tmp_path / f"x.{kind}"
    pack: Callable[[bytes], bytes] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}[codec]
    path.write_bytes(pack(data))
    rows = everything(str(path), kind)
    assert [outcome(raw.data) for raw in rows] == expected
    assert [by_row(str(path), kind, raw) for raw in rows] == expected


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for kind in KINDS:
        path = str(tmp_path / f"none.{kind}")
        with pytest.raises(SourceError, match=r"none\."):
            scan_shard(path, kind)
        with pytest.raises(SourceError, match=r"none\."):
            read_row(path, 0, 0, 2, kind=kind)


def test_a_row_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for kind in KINDS:
        path = write(tmp_path, kind, chats(4))
        for row in () if kind in ("jsonl", "tar") else (4, 100):
            with pytest.raises(SourceError, match=f"no record {row}"):
                read_row(path, row, kind=kind)
        if kind in ("jsonl", "tar"):
            with pytest.raises(SourceError, match="no byte range"):
                read_row(path, 0, kind=kind)
            with pytest.raises(SourceError, match="only .* bytes planned"):
                read_row(path, 0, 1, 10**6, kind=kind)


def test_column_values_that_cannot_be_read_are_rows(tmp_path: Path) -> None:
    bad = pa.array([b"fine", b"\xff\xfe", b"good"]).view(pa.string())
    table = pa.table({"a": bad, "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    path = str(tmp_path / "x.parquet")
    rows = everything(path, "parquet")
    expected = [{"a": "fine", "n": 1}, "bad_utf8", {"a": "good", "n": 3}]
    assert [outcome(raw.data) for raw in rows] == expected
    assert [by_row(path, "parquet", raw) for raw in rows] == expected
    with pytest.raises(SourceError, match="Invalid UTF8"):
        scan_shard(str(tmp_path / "x.arrow"), "arrow")


def test_columns_hold_nulls_where_json_lacks_members(tmp_path: Path) -> None:
    calls = [{"function": {"name": "f"}, "type": "function"}]
    records = [
        {"messages": [{"role": "user", "content": "a"}], "image": {"path": "a.png"}},
        {"messages": [{"role": "assistant", "content": "b", "tool_calls": calls}], "n": 0},
        {"messages": [{"role": "user", "content": "c"}], "image": {"path": None}},
    ]
    for kind in ("parquet", "arrow"):
        path = write(tmp_path, kind, records)
        found = [raw.data for raw in everything(path, kind)]
        assert found == [*records[:2], {"messages": records[2]["messages"]}]


def test_arrow_files_as_well_as_streams(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(chats(100))
    path = str(tmp_path / "x.arrow")
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    rows = everything(path, "arrow")
    assert [raw.data for raw in rows] == chats(100)
    assert by_row(path, "arrow", rows[77]) == rows[77].data


def test_columns_with_a_dictionary(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    for new in (pa.ipc.new_stream, pa.ipc.new_file):
        with new(str(tmp_path / "x.arrow"), table.schema) as writer:
            writer.write_table(table)
        rows = everything(str(tmp_path / "x.arrow"), "arrow")
        assert [raw.data for raw in rows] == [{"a": "x"}, {"a": "y"}, {"a": "x"}]


def test_several_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"])
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table, tmp_path / "x.parquet")
    for kind in ("arrow", "parquet"):
        with pytest.raises(SourceError, match="several columns of the same name"):
            scan_shard(str(tmp_path / f"x.{kind}"), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Peaks of Python's and Arrow's memory for a file and one eight times as long."""
    monkeypatch.setattr(shards, "TASK_BYTES", 60_000)
    monkeypatch.setattr("packidx.records.containers.lines.SCAN_BLOCK", 20_000)
    monkeypatch.setattr("packidx.records.containers.tables._MAX_BATCH", 20)

    def peak(count: int) -> int:
        path = write(tmp_path, kind, chats(count))
        scan_shard(path, kind)  # caches, imports
        return min(read(path) for _ in range(3))  # what is collected late is not part of it

    def read(path: str) -> int:
        gc.collect()
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        held = 0
        for part in scan_shard(path, kind).ranges:
            for number, _ in enumerate(read_records(path, part, kind)):
                if number % 50 == 0:
                    held = max(held, pa.total_allocated_bytes() - before)
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return high + held

    small, large = peak(800), peak(6400)
    assert large < small * 1.5 + 150_000, (small, large)


def test_the_kind_of_a_json_file(tmp_path: Path) -> None:
    cases = {
        b'[{"a": 1}]': "json",
        b"\xef\xbb\xbf\n [": "json",
        b'{"a": 1}\n{"a": 2}\n': "jsonl",
        b'{"a": 1}': None,
        b'{"a": \n{"a": 2}\n': "jsonl",
        b"": "jsonl",
        b'{\n "a": {"b": 1}\n}\n': None,
        b'{"splits": [{"name": "train"}]}': None,
        b'{"n": 1, "data": [{}]}': "json",
    }
    for number, (data, expected) in enumerate(cases.items()):
        path = tmp_path / f"{number}.json"
        path.write_bytes(data)
        assert kind_of(str(path)) == expected, data
        for codec, pack in ((".gz", gzip.compress), (".zst", zstd)):
            Path(f"{path}{codec}").write_bytes(pack(data) if data else pack(b"\n"))
            found = kind_of(f"{path}{codec}")
            assert found == (None if expected is None else expected + codec), data


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_tsv_has_no_quotes_unless_a_delimiter_is_stated(tmp_path: Path, suffix: str) -> None:
    pack = gzip.compress if suffix else bytes
    path, kind = str(tmp_path / f"a.tsv{suffix}"), f"tsv{suffix}"
    Path(path).write_bytes(pack(b'id\ttext\r\n1\t"Well\r\n\n2\tsaid "he"\n3\t"done"\n'))
    rows = everything(path, kind)
    texts = ['"Well', 'said "he"', '"done"']
    assert [outcome(raw.data)["text"] for raw in rows] == texts
    assert [by_row(path, kind, raw)["text"] for raw in rows] == texts
    Path(path).write_bytes(pack(b'id\ttext\n1\t"a\n""b"\n'))
    (row,) = everything(path, kind, Layout(delimiter="\t"))
    assert outcome(row.data)["text"] == 'a\n"b'
