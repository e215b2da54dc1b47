"""`precompute --pixels`: images come as if they were decoded, and are not."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import logging
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import image_modes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from click.testing import CliRunner
from family_processors import family_processor
from packidx_cli.main import cli
from PIL import Image, ImageDraw
from record_files import tar_of

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder, patches
from packidx.encode.kept import KeptImage
from packidx.encode.patches import ImagePatches
from packidx.errors import FormatError, MismatchError, OptionError, SourceError
from packidx.format.pixels import PixelStore, kept
from packidx.precompute import keep_pixels
from packidx.precompute import pixels as making
from packidx.records.media.images import open_image
from packidx.torch import PackedDataset

ASKED = {"role": "user", "content": "<image>\nWhat is it?"}
TURNS = [ASKED, {"role": "assistant", "content": "Noise."}]


@pytest.fixture(scope="module")
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images of all modes: as files that two records name, in a tar, in Parquet and as base64."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = [each for each in image_modes.files(3, 40) if isinstance(each, bytes)]
    names = []
    for number, content in enumerate(files[:12]):
        names.append(f"{number}.img")
        (folder / names[-1]).write_bytes(content)
    records = [{"messages": TURNS, "images": [name]} for name in [*names, *names]]
    coded = [base64.b64encode(content).decode() for content in files[12:15]]
    records += [{"messages": TURNS, "images": [{"bytes": each}]} for each in coded]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    members = []
    for number, content in enumerate(files[15:24]):
        text = json.dumps({"messages": TURNS}).encode()
        members += [(f"{number}.json", text), (f"{number}.jpg", content)]
    (folder / "b.tar").write_bytes(tar_of(members))
    columns = {"messages": [TURNS] * 12, "images": [[{"bytes": each}] for each in files[20:32]]}
    pq.write_table(pa.table(columns), folder / "c.parquet")
    return folder


def packs(folder: Path, encode: ProcessorEncoder) -> Iterator[dict[str, Any]]:
    dataset = PackedDataset(folder / "index", encode)
    for k in range(len(dataset)):
        yield dataset[k].joined()


@pytest.fixture
def index(data: Path, processor: str) -> Path:
    estimate_lengths(str(data), data.parent / "lengths", processor=processor, workers=1)
    plan_packs(data.parent / "lengths", data.parent / "index", capacity=1024)
    return data.parent


# -- what a reader gets ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float32", "uint8"])
def test_packs_are_equal_and_nothing_is_decoded(
    form: str, index: Path, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep_pixels(str(index / "data"), index / "pixels", processor, workers=1)
    assert (kept.num_images, kept.num_references, kept.num_unreadable) == (32, 48, 0)
    plain = list(packs(index, ProcessorEncoder(processor, pixels=form)))
    # One of each kind is compared with the processor's; after that nothing is decoded.
    encode = ProcessorEncoder(processor, pixels=form, pixel_store=index / "pixels")
    list(packs(index, encode))

    def refuse(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(KeptImage, "decoded", refuse)
    monkeypatch.setattr(ImagePatches, "_cut", refuse)
    for own, their in zip(packs(index, encode), plain, strict=True):
        assert own.keys() == their.keys()
        for key, value in their.items():
            same = torch.equal if isinstance(value, torch.Tensor) else np.array_equal
            assert same(own[key], value), key


def test_an_image_is_its_bytes_not_its_path(data: Path, processor: str, tmp_path: Path) -> None:
    keep_pixels(str(data / "a.jsonl"), tmp_path / "pixels", processor, workers=1)
    store = ProcessorEncoder(processor, pixel_store=tmp_path / "pixels")
    shutil.copy(data / "1.img", tmp_path / "elsewhere")
    assert isinstance(store.open_image(str(tmp_path / "elsewhere")), KeptImage)
    with Image.open(data / "1.img") as before:
        size = before.size
    Image.new("RGB", size).save(data / "1.img", "PNG")
    edited = store.open_image(str(data / "1.img"))
    assert not isinstance(edited, KeptImage)
    assert edited.size == size


def test_whoever_looks_sees_the_image(data: Path, processor: str, tmp_path: Path) -> None:
    keep_pixels(str(data / "a.jsonl"), tmp_path / "pixels", processor, workers=1)
    store = ProcessorEncoder(processor, pixel_store=tmp_path / "pixels")
    for number in range(12):
        path = str(data / f"{number}.img")
        kept, opened = store.open_image(path), open_image(path)
        assert isinstance(kept, KeptImage)
        assert (kept.size, kept.mode) == (opened.size, opened.mode)
        assert np.array_equal(np.asarray(kept), np.asarray(opened))
        again = store.open_image(path)
        assert again.convert("RGBA").tobytes() == opened.convert("RGBA").tobytes()


def masked(image: Image.Image) -> None:
    ImageDraw.Draw(image).rectangle((0, 0, 60, 60), fill=0)


CHANGES: list[Callable[[Image.Image], Any]] = [
    masked,
    lambda image: image.paste(7, (3, 3, 20, 20)),
    lambda image: image.thumbnail((60, 60)),
    lambda image: image.info,
    lambda image: image.rotate(90),
    copy.deepcopy,
    lambda image: pickle.loads(pickle.dumps(image)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_drawn_on_an_image_is_seen(
    change: Callable[[Image.Image], Any], processor: str, tmp_path: Path
) -> None:
    path, store = one_kept(tmp_path, processor)
    encode = ProcessorEncoder(processor, pixel_store=store)
    made = []
    for image in (encode.open_image(str(path)), open_image(str(path))):
        changed = change(image)
        image = changed if isinstance(changed, Image.Image) else image
        made.append(encode(image_modes.record(image))["pixel_values"])
    assert torch.equal(*made)


def one_kept(tmp_path: Path, processor: str) -> tuple[Path, Path]:
    """The path of an image, and of a folder with its pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.png")
    record = {"messages": TURNS, "images": ["x.png"]}
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    keep_pixels(str(tmp_path / "x.jsonl"), tmp_path / "pixels", processor, workers=1)
    return tmp_path / "x.png", tmp_path / "pixels"


def encoded(encode: ProcessorEncoder, path: Path) -> torch.Tensor:
    return encode(image_modes.record(encode.open_image(str(path))))["pixel_values"]


def test_wrong_pixels_are_not_believed(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    right = ImagePatches.of_image
    monkeypatch.setattr(
        ImagePatches, "of_image", lambda *args: (right(*args)[0], right(*args)[1] ^ 1)
    )
    path, store = one_kept(tmp_path, processor)
    encode = ProcessorEncoder(processor, pixel_store=store)
    assert torch.equal(encoded(encode, path), encoded(ProcessorEncoder(processor), path))
    assert "pixels that were kept of a PNG are not the processor's" in caplog.text


def test_damage_is_found(processor: str, tmp_path: Path, caplog: Any) -> None:
    path, store = one_kept(tmp_path, processor)
    plain = encoded(ProcessorEncoder(processor), path)
    file = store / "pixels.sqlite"
    written, ((*_, patches),) = file.read_bytes(), content(store)
    at = written.index(patches[5000:5040])
    file.write_bytes(written[:at] + bytes([written[at] ^ 4]) + written[at + 1 :])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(encoded(ProcessorEncoder(processor, pixel_store=store), path), plain)
    assert "damaged: keep them anew" in caplog.text
    encode = ProcessorEncoder(processor, pixel_store=store)
    file.write_bytes(written[:4096] + bytes(len(written) - 4096))
    caplog.clear()
    assert torch.equal(encoded(encode, path), plain)
    assert "images are decoded from now on" in caplog.text
    file.write_bytes(b"SQLite format 3\0 no more")
    for folder in (store, tmp_path / "nowhere"):
        with pytest.raises(FormatError, match=r"pixels\.sqlite cannot be read"):
            ProcessorEncoder(processor, pixel_store=folder)
    with contextlib.closing(sqlite3.connect(tmp_path / "pixels.sqlite")) as other:
        other.execute("CREATE TABLE images (key)")
    with pytest.raises(FormatError, match="holds no pixels that this packidx reads"):
        ProcessorEncoder(processor, pixel_store=tmp_path)


def test_a_row_of_another_image_is_damage(processor: str, tmp_path: Path, caplog: Any) -> None:
    path, store = one_kept(tmp_path, processor)
    plain = encoded(ProcessorEncoder(processor), path)
    with contextlib.closing(sqlite3.connect(store / "pixels.sqlite")) as connection, connection:
        connection.execute("UPDATE images SET width = height, height = width")
    encode = ProcessorEncoder(processor, pixel_store=store)
    image = encode.open_image(str(path))
    assert isinstance(image, KeptImage)
    with pytest.raises(FormatError, match="damaged"):
        image.kept.read(3 * 14**2)
    with contextlib.closing(sqlite3.connect(store / "pixels.sqlite")) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'by_key'")
    with contextlib.closing(sqlite3.connect(store / "pixels.sqlite")) as connection, connection:
        connection.execute("UPDATE images SET key = zeroblob(16), width = 120, height = 90")
    assert torch.equal(encoded(ProcessorEncoder(processor, pixel_store=store), path), plain)


def test_another_way_of_resizing_is_refused(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = one_kept(tmp_path, processor)
    monkeypatch.setattr(patches, "_resized_by_torch", patches._resized_by_pillow)
    real = ImagePatches._agrees
    monkeypatch.setattr(ImagePatches, "_agrees", lambda *_: True)
    with pytest.raises(MismatchError, match=r"resized: "):
        ProcessorEncoder(processor, pixel_store=store)
    monkeypatch.setattr(ImagePatches, "_agrees", real)


def test_runs_that_begin_together_make_one_store(tmp_path: Path) -> None:
    settings = {"images.max_pixels": 1}
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: PixelStore.begin(str(tmp_path), settings), range(8)))
        rows = [kept(bytes([n]) * 16, 1, 1, "L", None, [1, 1, 1], np.zeros(3)) for n in range(8)]
        added = list(pool.map(lambda pair: pair[0].add([pair[1]]), zip(stores, rows, strict=True)))
    assert added == [1] * 8
    assert len(stores[0]) == 8
    assert {str(store.settings) for store in stores} == {str(settings)}
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "pixels.sqlite"}


_KILLED = """
import os, sqlite3, sys
writer = sqlite3.connect(sys.argv[1])
writer.execute("PRAGMA cache_spill = 1")
writer.execute("PRAGMA cache_size = 1")
writer.execute("UPDATE images SET patches = randomblob(500000), mode = 'XX'")
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_has_begun_is_rolled_back(processor: str, tmp_path: Path) -> None:
    path, store = one_kept(tmp_path, processor)
    before = content(store)
    file = store / "pixels.sqlite"
    subprocess.run([sys.executable, "-c", _KILLED, str(file)], check=False)
    assert (store / "pixels.sqlite-journal").exists()
    encode = ProcessorEncoder(processor, pixel_store=store)
    assert isinstance(encode.open_image(str(path)), KeptImage)
    assert content(store) == before
    again = keep_pixels(str(tmp_path / "x.jsonl"), store, processor, workers=1)
    assert (again.num_images, again.num_made) == (1, 0)


def test_other_settings_are_refused(processor: str, tmp_path: Path) -> None:
    _, store = one_kept(tmp_path, processor)
    settings = {"images.max_pixels": 3136}
    said = r"images\.max_pixels: 12845056 there, 3136 here"
    with pytest.raises(MismatchError, match=said):
        ProcessorEncoder(processor, settings=settings, pixel_store=store)
    source = str(tmp_path / "x.jsonl")
    with pytest.raises(MismatchError, match=said):
        keep_pixels(source, store, processor, processor_settings=settings, workers=1)


# -- what is written -------------------------------------------------------------------------------


def content(folder: Path) -> list[Any]:
    """The rows of a folder of pixels."""
    with contextlib.closing(sqlite3.connect(folder / "pixels.sqlite")) as connection:
        return connection.execute("SELECT * FROM images ORDER BY key").fetchall()


def test_only_what_is_missing_is_made(
    data: Path, processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep_pixels(str(data / "a.jsonl"), tmp_path / "pixels", processor, workers=1)
    assert (first.num_images, first.num_made) == (15, 15)
    every = keep_pixels(str(data), tmp_path / "pixels", processor, workers=1)
    assert (every.num_images, every.num_made) == (32, 17)
    monkeypatch.delattr(ProcessorEncoder, "image_bytes")
    again = keep_pixels(str(data), tmp_path / "pixels", processor, workers=1)
    assert (again.num_images, again.num_made) == (32, 0)


def test_a_killed_run_goes_on(
    data: Path, processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_RECORDS", 5)
    whole = keep_pixels(str(data), tmp_path / "whole", processor, workers=1)
    assert (whole.num_images, whole.num_references) == (32, 48)
    right, left = ProcessorEncoder.image_bytes, [0]

    def killed(self: ProcessorEncoder, image: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return right(self, image)

    monkeypatch.setattr(ProcessorEncoder, "image_bytes", killed)
    for left[0] in (3, 12, 9):  # 32 in all, of which at most four are made anew each time
        with pytest.raises(KeyboardInterrupt):
            keep_pixels(str(data), tmp_path / "pixels", processor, workers=1)
    left[0] = 16
    assert keep_pixels(str(data), tmp_path / "pixels", processor, workers=1).num_images == 32
    assert content(tmp_path / "whole") == content(tmp_path / "pixels")


@pytest.mark.slow
def test_workers_write_the_same_bytes(data: Path, processor: str, tmp_path: Path) -> None:
    for workers in (1, 2):
        keep_pixels(str(data), tmp_path / str(workers), processor, workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_what_is_no_image_is_left_out_and_told(data: Path, processor: str, tmp_path: Path) -> None:
    (data / "1.img").write_bytes(b"no image")
    (data / "2.img").write_bytes((data / "3.img").read_bytes()[:60])
    (data / "4.img").unlink()
    kept = keep_pixels(str(data / "a.jsonl"), tmp_path / "pixels", processor, workers=1)
    assert (kept.num_images, kept.num_unreadable) == (12, 6)
    with pytest.raises(SourceError, match="none of the images of 1 records can be used"):
        (data / "b.jsonl").write_text(json.dumps({"messages": TURNS, "images": ["4.img"]}))
        keep_pixels(str(data / "b.jsonl"), tmp_path / "other", processor, workers=1)
    nothing = data / "nothing.jsonl"
    nothing.write_text(json.dumps({"messages": TURNS[1:]}))
    assert keep_pixels(str(nothing), tmp_path / "none", processor, workers=1).num_images == 0


def test_what_cannot_be_kept_is_said(data: Path, processor: str, tmp_path: Path) -> None:
    source = str(data / "a.jsonl")
    _, tiles = family_processor("internvl", tmp_path / "internvl")
    with pytest.raises(OptionError, match="makes its pixels itself"):
        keep_pixels(source, tmp_path / "pixels", tiles, workers=1)
    assert not (tmp_path / "pixels").exists()
    with pytest.raises(OptionError, match="which is of no folder of pixels"):
        keep_pixels(source, data, processor, workers=1)
    for output, engine in (("s3://bucket/pixels", "local"), (tmp_path / "pixels", "ray")):
        with pytest.raises(OptionError, match="by processes of this machine, in a folder of it"):
            keep_pixels(source, output, processor, engine=engine)


def test_the_command_line(data: Path, processor: str, tmp_path: Path) -> None:
    command = ["precompute", str(data), "--pixels", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, [*command, "--processor", processor, "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "32, 32 of them new" in done.output
    assert "48 times" in done.output
    done = CliRunner().invoke(cli, [*command, "--processor", processor, "--json"])
    assert json.loads(done.stdout)["num_made"] == 0
    done = CliRunner().invoke(cli, [*command, "--processor", processor, "--max-rejected", "1%"])
    assert (done.exit_code, "are of counts" in done.output) == (2, True)
