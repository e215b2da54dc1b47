"""Publishing into an object store: one kind of thing in its place, and two writers at once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from object_store import URL, Store, object_store

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.own_files import LIST, Kind, check_bucket
from packidx.io.publish import publish

LENGTHS = Kind("lengths table", "manifest.json", "packidx-lengths", lambda stated: ["0.txt"])
TABLE = Kind("table", "manifest.json", "packidx-table", lambda stated: ())
PACKS = Kind("folder of packs", ".packidx.json", "packidx-wds", lambda stated: ())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(tmp_path_factory.mktemp("cache")) as found:
        yield found


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


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("at", [1, 6])
def test_of_two_writers_the_second_wins_or_nobody(tmp_path: Path, at: int) -> None:
    """The second begins and ends while the first is at its first file, or behind its last one."""
    url = f"{URL}/writers{at}"
    one, two = folder(tmp_path / "one", "one"), folder(tmp_path / "two", "two")

    def told(done: int, total: int) -> None:
        if done == at:
            publish(two, url, TABLE)

    with pytest.raises(OptionError, match="another run is making the table"):
        publish(one, url, TABLE, told)
    found = contents(url)
    if "manifest.json" in found:
        assert found == {path.name: path.read_text() for path in Path(two).iterdir()}
    publish(one, url, TABLE)
    assert contents(url) == {path.name: path.read_text() for path in Path(one).iterdir()}


@pytest.mark.usefixtures("store")
def test_what_another_has_put_over_it_is_seen(tmp_path: Path) -> None:
    """A file of the other writer that comes late, from an upload it had begun before."""
    url = f"{URL}/late"

    def told(done: int, total: int) -> None:
        if done == total:
            storage.write(f"{url}/3.txt", b"two 3")  # of the same size

    with pytest.raises(OptionError, match="another run is making the table"):
        publish(folder(tmp_path / "one", "one"), url, TABLE, told)
    assert "manifest.json" not in contents(url)


def test_a_place_that_cannot_be_listed_is_not_free(store: Store, tmp_path: Path) -> None:
    publish(folder(tmp_path / "one", "one"), f"{URL}/denied", TABLE)
    store.denied.append("list-type=2")
    with pytest.raises(OSError):
        publish(folder(tmp_path / "two", "two"), f"{URL}/denied", TABLE)
    store.denied.clear()
    assert contents(f"{URL}/denied")["0.txt"] == "one 0"


@pytest.mark.slow
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("default", [50 << 20, 20 << 20])
def test_files_in_parts_are_compared_by_their_parts(
    default: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever size of a part s3fs would take by itself."""
    put = s3fs.S3FileSystem._put_file
    given = inspect.signature(put).parameters.values()
    own = {one.name: one.default for one in given if one.default is not one.empty}
    assert "chunksize" in own
    monkeypatch.setattr(put, "__defaults__", tuple((own | {"chunksize": default}).values()))
    url = f"{URL}/large-{default}"
    source = tmp_path / "one"
    folder(source, "one", 1)
    content = bytes(range(256)) * (110 << 12)  # 110 MiB: s3fs uploads it in three parts
    (source / "large.bin").write_bytes(content)
    publish(str(source), url, TABLE)
    assert storage.stat(f"{url}/large.bin").version.endswith("-3")

    other = tmp_path / "other"
    other.mkdir()
    (other / "large.bin").write_bytes(content[:-1] + b"x")

    def told(done: int, total: int) -> None:
        if done == total:
            storage.upload(str(other / "large.bin"), f"{url}/large.bin")

    with pytest.raises(OptionError, match="another run is making the table"):
        publish(str(source), url, TABLE, told)


@pytest.mark.usefixtures("store")
def test_a_table_that_was_copied_into_the_bucket_is_no_export(tmp_path: Path) -> None:
    url = f"{URL}/copied"
    manifest = {"format": "packidx-lengths", "files": [{"path": "0.txt"}]}
    storage.write(f"{url}/0.txt", b"rows")
    storage.write(f"{url}/manifest.json", json.dumps(manifest).encode())
    one = folder(tmp_path / "one", "one")
    with pytest.raises(OptionError, match=r"holds 0\.txt, which packidx did not write"):
        publish(one, url, PACKS)
    assert contents(url)["0.txt"] == "rows"
    publish(one, url, LENGTHS)
    assert contents(url)["0.txt"] == "one 0"
