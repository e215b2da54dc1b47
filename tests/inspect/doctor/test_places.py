"""`packidx doctor INDEX` of places that are no index, or not whole, or that never answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.errors import NotFoundInIndex
from packidx.inspect.doctor import index as doctor_index
from packidx.io import storage

pytestmark = pytest.mark.usefixtures("known")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of bare lengths."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"length": [5, 6, 7]}), "bare.parquet")
    plan_packs("bare.parquet", "index", capacity=8)
    return tmp_path


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    taken = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def said(capsys: pytest.CaptureFixture[str], *args: str, status: int = 1) -> tuple[str, str]:
    """What it has on stdout, without ends of lines, and its one line on stderr."""
    capsys.readouterr()
    assert main(["doctor", *args]) == status
    out, err = capsys.readouterr()
    assert err.count("\n") == status and "Traceback" not in out + err
    return " ".join(out.split()), err


def test_a_store_that_never_answers_is_told_soon(
    silent: str, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(doctor_index, "PATIENCE", 2.0)
    settings = {
        "AWS_ENDPOINT_URL": silent,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with mock.patch.dict(os.environ, settings):
        s3fs.S3FileSystem.clear_instance_cache()
        start = time.monotonic()
        _, err = said(capsys, "s3://bucket/index")
        took = time.monotonic() - start
        s3fs.S3FileSystem.clear_instance_cache()
    assert took < 20 and "did not answer within 2 seconds" in err


@pytest.mark.parametrize("name", ["HEAD", "manifest.json"])
def test_a_fifo_is_no_file(
    name: str, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "HEAD":
        os.unlink("index/HEAD")
        os.mkfifo("index/HEAD")
    else:
        os.mkdir("index2")
        os.mkfifo("index2/manifest.json")  # which a lengths table would have
    writer = threading.Timer(10, lambda: _give_up(Path("index")))
    writer.start()
    start = time.monotonic()
    _, err = said(capsys, "index" if name == "HEAD" else "index2")
    assert time.monotonic() - start < 8
    writer.cancel()
    expected = "no regular file" if name == "HEAD" else "is no pack index"
    assert expected in err


def _give_up(folder: Path) -> None:
    """Let go of whoever waits for a writer, so that the test fails and does not hang."""
    for fifo in (folder / "HEAD", Path("index2/manifest.json")):
        if fifo.is_fifo():
            os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))


def test_a_pipe_cannot_be_read_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    handle = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)  # so that opening never waits
    os.write(handle, b"text")
    with pytest.raises(OSError, match="no regular file"):
        storage.read(str(tmp_path / "pipe"))
    os.close(handle)
    (tmp_path / "file").write_bytes(b"text")
    assert storage.read(str(tmp_path / "file")) == b"text"
    with pytest.raises(IsADirectoryError):
        storage.read(str(tmp_path))


def test_what_is_no_index_is_told_and_nobody_is_to_plan_over_it(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, what in (("data.txt", "no HEAD"), ("folder", "no HEAD"), ("gone", "not exist")):
        if place == "folder":
            Path(place).mkdir()
        elif place == "data.txt":
            Path(place).write_text("x")
        _, err = said(capsys, place)
        assert what in err and f"-o {place}" not in err and "make one" not in err
        with pytest.raises(NotFoundInIndex, match=what):
            open_index(place)


def test_an_empty_name_is_an_error_of_its_own(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chdir("index")  # which is what an empty path would lead to
    out, err = said(capsys, "")
    assert out == "" and err.startswith("packidx: INDEX is empty")


def test_a_root_that_leads_nothing_elsewhere_is_told(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, "index", "--root", "/nowhere=/data", status=0)
    assert "?? data" in out and "--root /nowhere: no path of the index begins so" in out
    out, _ = said(capsys, "index", "--root", "bare.parquet=moved.parquet", status=0)
    assert "ok data" in out and "begins so" not in out


def test_files_that_are_gone_are_said_to_be_missing(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(open_index("index").location)
    next(place.glob("dropped-*.parquet")).unlink()
    _, err = said(capsys, "index")
    assert "is missing" in err and "cannot be read" not in err
    (place / "manifest.json").unlink()
    _, err = said(capsys, "index")
    assert f"snapshots/{place.name} has no manifest.json" in err
