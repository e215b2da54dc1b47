"""`precompute`: true counts in every record, and not another byte changed."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from record_files import WRITERS, chats, zstd

from packidx.errors import OptionError, SourceError
from packidx.estimate import estimate_lengths
from packidx.estimate.counter import CounterSettings, RecordCounter
from packidx.estimate.examine import ShardContext
from packidx.precompute import precompute
from packidx.precompute.slices import make_slices
from packidx.precompute.text import cell_spans, rewrite_text
from packidx.records import shards
from packidx.records.containers import lines
from packidx.records.layout import Layout
from packidx.records.media.paths import MediaRoot

FORMS = ("lists", "objects")
WRITTEN = re.compile(rb',? ?"_text_tokens":\d+(?:,"mm_inputs_meta":\{"images_meta":[^{}]*\})?')


def table(folder: Path) -> pa.Table:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return pa.concat_tables([pq.read_table(folder / entry["path"]) for entry in manifest["files"]])


def media_tokens(meta: dict[str, Any] | None) -> int:
    entries = [entry for entries in (meta or {}).values() for entry in entries or []]
    return sum(int(e["n_tokens"] if isinstance(e, dict) else e[-1]) for e in entries)


def pixels(path: Path) -> tuple[int, int]:
    """(height, width)"""
    with Image.open(path) as image:
        return image.height, image.width


@pytest.fixture
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


@functools.cache
def counter_of(processor: str) -> RecordCounter:
    return CounterSettings(processor).build()


# -- the counts ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_the_corpus_states_its_exact_lengths(
    corpus: Path, processors: Path, tmp_path: Path, name: str
) -> None:
    given = sorted(str(path) for path in corpus.glob("[pv]*.jsonl"))  # the ones with images
    exact = estimate_lengths(given, tmp_path / "exact", processor=processors / name)
    expected = table(tmp_path / "exact")
    assert exact.methods == {"exact": expected.num_rows}
    for form in FORMS:
        out = tmp_path / form
        summary = precompute(given, out, processors / name, meta=form)
        assert (summary.num_samples, summary.num_rejected) == (expected.num_rows, 0)
        assert summary.num_tokens == exact.num_tokens
        records = [
            json.loads(line)
            for path in given
            for line in (out / Path(path).name).read_text().splitlines()
        ]
        sums = [r["_text_tokens"] + media_tokens(r.get("mm_inputs_meta")) for r in records]
        assert sums == expected["length"].to_pylist()
        assert sum(media_tokens(r.get("mm_inputs_meta")) for r in records) > 10_000

        estimate_lengths(str(out), tmp_path / f"{form}-read")
        found = table(tmp_path / f"{form}-read")
        assert set(found["method"].to_pylist()) == {"precomputed"}
        for column in ("length", "text_tokens", "image_tokens", "video_tokens"):
            assert found[column].equals(expected[column])


def test_sums_are_what_the_real_processor_builds(
    corpus: Path, processor: str, tmp_path: Path
) -> None:
    from packidx.encode import ProcessorEncoder
    from packidx.records.media.opener import open_media

    lines = (corpus / "photos.jsonl").read_text().splitlines()[:12]
    (tmp_path / "few.jsonl").write_text("\n".join(lines))
    precompute(str(tmp_path / "few.jsonl"), tmp_path / "out", processor, media_root=corpus)
    encoder = ProcessorEncoder(processor)
    for line in (tmp_path / "out" / "few.jsonl").read_text().splitlines():
        record = json.loads(line)
        built = encoder(open_media(json.loads(line), MediaRoot(str(corpus), True)))
        meta = record["mm_inputs_meta"]
        assert record["_text_tokens"] + media_tokens(meta) == len(built["input_ids"])
        sizes = [pixels(corpus / path) for path in record["images"]]
        assert [tuple(entry[:2]) for entry in meta["images_meta"]] == sizes


def test_again_changes_nothing(processor: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    records = chats(20)
    for record in records:
        Image.new("RGB", (60, 40)).save(tmp_path / "data" / record["images"][0])
    for kind in ("jsonl", "json", "csv", "parquet"):
        (tmp_path / "data" / f"{kind}.{kind}").write_bytes(WRITERS[kind](records))
    options = {"media_root": tmp_path / "data", "workers": 1}
    for form in FORMS:
        precompute(str(tmp_path / "data"), tmp_path / "one", processor, meta=form, **options)
        summary = precompute(
            str(tmp_path / "one"), tmp_path / "two", processor, meta=form, **options
        )
        assert summary.methods == {"exact": 80}
        for kind in ("jsonl", "json", "csv", "parquet"):
            name = f"{kind}.{kind}"
            first, second = tmp_path / "one" / name, tmp_path / "two" / name
            assert first.read_bytes() == second.read_bytes()
            assert first.read_bytes() != (tmp_path / "data" / name).read_bytes()


def test_videos_state_what_they_were_counted_by(processors: Path, tmp_path: Path) -> None:
    frames = [f"{number}.png" for number in range(6)]
    for name in frames:
        Image.new("RGB", (96, 64)).save(tmp_path / name)
    stated = {"path": "x.mp4", "num_frames": 50, "height": 90, "width": 160, "fps": 25.0}
    records = [
        {"messages": [{"role": "user", "content": "<video> <image> what?"}], "videos": [video]}
        for video in ({"frames": frames}, {"frames": frames, "fps": 2.0}, stated)
    ]
    lines = [json.dumps({**record, "images": ["0.png"]}) for record in records]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    processor = processors / "qwen3-vl"
    estimate_lengths(str(tmp_path / "a.jsonl"), tmp_path / "exact", processor=processor, workers=1)
    expected = table(tmp_path / "exact")
    assert set(expected["method"].to_pylist()) == {"exact"}
    for form in FORMS:
        out = tmp_path / form
        precompute(str(tmp_path / "a.jsonl"), out, processor, meta=form, workers=1)
        entries = [
            json.loads(line)["mm_inputs_meta"]["videos_meta"][0]
            for line in (out / "a.jsonl").read_text().splitlines()
        ]
        values = [e if isinstance(e, list) else list(e.values()) for e in entries]
        assert [value[:5] for value in values] == [
            [6, 64, 96, 0.0, 0.0],
            [6, 64, 96, 2.0, 3.0],
            [50, 90, 160, 25.0, 2.0],
        ]
        assert [value[5] for value in values] == expected["video_tokens"].to_pylist()
        for path in out.glob("*.jsonl"):  # beside the media again
            path.rename(tmp_path / f"{form}.jsonl")
        for number, name in enumerate((None, processor)):
            lengths = tmp_path / f"{form}{number}"
            estimate_lengths(str(tmp_path / f"{form}.jsonl"), lengths, processor=name, workers=1)
            assert table(lengths)["length"].equals(expected["length"])


# -- bytes of text ---------------------------------------------------------------------------------

GOOD = '{"messages": [{"role": "user", "content": "hello"}]%s}'
LINES = st.one_of(
    st.sampled_from(
        [
            GOOD % "",
            GOOD % ', "b": "}  ,{"',
            '{"messages":[{"role":"user","content":"<image>é\\u00e9"}],"image":{"path":"x","height":30,'
            '"width":40}}',
            '{"messages": []}',
            '{"cut": ',
            "[1, 2]",
            '"text"',
            "   \t",
            "",
        ]
    ).map(str.encode),
    st.just(b'{"a": "\xff"}'),
    st.text('ab{}[]\\", é\u2028', max_size=12).map(
        lambda text: (GOOD % f', "t": {json.dumps(text)} ').encode()
    ),
)


def rewritten(shard: Path, kind: str, counter: RecordCounter, task_bytes: int) -> bytes:
    """A shard's bytes with counts, cut into as many pieces as `task_bytes` says."""
    info = ShardContext(
        0, shard.name, str(shard), "s", MediaRoot(str(shard.parent)), True, kind, Layout()
    )
    with mock.patch.object(lines, "SCAN_BLOCK", 64):
        scan = shards.container(kind).scan(str(shard), task_bytes)
    found = b""
    for piece in make_slices([info], [scan], "lists"):
        path = shard.with_name("piece")
        rewrite_text(piece, counter, str(path))
        data = path.read_bytes()
        found += gzip.decompress(data) if kind.endswith("gz") else data
    return found


def is_good(line: bytes) -> bool:
    try:
        record = orjson.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and bool(record["messages"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]))),
    bom=st.booleans(),
    ended=st.booleans(),
    task_bytes=st.sampled_from([1, 90, 1 << 20]),
    compressed=st.booleans(),
)
def test_lines_keep_every_other_byte(
    processors: Path,
    given_lines: list[tuple[bytes, bytes]],
    bom: bool,
    ended: bool,
    task_bytes: int,
    compressed: bool,
) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in given_lines)
    data = data if ended else data.rstrip(b"\r\n")
    kind = "jsonl.gz" if compressed else "jsonl"
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / f"a.{kind}"
        shard.write_bytes(gzip.compress(data) if compressed else data)
        counter = counter_of(str(processors / "qwen2.5-vl"))
        found = rewritten(shard, kind, counter, task_bytes)
    assert WRITTEN.sub(b"", found) == data
    old, new = data.split(b"\n"), found.split(b"\n")
    assert len(old) == len(new)
    for before, after in zip(old, new, strict=True):
        before, after = before.removeprefix(b"\xef\xbb\xbf"), after.removeprefix(b"\xef\xbb\xbf")
        if not is_good(before):
            assert before == after
            continue
        record = orjson.loads(after)
        assert record.pop("_text_tokens") > 5
        assert ("image" in record) == bool(record.pop("mm_inputs_meta", None))
        assert record == orjson.loads(before)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    elements=st.lists(LINES.filter(is_good), max_size=6),
    gaps=st.lists(st.sampled_from([b"", b" ", b"\n  ", b"\r\n\t"]), min_size=14, max_size=14),
    bom=st.booleans(),
    task_bytes=st.sampled_from([1, 90, 1 << 20]),
)
def test_arrays_keep_every_other_byte(
    processors: Path, elements: list[bytes], gaps: list[bytes], bom: bool, task_bytes: int
) -> None:
    padded = [gaps[2 * i] + element + gaps[2 * i + 1] for i, element in enumerate(elements)]
    data = b"\xef\xbb\xbf" * bom + gaps[-1] + b"[" + b",".join(padded) + gaps[-2] + b"]" + gaps[-3]
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "a.json"
        shard.write_bytes(data)
        counter = counter_of(str(processors / "qwen2.5-vl"))
        found = rewritten(shard, "json", counter, task_bytes)
    assert WRITTEN.sub(b"", found) == data
    records = orjson.loads(found.removeprefix(b"\xef\xbb\xbf"))
    assert len(records) == len(elements)
    assert all(record["_text_tokens"] > 5 for record in records)


def test_old_values_give_way_wherever_they_stand(processor: str, tmp_path: Path) -> None:
    head = '{"_text_tokens":1, "mm_inputs_meta" : {"images_meta":[[40,30,9]]} ,'
    body = '"messages":[{"role":"user","content":"<image>"}],"image":"a.png"'
    lines = [f'{head}{body},"_text_tokens": 2}}', f'{{{body},"\\u005ftext_tokens":3}}']
    Image.new("RGB", (30, 40)).save(tmp_path / "a.png")
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, workers=1)
    found = (tmp_path / "out" / "a.jsonl").read_text().split("\n")
    values = [json.loads(line) for line in found]
    tokens = values[0]["_text_tokens"]
    assert tokens > 10
    assert values[1]["_text_tokens"] == tokens
    meta = '{"images_meta":[[40,30,6]]}'
    expected = '{"_text_tokens":%d, "mm_inputs_meta" : %s ,%s,"_text_tokens": %d}'
    assert found[0] == expected % (tokens, meta, body, tokens)
    assert found[1] == f'{lines[1][:-1]},"_text_tokens":{tokens},"mm_inputs_meta":{meta}}}'


def test_rejected_records_stay_and_are_told(processor: str, tmp_path: Path) -> None:
    deep = '{"messages":' + "[" * 1010 + "]" * 1010 + ',"_text_tokens":1}'
    bad = ['{"cut', deep, '{"messages":[],"_text_tokens":7}', "[]", GOOD % ',"_text_tokens":-1']
    bad.append('{"messages":[{"role":"user","content":"<image>"}],"image":"none.png"}')
    text = "\n".join([GOOD % "", *bad, GOOD % ""])
    (tmp_path / "a.jsonl").write_text(text)
    summary = precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, workers=1)
    found = (tmp_path / "out" / "a.jsonl").read_text().split("\n")
    assert found[1:-1] == bad
    assert json.loads(found[0])["_text_tokens"] == json.loads(found[-1])["_text_tokens"] > 0
    assert (summary.num_samples, summary.num_rejected) == (8, 6)
    assert summary.methods == {"exact": 2}
    assert summary.rejected.keys() >= {"bad_json", "no_messages", "bad_text_tokens"}
    assert summary.rejected["missing_media"] == 1
    (shard,) = json.loads((tmp_path / "out" / ".packidx.json").read_bytes())["shards"]
    assert shard["rejected"] == summary.rejected


# -- tables ----------------------------------------------------------------------------------------


@given(
    rows=st.lists(st.lists(st.text('a",;\n\r é', max_size=5), min_size=2, max_size=4), max_size=4),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_cells_are_found_as_a_reader_finds_them(rows: list[list[str]], quoting: Any) -> None:
    for row in rows:
        text = io.StringIO()
        csv.writer(text, quoting=quoting).writerow(row)
        raw = text.getvalue().removesuffix("\r\n").encode()
        cells = [raw[start:end].decode() for start, end in cell_spans(raw, b",")]
        plain = [c[1:-1].replace('""', '"') if c.startswith('"') else c for c in cells]
        assert plain == row
    assert cell_spans(b'a,"b', b",") == []


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "csv.zst"])
def test_tables_in_text_get_two_columns(
    processor: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", 300)
    comma = "\t" if kind == "tsv" else ","
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    chat = '"[{""role"": ""user"", ""content"": ""%s""}]"'
    mark = '"q""x"'
    if kind == "tsv":  # it has no quotes
        chat, mark = '[{"role": "user", "content": "%s"}]', 'q"x'
    rows = [comma.join(("id", "messages", "image"))]
    rows += [comma.join((f"{n}", chat % f"one, {n}", "")) for n in range(6)]
    rows += [comma.join((mark, chat % "<image>", "a.png")), "too", comma.join(("z", "", ""))]
    data = "\r\n".join(rows).encode() + b"\r\n\r\n"
    packed = {"gz": gzip.compress, "zst": zstd}.get(kind.partition(".")[2], bytes)(data)
    (tmp_path / f"a.{kind}").write_bytes(packed)
    summary = precompute(str(tmp_path / f"a.{kind}"), tmp_path / "out", processor, workers=1)
    assert summary.rejected == {"bad_row": 1, "no_messages": 1}
    found = (tmp_path / "out" / f"a.{kind}").read_bytes()
    if kind.endswith("gz"):
        found = gzip.decompress(found)
    elif kind.endswith("zst"):
        found = pa.CompressedInputStream(pa.BufferReader(found), "zstd").read()
    lines = found.decode().split("\r\n")
    assert lines[0] == comma.join((rows[0], "_text_tokens", "mm_inputs_meta"))
    assert all(line.startswith(row) for line, row in zip(lines, rows, strict=False))
    assert (lines[8], lines[9], lines[10:]) == ("too", f"{rows[9]}{comma * 2}", ["", ""])
    quoting = csv.QUOTE_NONE if kind == "tsv" else csv.QUOTE_MINIMAL
    text = io.StringIO(found.decode(), newline="")
    read = list(csv.DictReader(text, delimiter=comma, quoting=quoting))
    assert all(int(row["_text_tokens"]) > 10 for row in read[:7])
    assert json.loads(read[6]["mm_inputs_meta"]) == {"images_meta": [[40, 60, 6]]}
    assert read[0]["mm_inputs_meta"] == ""
    options = {"workers": 1, "media_root": tmp_path}
    estimate_lengths(str(tmp_path / "out"), tmp_path / "read", **options)
    again = table(tmp_path / "read")
    assert again["method"].to_pylist()[:7] == ["precomputed"] * 7
    estimate_lengths(
        str(tmp_path / f"a.{kind}"), tmp_path / "exact", processor=processor, **options
    )
    assert again["length"].equals(table(tmp_path / "exact")["length"])


@pytest.mark.parametrize("form", FORMS)
def test_parquet_gets_two_columns(
    processor: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", 2000)
    records = [{**record, "_text_tokens": 3} for record in chats(60)]
    records[7]["images"] = ["none.png"]
    for number in range(60):
        Image.new("RGB", (60 + number, 40)).save(tmp_path / f"{number}.png")
    source = pa.Table.from_pylist(records).replace_schema_metadata({"mine": "kept"})
    source = source.set_column(0, "id", source["id"].dictionary_encode())
    pq.write_table(source, tmp_path / "a.parquet", row_group_size=13, compression="zstd")
    summary = precompute(
        str(tmp_path / "a.parquet"), tmp_path / "out", processor, meta=form, workers=1
    )
    assert summary.rejected == {"missing_media": 1}
    file = pq.ParquetFile(tmp_path / "out" / "a.parquet")
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [13, 13, 13, 13, 8]
    assert groups[0].column(0).compression == "ZSTD"
    found = file.read()
    assert found.column_names == [*source.column_names, "mm_inputs_meta"]
    assert found.schema.metadata[b"mine"] == b"kept"
    kept = [name for name in source.column_names if name != "_text_tokens"]
    assert found.select(kept).equals(source.select(kept))
    tokens, meta = found["_text_tokens"].to_pylist(), found["mm_inputs_meta"].to_pylist()
    assert (tokens[7], meta[7]) == (None, None)
    options = {"workers": 1, "media_root": tmp_path}
    estimate_lengths(
        str(tmp_path / "a.parquet"), tmp_path / "exact", processor=processor, **options
    )
    expected = table(tmp_path / "exact")["length"].to_pylist()
    sums = [(t or 0) + media_tokens(m) for t, m in zip(tokens, meta, strict=True)]
    assert sums == expected
    estimate_lengths(str(tmp_path / "out"), tmp_path / "read", **options)
    again = table(tmp_path / "read")
    counted = [row for row in range(60) if row != 7]
    assert again.take(counted)["length"].to_pylist() == [expected[row] for row in counted]
    assert set(again.take(counted)["method"].to_pylist()) == {"precomputed"}


def test_a_mix_names_the_columns(processor: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"chat": [{"role": "user", "content": "hi"}], "n": 1}\n')
    columns = {"messages": "chat", "text_tokens": "n"}
    (tmp_path / "mix.json").write_text(
        json.dumps({"one": {"file_name": "a.jsonl", "columns": columns}})
    )
    precompute(str(tmp_path / "mix.json"), tmp_path / "out", processor, workers=1)
    found = json.loads((tmp_path / "out" / "a.jsonl").read_text())
    assert found.keys() == {"chat", "n"}
    assert found["n"] > 5
    precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, columns=columns, workers=1)
    assert json.loads((tmp_path / "out" / "a.jsonl").read_text()) == found


def test_what_cannot_be_used_is_said(processor: str, tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(WRITERS["arrow"](chats(2)))
    with pytest.raises(SourceError, match="Parquet or JSON Lines"):
        precompute(str(tmp_path / "a.arrow"), tmp_path / "out", processor)
    (tmp_path / "a.tar").write_bytes(WRITERS["tar"](chats(2)))
    with pytest.raises(SourceError, match="is a tar, which cannot be given columns in place"):
        precompute(str(tmp_path / "a.tar"), tmp_path / "out", processor)
    (tmp_path / "a.jsonl").write_text(GOOD % "")
    with pytest.raises(OptionError, match="lists or objects"):
        precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, meta="both")
    assert not (tmp_path / "out").exists()


def test_a_data_set_that_cannot_be_counted_replaces_none(processor: str, tmp_path: Path) -> None:
    """As with tags forgotten: the old folder stays, layouts are recorded."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    turns = [{"who": "user", "text": "hi"}, {"who": "assistant", "text": "yes"}]
    source.write_bytes(orjson.dumps({"messages": turns}) + b"\n")
    tags = {"role_tag": "who", "content_tag": "text"}
    precompute(str(source), out, processor, tags=tags, workers=1)
    written = (out / "a.jsonl").read_bytes()
    assert b"_text_tokens" in written
    (shard,) = json.loads((out / ".packidx.json").read_bytes())["shards"]
    assert shard["layout"] == {"tags": tags}
    with pytest.raises(SourceError, match="none of the 1 records could be counted"):
        precompute(str(source), out, processor, workers=1)
    assert (out / "a.jsonl").read_bytes() == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_what_was_written_is_counted_as_it_stands_on_every_path(
    corpus: Path, processors: Path, tmp_path: Path
) -> None:
    """The template is in it once: without a processor, and with one."""
    folder = processors / "qwen2.5-vl"
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "  It is.\n"}]
    records = [{"messages": turns * number} for number in range(1, 25)] + [
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "image": "a.png"}, "What is it?"]},
                {"role": "assistant", "content": "A cat."},
            ]
        }
    ]
    (tmp_path / "data.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in records))
    Image.new("RGB", (90, 50)).save(tmp_path / "a.png")
    source = str(tmp_path / "data.jsonl")
    precompute(source, tmp_path / "counted", processor=folder, media_root=tmp_path, workers=1)
    (written,) = (tmp_path / "counted").glob("*.jsonl")
    expected = [
        one["_text_tokens"] + media_tokens(one.get("mm_inputs_meta"))
        for one in map(orjson.loads, written.read_bytes().splitlines())
    ]
    ways = {
        "stated": {},
        "exact": {"processor": folder},
        "heuristic": {"processor": folder, "method": "heuristic"},
    }
    for name, options in ways.items():
        estimate_lengths(str(written), tmp_path / name, media_root=tmp_path, workers=1, **options)
        rows = pq.read_table(tmp_path / name / "part-00000.parquet").to_pylist()
        assert [row["length"] for row in rows] == expected, name
