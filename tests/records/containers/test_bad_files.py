"""Bad files → outcome, one table: rows, rejected or not, or one sentence that names the file."""

# ruff: noqa: E501  a row of the table is a line

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_input import Row, chat, half
from packidx_cli.main import main
from reading import read_records
from record_files import WRITERS, chats, zstd

from packidx.errors import SourceError
from packidx.records.shards import scan_shard


class File(NamedTuple):
    id: str
    name: str
    data: Callable[[], bytes]
    outcome: list[str | None] | str
    """Reasons of its rows (None where one is counted), or words of the error that ends the run."""


TALKS: list[Row] = [{"id": str(number), **chat(f"Number {number}?")} for number in range(3)]


def whole(kind: str) -> bytes:
    return WRITERS[kind](TALKS)


def but(kind: str, old: bytes, new: bytes) -> Callable[[], bytes]:
    """A file with a piece of it replaced."""

    def make() -> bytes:
        text, _, codec = kind.partition(".")
        data = whole(text)
        assert old in data
        data = data.replace(old, new, 1)
        return {"": bytes, "gz": gzip.compress, "zst": zstd}[codec](data)

    return make


def flipped(kind: str, at: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(whole(kind))
        data[at] ^= 0xFF
        return bytes(data)

    return make


def parquet(**columns: list[Any]) -> Callable[[], bytes]:
    def make() -> bytes:
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue()

    return make


def damaged_parquet() -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(TALKS)
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    data = sink.getvalue()
    return data.replace(b"Number 1", b"Number 7", 1)


# fmt: off
FILES = [
    File("lines, cut", "x.jsonl", lambda: whole("jsonl")[:-9], [None, None, "bad_json"]),
    File("lines, none", "x.jsonl", lambda: b"", []),
    File("lines, blank", "x.jsonl", lambda: b"\n \r\n\t\n", []),
    File("lines, byte order mark", "x.jsonl", lambda: b"\xef\xbb\xbf" + whole("jsonl"), [None] * 3),
    File("array, cut", "x.json", lambda: whole("json")[:-9], "it is not JSON, or cut, behind element"),
    File("array, cut behind an element", "x.json", lambda: whole("json").rstrip(b" \n]"), "it is not JSON, or cut, behind element"),
    File("array, trailing comma", "x.json", lambda: whole("json").rstrip(b" \n]") + b",\n]", "it is not JSON, or cut, behind element 3"),
    File("array, bad element", "x.json", but("json", b'"Number 1?"', b"Number 1?"), "it is not JSON, or cut, behind element 1"),
    File("array, no UTF-8", "x.json", but("json", b"Number 1", b"Number \xff"), "it is not JSON, or cut, behind element"),
    File("array, two", "x.json", lambda: whole("json") * 2, "it is not JSON, or cut, behind element 3"),
    File("array, empty", "x.json", lambda: b"[]", []),
    File("object, two lists", "x.json", lambda: b'{"data": [{}],\n"rows": [{}]}', "holds one object that is no record"),
    File("object, shared prompt", "x.json", lambda: b'{"system": "Answer in French.",\n"data": ' + whole("json") + b"}", "'system' stands above its records"),
    File("object, tools", "x.json", lambda: b'{"tools": [{"name": "f"}],\n"data": ' + whole("json") + b"}", "holds one object that is no record"),
    File("object, a prompt of one word", "x.json", lambda: b'{"system": "Brief.",\n"data": ' + whole("json") + b"}", "'system' stands above its records"),
    File("object, prose", "x.json", lambda: b'{"note": "Be kind.",\n"data": ' + whole("json") + b"}", "'note' stands above its records"),
    File("object, of little to say", "x.json", lambda: b'{"version": "v1.2", "split": "train", "n": 3, "ok": true, "system": "", "meta": {}, "info": {"year": 2014, "note": "VQA, first release."},\n"data": ' + whole("json") + b"}", [None] * 3),
    File("array, a whole character", "x.json", but("json", b"Number 1", b"\\\\ud83d \\ud83d\\ude00"), [None] * 3),
    File("COCO", "x.json", lambda: b'{"images": [{"id": 7, "file_name": "a.png"}],\n"annotations": [{"image_id": 7, "caption": "A cat."}]}', "holds one object that is no record"),
    File("records by id", "x.json", lambda: b'{"q7": {"question": "So?", "answer": "Yes."},\n"q8": {"question": "So?", "answer": "No."}}', "holds one object that is no record"),
    File("bzip2", "x.jsonl.bz2", lambda: b"BZh9", "unknown kind"),
    File("object, cut", "x.json", lambda: b'{"info": 1, "data": [' + whole("jsonl").replace(b"\n", b",\n"), ["bad_json"] * 3),
    File("gzip, cut", "x.jsonl.gz", lambda: half(whole("jsonl.gz")), "gzip stream is "),
    File("gzip, cut by a byte", "x.jsonl.gz", lambda: whole("jsonl.gz")[:-1], "gzip stream is "),
    File("gzip, bad checksum", "x.jsonl.gz", flipped("jsonl.gz", -8), "gzip stream is "),
    File("gzip, bad length", "x.jsonl.gz", flipped("jsonl.gz", -1), "gzip stream is "),
    File("gzip, damaged", "x.jsonl.gz", flipped("jsonl.gz", 60), "gzip stream is "),
    File("gzip, empty", "x.jsonl.gz", lambda: b"", "gzip stream is "),
    File("gzip, something behind", "x.jsonl.gz", lambda: whole("jsonl.gz") + b"garbage", "gzip stream is "),
    File("gzip, none", "x.jsonl.gz", lambda: whole("jsonl"), "gzip stream is "),
    File("gzip, array cut before", "x.json.gz", lambda: gzip.compress(whole("json")[:-9]), "it is not JSON, or cut, behind element"),
    File("gzip, bad line", "x.jsonl.gz", but("jsonl.gz", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("zstd, cut", "x.jsonl.zst", lambda: half(whole("jsonl.zst")), "zstd stream is "),
    File("zstd, cut by a byte", "x.jsonl.zst", lambda: whole("jsonl.zst")[:-1], "zstd stream is "),
    File("zstd, damaged", "x.jsonl.zst", flipped("jsonl.zst", 10), "zstd stream is "),
    File("zstd, empty", "x.jsonl.zst", lambda: b"", "the file is empty"),
    File("zstd, none", "x.jsonl.zst", lambda: whole("jsonl"), "zstd stream is "),
    File("zstd, bad line", "x.jsonl.zst", but("jsonl.zst", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("CSV, too many cells", "x.csv", but("csv", b"1,", b"1,2,"), [None, "bad_row", None]),
    File("CSV, too few cells", "x.csv", but("csv", b"1,", b""), [None, "bad_row", None]),
    File("CSV, quote in the last row not closed", "x.csv", lambda: whole("csv")[:-9], "a quote in the last lines up to line 4 is not closed"),
    File("CSV, quote not closed", "x.csv", but("csv", b']"\r\n2', b"]\r\n2"), [None, "bad_row"]),
    File("CSV, last quotes not closed", "x.csv", lambda: b'a,b\n1,2\n3,"4\n5,6\n7,8\n', "a quote in the last lines up to line 5 is not closed"),
    File("CSV, stray quote", "x.csv", but("csv", b"1,", b'"1"x,'), [None, "bad_row", None]),
    File("CSV, a cell that is not JSON", "x.csv", but("csv", b'1,"[', b'1,"('), [None, "no_messages", None]),
    File("CSV, no UTF-8", "x.csv", but("csv", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("CSV, empty", "x.csv", lambda: b"", "it is empty"),
    File("CSV, a column without name", "x.csv", lambda: b"a,,b\n1,2,3\n", "a name of its own"),
    File("CSV, two columns of one name", "x.csv", lambda: b"id,id\n1,2\n", "a name of its own"),
    File("Parquet, cut", "x.parquet", lambda: half(whole("parquet")), "no Parquet file that can be read"),
    File("Parquet, cut by a byte", "x.parquet", lambda: whole("parquet")[:-1], "no Parquet file that can be read"),
    File("Parquet, empty", "x.parquet", lambda: b"", "no Parquet file that can be read"),
    File("Parquet, none", "x.parquet", lambda: b"PAR1 plain PAR1", "no Parquet file that can be read"),
    File("Parquet, damaged footer", "x.parquet", flipped("parquet", -6), "no Parquet file that can be read"),
    File("Parquet, damaged page", "x.parquet", damaged_parquet, "a Parquet file that is damaged"),
    File("Parquet, messages of numbers", "x.parquet", parquet(messages=[1, 2]), ["no_messages"] * 2),
    File("Parquet, messages of lists of numbers", "x.parquet", parquet(messages=[[1], []]), ["bad_turn", "no_messages"]),
    File("Parquet, _text_tokens of floats", "x.parquet", parquet(messages=[one["messages"] for one in TALKS[:2]], _text_tokens=[1.5, None]), ["bad_text_tokens", None]),
    File("Parquet, no column of turns", "x.parquet", parquet(a=[1, 2]), ["no_messages"] * 2),
    File("Parquet, no row", "x.parquet", parquet(messages=[]), []),
    File("Arrow, cut", "x.arrow", lambda: half(whole("arrow")), "no Arrow file that can be read"),
    File("Arrow, empty", "x.arrow", lambda: b"", "no Arrow file that can be read"),
    File("Arrow, none", "x.arrow", lambda: b"plain text that is not a stream", "no Arrow file that can be read"),
    File("Arrow, no end", "x.arrow", lambda: whole("arrow")[:-8], "no Arrow file that can be read"),
]
# fmt: on


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.id)
def test_files(file: File, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.jsonl").write_bytes(whole("jsonl"))
    path = tmp_path / file.name
    path.write_bytes(file.data())
    output = tmp_path / "out"
    arguments = ["estimate", str(tmp_path / "good.jsonl"), str(path), "-o", str(output)]
    status = main([*arguments, "--workers", "1", "--quiet"])
    printed = capsys.readouterr().err
    if isinstance(file.outcome, str):
        assert status == 1
        assert not output.exists()
        assert printed.count("\n") == 1, printed
        assert "Traceback" not in printed
        assert str(path) in printed
        assert file.outcome in printed
        return
    # A source of which nothing is left is told by the status; its rows are there all the same.
    lost = bool(file.outcome) and None not in file.outcome
    assert status == lost, printed
    assert ("is written, and has the reasons" in printed) == lost
    rows = pq.read_table(sorted(output.glob("part-*.parquet"))).to_pylist()
    assert [row["sample_id"] for row in rows] == list(range(len(rows)))
    assert [row["reason"] for row in rows] == [None, None, None, *file.outcome]
    assert all(row["detail"] for row in rows if row["reason"])
    assert [row["length"] > 0 for row in rows] == [row["reason"] is None for row in rows]


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind not in ("jsonl", "csv", "tsv")])
def test_no_cut_gives_a_shorter_table(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{kind}"
    data = whole(kind)
    for size in sorted({*range(0, len(data), max(1, len(data) // 25)), len(data) - 1}):
        path.write_bytes(data[:size])
        with pytest.raises(SourceError) as caught:
            scan_shard(str(path), kind)
        assert str(path) in str(caught.value)


@pytest.mark.slow
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
            result = scan_shard(path, kind)
            rows = [raw for part in result.ranges for raw in read_records(path, part, kind)]
        except SourceError as error:
            assert path in str(error)
            outcomes.add("error")
        else:
            assert [raw.locator.row for raw in rows] == list(range(result.num_records))
            outcomes.add("rows")
    # A line is a row of these two, whatever it holds; the others have quotes, counts or checksums.
    assert outcomes == ({"rows"} if kind in ("jsonl", "tsv") else {"rows", "error"})
