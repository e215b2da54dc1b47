"""A folder of output takes the place that was named, and nothing there of others is touched."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import s3fs
from object_store import URL, Store

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.output_folder import Kind, check_bucket, check_free, check_index, replace_output

TABLE = Kind(
    "table", "manifest.json", "packidx-table", re.compile(r"part-(?P<digest>[0-9a-f]{16})")
)
PACKS = Kind("folder of packs", ".packidx.json", "packidx-packs")


def part_of(text: str) -> str:
    return f"part-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def write(place: str, kind: Kind, parts: str, intruder: str | None = None) -> None:
    """An output with a part for each letter; `intruder` is put there before its end."""
    check_free(place, kind)
    with replace_output(place, kind, "1") as output:
        for part in parts:
            Path(output.table, part_of(part)).write_text(part)
        (Path(output.table) / kind.manifest).write_text(json.dumps({"format": kind.format}))
        if intruder is not None and "://" in place:
            storage.write(f"{place}/{intruder}", b"mine")
        elif intruder is not None:
            Path(place, intruder).parent.mkdir(parents=True, exist_ok=True)
            Path(place, intruder).write_bytes(b"mine")


def names(place: str) -> list[str]:
    if "://" in place:
        return storage.files_below(place)
    files = (path for path in Path(place).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(place)) for path in files)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> str:
    there = f"{URL}/{tmp_path.name}{id(store)}/out"
    return str(tmp_path / "out") if request.param == "folder" else there


@pytest.mark.parametrize("intruder", ["mine.txt", "notes/mine.txt", "part-0.txt", f"part-{0:016}"])
def test_files_of_others_that_come_meanwhile_stay(place: str, intruder: str) -> None:
    write(place, TABLE, "abc", intruder)
    is_part = intruder == f"part-{0:016}"  # as an earlier table has left it
    kept = [] if is_part else [intruder]
    assert names(place) == sorted(["manifest.json", *map(part_of, "abc"), *kept])
    write(place, TABLE, "ad")  # a table is replaced, and nothing else of the folder
    assert names(place) == sorted(["manifest.json", *map(part_of, "ad"), *kept])
    assert is_part or storage.read(f"{place}/{intruder}") == b"mine"


def test_an_export_is_never_replaced(place: str) -> None:
    write(place, PACKS, "ab")
    with pytest.raises(OptionError, match="holds a folder of packs, which is never overwritten"):
        write(place, PACKS, "c")
    with pytest.raises(OptionError, match=r"which is of no table"):
        write(place, TABLE, "c")
    assert names(place) == [".packidx.json", *sorted(map(part_of, "ab"))]


def test_a_file_of_others_in_the_place_of_ours(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"holds {part_of('b')}"):
        write(str(tmp_path / "out"), PACKS, "ab", part_of("b"))
    assert names(str(tmp_path / "out")) == [part_of("b")]
    assert (tmp_path / "out" / part_of("b")).read_bytes() == b"mine"


def test_an_upload_that_was_cut_off_is_done_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (TABLE, PACKS):
        url = f"{URL}/{tmp_path.name}/cut-{kind.format}"
        monkeypatch.setattr(storage, "THREADS", 1)
        store.refusals.append(("PUT", part_of("b"), 403, "AccessDenied", "no"))
        with pytest.raises(OptionError):
            write(url, kind, "ab")
        store.refusals.clear()
        assert part_of("a") in names(url)
        write(url, kind, "ab")
        assert names(url) == sorted([kind.manifest, *map(part_of, "ab")])


def test_of_two_runs_one_makes_the_output(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with replace_output(path, TABLE, "1") as first:
        Path(first.table, "part-a").touch()
        with pytest.raises(OptionError, match=f"another run is making the table at {path}"):
            write(path, TABLE, "b")
    assert os.listdir(path) == ["part-a"]
    assert os.listdir(tmp_path) == ["out"]


def test_a_bucket_is_there_though_it_is_empty_or_closed(store: Store) -> None:
    s3fs.S3FileSystem(use_listings_cache=False).mkdir("empty")
    check_bucket("s3://empty/index")
    with pytest.raises(OptionError, match="there is no bucket s3://none-such"):
        check_bucket("s3://none-such/index")
    store.denied.append("/empty")
    check_bucket("s3://empty/index")  # nobody may look, which is not to say that it is not there
    store.denied.clear()


def test_an_index_that_a_killed_plan_began_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "windows" / "0a").mkdir(parents=True)
    (tmp_path / ".lock").touch()
    check_index(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OptionError, match=r"holds notes\.txt"):
        check_index(str(tmp_path))
