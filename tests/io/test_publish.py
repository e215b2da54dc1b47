"""Publishing into an object store: one kind of thing in its place, and nothing else of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import s3fs
from object_store import URL, Store

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.own_files import LIST, Kind, check_bucket, check_index
from packidx.io.publish import publish

LENGTHS = Kind("lengths table", "manifest.json", "packidx-lengths", lambda stated: ["0.txt"])
TABLE = Kind("table", "manifest.json", "packidx-table", lambda stated: ())
PACKS = Kind("folder of packs", ".packidx.json", "packidx-wds", lambda stated: ())


def folder(path: Path, text: str, count: int = 6) -> str:
    path.mkdir()
    for number in range(count):
        (path / f"{number}.txt").write_text(f"{text} {number}")
    (path / "manifest.json").write_text(json.dumps({"text": text}))
    return str(path)


def contents(url: str) -> dict[str, str]:
    names = [name for name in storage.names(url) if name != LIST]
    return {name: storage.read(f"{url}/{name}").decode() for name in names}


def test_a_bucket_is_there_though_it_is_empty_or_closed(store: Store) -> None:
    s3fs.S3FileSystem(use_listings_cache=False).mkdir("empty")
    check_bucket("s3://empty/index")
    with pytest.raises(OptionError, match="there is no bucket s3://none-such"):
        check_bucket("s3://none-such/index")
    store.denied.append("/empty")
    check_bucket("s3://empty/index")  # nobody may look, which is not to say that it is not there
    store.denied.clear()


@pytest.mark.usefixtures("store")
def test_another_kind_of_thing_is_not_replaced(tmp_path: Path) -> None:
    url = f"{URL}/kinds"
    publish(folder(tmp_path / "one", "one"), url, LENGTHS)
    before = contents(url)
    with pytest.raises(OptionError, match="holds a lengths table, and a folder of packs"):
        publish(folder(tmp_path / "two", "two"), url, PACKS)
    assert contents(url) == before
    publish(folder(tmp_path / "three", "three", 3), url, LENGTHS)
    assert contents(url) == {
        **{f"{number}.txt": f"three {number}" for number in range(3)},
        "manifest.json": '{"text": "three"}',
    }


def test_a_place_that_cannot_be_listed_is_not_free(store: Store, tmp_path: Path) -> None:
    publish(folder(tmp_path / "one", "one"), f"{URL}/denied", TABLE)
    store.denied.append("list-type=2")
    with pytest.raises(OSError):
        publish(folder(tmp_path / "two", "two"), f"{URL}/denied", TABLE)
    store.denied.clear()
    assert contents(f"{URL}/denied")["0.txt"] == "one 0"


@pytest.mark.usefixtures("store")
def test_a_table_that_was_copied_into_the_bucket_is_no_export(tmp_path: Path) -> None:
    url = f"{URL}/copied"
    manifest = {"format": "packidx-lengths", "files": [{"path": "0.txt"}]}
    storage.write(f"{url}/0.txt", b"rows")
    storage.write(f"{url}/manifest.json", json.dumps(manifest).encode())
    one = folder(tmp_path / "one", "one")
    with pytest.raises(OptionError, match=r"holds the lengths that packidx wrote"):
        publish(one, url, PACKS)
    assert contents(url)["0.txt"] == "rows"
    publish(one, url, LENGTHS)
    assert contents(url)["0.txt"] == "one 0"


def test_an_index_that_a_killed_plan_began_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "windows" / "0a").mkdir(parents=True)
    (tmp_path / ".lock").touch()
    check_index(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OptionError, match=r"holds notes\.txt, which packidx did not write"):
        check_index(str(tmp_path))
