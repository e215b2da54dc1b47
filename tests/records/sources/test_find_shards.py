"""Shards: finding them, scanning them, and reading lines and single records back."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.errors import SourceError
from packidx.records import shards
from packidx.records.containers import lines as lines_module
from packidx.records.containers.registry import KINDS
from packidx.records.shards import scan_shard, short_names
from packidx.records.sources.find_shards import find_shards

BOM = b"\xef\xbb\xbf"


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b'{"messages": []}\n')


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["train-00003-of-00010.jsonl"], [("train-00003-of-00010.jsonl", "train")]),
        (["a_07.jsonl"], [("a_07.jsonl", "a")]),
        (["coco_2017.jsonl"], [("coco_2017.jsonl", "coco_2017")]),
        (["mine=a_07.jsonl"], [("a_07.jsonl", "mine")]),
        (["d=1/x.jsonl"], [("d=1/x.jsonl", "x")]),
        (["n=d=1/x.jsonl"], [("d=1/x.jsonl", "n")]),
        (["f"], [("f/sub/train-1.jsonl", "sub/train-1"), ("f/z.jsonl", "z")]),
        (["f/*.jsonl", "a_*.jsonl"], [("f/z.jsonl", "z"), ("a_07.jsonl", "a")]),
        (["n/00001.jsonl"], [("n/00001.jsonl", "n")]),
    ],
)
def test_expand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    expected: list[tuple[str, str]],
) -> None:
    touch(tmp_path, "train-00003-of-00010.jsonl", "a_07.jsonl", "d=1/x.jsonl", "n/00001.jsonl")
    touch(tmp_path, "coco_2017.jsonl")
    touch(
        tmp_path, "f/z.jsonl", "f/sub/train-1.jsonl", "f/.hidden.jsonl", "f/.h/x.jsonl", "f/a.txt"
    )
    (tmp_path / "f" / "sub" / "up").symlink_to(tmp_path / "f")
    monkeypatch.chdir(tmp_path)
    assert [(shard.uri, shard.source) for shard in find_shards(args)] == expected
    url = [f"file://{tmp_path}/{args[0]}"] if "=" not in args[0] and len(args) == 1 else args
    assert [shard.source for shard in find_shards(url)] == [name for _, name in expected]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "no source given"),
        (["none.jsonl"], "no such file"),
        (["none*.jsonl"], "no such file"),
        (["x=none.jsonl"], "no such file"),
        (["empty"], "no data file in it"),
        (["a.txt"], "unknown kind"),
        (["a.jsonl", "./a.jsonl"], "same file"),
        (["a.jsonl", "link.jsonl"], "same file"),
        (["dir.jsonl"], "no data file in it"),
        (["pipe.jsonl"], "not a regular file"),
        (["dangling.jsonl"], "No such file"),
        (["nowhere://bucket/a.jsonl"], "Protocol not known"),
        (["s3://key:secret@bucket/a.jsonl"], "the URL of s3://bucket/a.jsonl has a password in it"),
    ],
)
def test_bad_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    touch(tmp_path, "a.jsonl", "a.txt")
    for name in ("empty", "dir.jsonl"):
        (tmp_path / name).mkdir()
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=words):
        find_shards(args)


def test_short_names() -> None:
    paths = ["/a/x/t.jsonl", "/b/x/t.jsonl", "/b/y/t.jsonl", "/b/u.jsonl"]
    assert short_names(paths) == ["a/x/t.jsonl", "b/x/t.jsonl", "y/t.jsonl", "u.jsonl"]


_line = st.binary(max_size=6) | st.sampled_from([b"", b" ", b"\t\r", b"{}", b' {"a": 1}', b"\0"])


@given(
    lines=st.lists(_line, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    bom=st.booleans(),
    closed=st.booleans(),
    block=st.sampled_from([1, 2, 3, 5, 64]),
    cut=st.sampled_from([1, 4, 10, 1000]),
)
def test_scan_agrees_with_lines(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    end: bytes,
    bom: bool,
    closed: bool,
    block: int,
    cut: int,
) -> None:
    data = BOM * bom + end.join(lines) + end * closed
    path = str(tmp_path_factory.getbasetemp() / "scan.jsonl")
    Path(path).write_bytes(data)
    text = data.removeprefix(BOM)
    expected = [line for line in text.split(b"\n") if line.strip(b" \t\r\v\f")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "SCAN_BLOCK", block)
        patch.setattr(shards, "TASK_BYTES", cut)
        result = scan_shard(path)
    assert (result.nbytes, result.num_records) == (len(data), len(expected))
    assert result.sha256 == hashlib.sha256(data).hexdigest()
    found = []
    for part in result.ranges:
        assert part.first_row == len(found)
        places = [record.locator for record in KINDS["jsonl"].read(path, part)]
        assert [at.row for at in places] == list(range(len(found), len(found) + part.num_records))
        found += [(at.offset, data[at.offset : at.offset + at.nbytes]) for at in places]
    assert [line for _, line in found] == [line.removesuffix(b"\r") for line in expected]


def test_images_without_metadata(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.JPG").touch()
    with pytest.raises(SourceError, match=r"no data file in it .*metadata.jsonl"):
        find_shards([str(tmp_path / "photos")])
    (tmp_path / "photos" / "metadata.csv").write_text("file_name,text\ncat/1.JPG,A cat.\n")
    assert len(find_shards([str(tmp_path / "photos")])) == 1
