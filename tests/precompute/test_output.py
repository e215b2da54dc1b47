"""Where `packidx precompute` writes: all of it or nothing, and never over anyone's data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from packidx_cli.main import main
from record_files import contents

from packidx.errors import OptionError, SourceError
from packidx.format.manifest import Layout
from packidx.precompute import precompute
from packidx.precompute.counts import output_names
from packidx.records import shards as sources
from packidx.records.shards import InputFile
from packidx.records.sources.find_shards import find_shards

GOOD = '{"messages": [{"role": "user", "content": "hello there"}]}\n'


def write(path: Path, text: str = GOOD) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.fixture
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


def test_names_tell_shards_apart(processor: str, tmp_path: Path) -> None:
    for name in ("a/train.jsonl", "b/train.jsonl", "b/more.jsonl"):
        write(tmp_path / "data" / name, GOOD * len(name))
    summary = precompute(str(tmp_path / "data"), tmp_path / "out", processor, workers=1)
    manifest = json.loads((tmp_path / "out" / ".packidx.json").read_bytes())
    names = [shard["name"] for shard in manifest["shards"]]
    assert names == ["a/train.jsonl", "more.jsonl", "b/train.jsonl"]
    assert set(contents(tmp_path / "out")) == {".packidx.json", *names}
    assert [shard["num_samples"] for shard in manifest["shards"]] == [13, 12, 13]
    for shard in manifest["lengths"]["shards"]:
        assert shard["fingerprint"] == sources.scan_shard(shard["uri"]).sha256
    assert manifest["lengths"]["encoder"] == summary.encoder
    assert len(summary.encoder["fingerprint"]) == 64
    shards = find_shards([str(tmp_path / "out")])  # its manifest is not data
    assert {os.path.relpath(shard.path, tmp_path / "out") for shard in shards} == {*names}


def test_no_source_is_ever_touched(processor: str, tmp_path: Path) -> None:
    source = write(tmp_path / "data" / "sub" / "a.jsonl")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "data")
    inside = [(source, tmp_path / "data"), (source, tmp_path / "data" / "sub"), (source, tmp_path)]
    inside += [(str(link / "sub" / "a.jsonl"), tmp_path / "data"), (source, link)]
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "b.jsonl").symlink_to(source)
    inside.append((str(tmp_path / "far" / "b.jsonl"), tmp_path / "data" / "sub"))
    for given, output in inside:
        with pytest.raises(OptionError):
            precompute(given, output, processor)
    assert contents(tmp_path / "data") == {"sub/a.jsonl": GOOD.encode()}
    precompute(source, tmp_path / "out", processor, workers=1)
    with pytest.raises(OptionError, match="never overwritten"):
        precompute(str(tmp_path / "out"), tmp_path / "out", processor)


def test_no_output_is_ever_replaced(processor: str, tmp_path: Path) -> None:
    source, other = write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl")
    out = tmp_path / "out"
    with pytest.raises(OptionError, match="is not a folder"):
        precompute(source, other, processor)
    foreign = write(out / "notes.txt", "mine")
    with pytest.raises(OptionError, match=r"notes\.txt"):
        precompute(source, out, processor)
    assert contents(out) == {"notes.txt": b"mine"}
    os.unlink(foreign)
    precompute(source, out, processor, workers=1)
    before = contents(out)
    with pytest.raises(OptionError, match="holds a data set, which is never overwritten"):
        precompute(other, out, processor, workers=1)
    assert contents(out) == before and set(before) == {".packidx.json", "a.jsonl"}


def test_what_cannot_be_written_back_is_refused() -> None:
    pairs = InputFile("/x/a.jsonl", "/x/a.jsonl", "s", layout=Layout(pair="chosen"))
    with pytest.raises(OptionError, match="the mix says `pair` of s, and a record that is written"):
        output_names([pairs])
    for kind in ("tar", "parquet", "csv.gz"):
        with pytest.raises(SourceError, match=f"is a {kind} file, and precompute writes back JSON"):
            output_names([InputFile("/x/a", "/x/a", "s", kind)])
    shards = [InputFile(f"/x/a.{kind}", f"/x/a.{kind}", "s", kind) for kind in ("json", "jsonl.gz")]
    with pytest.raises(SourceError, match=r"would both be a\.jsonl"):
        output_names(shards)


def test_workers_do_not_change_a_byte(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TASK_BYTES", 4000)
    text = "".join(GOOD.replace("hello", f"hello {number} " * 9) for number in range(200))
    write(tmp_path / "data" / "a.jsonl", text + '{"cut\n')
    write(tmp_path / "data" / "b.json", "[" + text.strip().replace("\n", " ,\n") + "]")
    write(tmp_path / "data" / "c.jsonl", "")
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        summary = precompute(str(tmp_path / "data"), out, processor, workers=workers)
        assert (summary.num_samples, summary.rejected) == (401, {"bad_json": 1})
    one, two = contents(tmp_path / "out1"), contents(tmp_path / "out2")
    assert one == two
    assert one["c.jsonl"] == b""
    assert [len(one[name].splitlines()) for name in ("a.jsonl", "b.jsonl")] == [201, 200]
    assert not list(tmp_path.glob(".out*"))


def test_a_shard_that_changes_meanwhile_is_written_nowhere(processor: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", GOOD * 3)

    def counted(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("count", total):
            write(tmp_path / "a.jsonl", GOOD * 2 + GOOD.replace("there", "three"))

    with pytest.raises(SourceError, match="changed while it was"):
        precompute(source, tmp_path / "out", processor, workers=1, progress=counted)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_command(
    processor: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", GOOD + '{"cut\n' + GOOD)
    command = ["precompute", "a.jsonl", "-o", "out", "--processor", processor, "--workers", "1"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    shown = [line.split(maxsplit=1) for line in out.splitlines()]
    assert ["samples", "3 (2 exact)"] in shown
    assert ["rejected", "1 (1 bad_json): left as they were"] in shown
    assert "1 of 3 records of a are rejected (33.3 %)" in err
    assert [line.split() for line in out.splitlines()][-2:] == [["a", "2", "1"], ["1", "bad_json"]]
    command[3] = "out2"
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_samples"], result["rejected"]) == (3, {"bad_json": 1})
    assert (result["sources"][0]["name"], result["sources"][0]["num_rejected"]) == ("a", 1)
    assert main(command[:4]) == 2
