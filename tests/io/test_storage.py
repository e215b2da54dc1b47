"""One set of functions for files and for an S3 bucket: the same answers, cut connections mended."""

from __future__ import annotations

import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from object_store import URL, Store

from packidx.errors import SourceError
from packidx.io import cache, storage
from packidx.io import urls as urls_module
from packidx.records.media.images import image_info

CONTENT = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def places(store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same files in a folder and in the bucket."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "a.bin").write_bytes(CONTENT)
    (folder / "sub/b.jsonl").write_bytes(b"{}\n")
    (folder / "sub/.hidden.jsonl").write_bytes(b"{}\n")
    (folder / "sub/deep/c d+é.txt").write_bytes(b"c")
    return str(folder), store.put_tree(folder, "files")


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, places: tuple[str, str]) -> str:
    return places[request.param == "bucket"]


def test_reading(place: str) -> None:
    path = urls_module.join_path(place, "a.bin")
    assert storage.read(path) == CONTENT
    assert storage.read_range(path, 1000, 77) == CONTENT[1000:1077]
    assert storage.read_range(path, len(CONTENT) - 5, 100) == CONTENT[-5:]
    assert storage.read_range(path, len(CONTENT) + 5, 100) == b""
    assert storage.read_range(path, 3, 0) == b""
    assert storage.stat(path).nbytes == len(CONTENT)


def test_looking(place: str) -> None:
    assert storage.list_names(place) == ["a.bin", "sub"]
    assert storage.list_names(urls_module.join_path(place, "nothing")) == []
    assert storage.is_folder(place) and storage.is_folder(urls_module.join_path(place, "sub"))
    assert not storage.is_folder(urls_module.join_path(place, "a.bin"))
    assert storage.is_file(urls_module.join_path(place, "a.bin"))
    assert not storage.is_file(urls_module.join_path(place, "sub"))
    assert not storage.exists(urls_module.join_path(place, "nothing"))
    found = storage.glob(urls_module.join_path(place, "**/*.*"))
    assert [one.removeprefix(place) for one in found] == [
        "/a.bin",
        "/sub/b.jsonl",
        "/sub/deep/c d+é.txt",
    ]
    hidden = storage.glob(urls_module.join_path(place, "sub/.h*"))
    assert [one.removeprefix(place) for one in hidden] == ["/sub/.hidden.jsonl"]
    walked = [(here.removeprefix(place), sorted(files)) for here, _, files in storage.walk(place)]
    expected = [
        ("", ["a.bin"]),
        ("/sub", [".hidden.jsonl", "b.jsonl"]),
        ("/sub/deep", ["c d+é.txt"]),
    ]
    assert sorted(walked) == expected


def test_a_missing_file(place: str) -> None:
    path = urls_module.join_path(place, "nothing")
    for call in (storage.read, storage.stat, lambda p: storage.read_range(p, 0, 1)):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert caught.value.filename == path


def test_a_cut_connection_is_tried_again(store: Store, places: tuple[str, str]) -> None:
    store.cuts += ["a.bin", "a.bin"]
    assert storage.read(f"{places[1]}/a.bin") == CONTENT
    store.cuts += ["a.bin"]
    assert Path(cache.fetch_copy(f"{places[1]}/a.bin", "cut")).read_bytes() == CONTENT
    assert not store.cuts


def test_passwords_are_refused() -> None:
    for call in (storage.read, storage.stat, storage.list_names, storage.is_folder):
        with pytest.raises(
            SourceError, match=r"the URL of s3://b/x has a password in it"
        ) as caught:
            call("s3://key:secret@b/x")
        assert "secret" not in str(caught.value)
    with pytest.raises(SourceError, match=r"the URL of s3://b/x has a password in it"):
        urls_module.refuse_password("s3://key:one/two@b/x")  # as half of all keys of AWS have
    urls_module.refuse_password("https://host:9000/index@1f2e")
    urls_module.refuse_password("abfs://container@account.host/x:y@z")


def test_writing(store: Store, tmp_path: Path) -> None:
    storage.write(f"{URL}/written/x", b"one")
    (tmp_path / "y").write_bytes(b"two")
    storage.upload_file(str(tmp_path / "y"), f"{URL}/written/y")
    assert storage.list_names(f"{URL}/written") == ["x", "y"]
    assert storage.read(f"{URL}/written/y") == b"two"
    storage.remove_file(f"{URL}/written/x")
    storage.remove_file(f"{URL}/written/x")
    assert storage.list_names(f"{URL}/written") == ["y"]


def test_no_credentials(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(OSError) as caught:
        storage.read(f"{URL}/files/a.bin")
    assert "credentials" in str(caught.value) or isinstance(caught.value, PermissionError)
    s3fs.S3FileSystem.clear_instance_cache()


def test_several_who_need_a_copy_fetch_it_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path))
    storage.write(f"{URL}/copies/a.bin", CONTENT)
    store.forget()
    copies = set(storage.map_overlapped(cache.fetch_copy, [f"{URL}/copies/a.bin"] * 8))
    (copy,) = (path for path in tmp_path.glob("files/*/*") if not path.name.startswith("."))
    assert copies == {str(copy)} and copy.name == "256000-a.bin"
    assert copy.read_bytes() == CONTENT
    assert store.read("/a.bin") == len(CONTENT)


REFUSALS = [
    (400, "InvalidToken", "The provided token is malformed"),
    (412, "PreconditionFailed", "A precondition failed"),
    (400, "SomethingNew", "Words of the store"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=[code for _, code, _ in REFUSALS])
def test_a_refusal_is_not_the_end_of_a_file(store: Store, refusal: tuple[int, str, str]) -> None:
    storage.write(f"{URL}/refused/a.png", CONTENT)
    store.refusals.append(("GET", "refused/a.png", *refusal))
    try:
        for call in (storage.read, lambda path: storage.read_range(path, 0, 10), image_info):
            with pytest.raises((OSError, SourceError)) as caught:
                call(f"{URL}/refused/a.png")
            assert refusal[2] in str(caught.value)
            assert f"{URL}/refused/a.png" in str(caught.value)
    finally:
        store.refusals.clear()


class NoRanges(SimpleHTTPRequestHandler):
    """A server that has one byte, and says so with `status`."""

    status = 416

    def do_GET(self) -> None:
        self.send_error(self.status)

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("status", [416, 400])
def test_only_416_ends_a_file_of_a_web_server(status: int) -> None:
    handler = type("Handler", (NoRanges,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/a.png"
        if status == 416:
            assert storage.read_range(url, 10, 10) == b""
        else:
            with pytest.raises(OSError, match=str(status)):
                storage.read_range(url, 10, 10)
        server.shutdown()


def test_a_file_that_is_replaced_meanwhile_is_not_kept(store: Store) -> None:
    """The version is asked for, and then another object is there."""
    url = f"{URL}/replaced/x"
    storage.write(url, b"old")
    store.replaced["replaced/x"] = b"new"
    with pytest.raises(OSError, match="replaced while it was read"):
        cache.fetch_copy(url)
    for content in (b"new", b"old"):  # also for other processes, which know the old version
        storage.write(url, content)
        cache.forget_stats()
        assert Path(cache.fetch_copy(url)).read_bytes() == content


def test_what_a_killed_download_left_is_not_read(store: Store) -> None:
    url = f"{URL}/killed/x"
    storage.write(url, CONTENT)
    copy = Path(cache.fetch_copy(url))
    copy.rename(copy.parent / ".begun")
    (copy.parent / ".begun").write_bytes(CONTENT[:100])
    assert Path(cache.fetch_copy(url)).read_bytes() == CONTENT
    assert [path.name for path in copy.parent.iterdir() if path.name != ".lock"] == [copy.name]
