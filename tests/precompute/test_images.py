"""`precompute --images`: smaller images, of which the processor makes the same pixels."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import base64
import io
import itertools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import family_processors
import image_modes
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from dying import dying, statuses
from family_processors_tiles import gemma3, llava
from packidx_cli.main import main
from PIL import Image
from record_files import contents, tar_of

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import OptionError, SourceError
from packidx.precompute import write_images
from packidx.torch import PackedDataset

TURNS = [
    {"role": "user", "content": "<image>\nWhat is it?"},
    {"role": "assistant", "content": "Noise."},
]
SMALL = {"images.max_pixels": 28 * 28 * 12}
"""Settings under which most images are shrunk."""


@pytest.fixture(scope="module")
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all modes and orientations: files that two records name, and base64."""
    folder = tmp_path_factory.mktemp("resized") / "data"
    folder.mkdir()
    files = [each for each in image_modes.files(5, 48) if isinstance(each, bytes)]
    for number, content in enumerate(files):
        (folder / f"{number}.img").write_bytes(content)
    wide = io.BytesIO()
    Image.effect_noise((4100, 31), 90).convert("RGB").save(wide, "PNG")
    (folder / "wide.img").write_bytes(wide.getvalue())
    names = [path.name for path in sorted(folder.iterdir())]
    records: list[dict[str, Any]] = [{"messages": TURNS, "images": [name]} for name in names * 2]
    coded = base64.b64encode(files[3]).decode()
    records += [{"messages": TURNS, "images": [{"bytes": coded}]}]
    url = {"type": "image_url", "image_url": {"url": names[0]}}
    asked = {"role": "user", "content": [url, {"type": "text", "text": "And now?"}]}
    records += [{"messages": [asked, TURNS[1]], "id": "parts"}]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    return folder


def packs(source: Path, folder: Path, processor: str, form: str, settings: Any) -> list[Any]:
    """Every pack of a source, as training reads it; `folder` keeps the plan."""
    given: dict[str, Any] = {"processor": processor, "processor_settings": settings}
    estimate_lengths(str(source), folder / "lengths", workers=1, **given)
    plan_packs(folder / "lengths", folder / "index", capacity=2048)
    encode = ProcessorEncoder(processor, settings=settings, pixels=form)
    dataset = PackedDataset(folder / "index", encode)
    return [dataset[k].joined() for k in range(len(dataset))]


QWEN = ["qwen2.5-vl", "qwen3-vl"]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, settings) for name in QWEN for settings in ({}, SMALL)),
    ("glm4v", {}),
    ("glm46v", {}),
]


@pytest.mark.parametrize("form", ["float32", "uint8"])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_lengths_and_pixels_stay_equal(
    data: Path, processors: Path, tmp_path: Path, name: str, settings: Any, form: str
) -> None:
    folder = str(
        processors / name if name in QWEN else family_processors.family_processor(name, tmp_path)[1]
    )
    done = write_images(str(data), tmp_path / "out", folder, processor_settings=settings, workers=1)
    lines = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()]
    assert done.num_records == len(lines) and done.num_left_out == 0
    assert bool(done.num_originals) == bool(settings)  # narrow ones beyond the limits
    before, after = (
        packs(source, tmp_path / kind, folder, form, settings)
        for kind, source in (("old", data / "a.jsonl"), ("new", tmp_path / "out" / "a.jsonl"))
    )
    old, new = (
        pq.read_table(next((tmp_path / kind / "lengths").glob("part-*"))).to_pydict()
        for kind in ("old", "new")
    )
    for column in ("length", "image_tokens", "vision_patches", "label_tokens"):
        assert new[column] == old[column]
    # An image that is counted and not rewritten is refused: it would be missing in the copy.
    assert [s == "ok" for s in new["status"]] == [s == "ok" for s in old["status"]]
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]


@pytest.mark.parametrize("name", ["internvl-small", "kimi_k25", "gemma3", "llava"])
def test_processors_that_resize_again_are_refused(data: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "processor"
    if name in family_processors._BUILD:
        folder = family_processors.family_processor(name, tmp_path)[1]
    else:
        make = {"gemma3": lambda: gemma3(tmp_path, 112), "llava": lambda: llava(tmp_path)}[name]
        make().save_pretrained(folder)
    with pytest.raises(OptionError, match="cannot be resized ahead of training"):
        write_images(str(data), tmp_path / "out", folder, workers=1)
    assert not (tmp_path / "out").exists()


def test_an_image_that_two_records_name_is_written_once(
    data: Path, processor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["precompute", str(data), "--images", "-o", str(tmp_path / "out"), "--json"]
    assert main([*command, "--processor", processor, "--quiet", "--workers", "2"]) == 0
    done = json.loads(capsys.readouterr().out)
    files = list((tmp_path / "out" / "images").rglob("*.*"))
    assert done["num_images"] == len(files) == len({path.stem for path in files})
    assert done["num_references"] >= 2 * done["num_images"]
    write_images(str(data), tmp_path / "again", processor, workers=1)
    assert contents(tmp_path / "again") == contents(tmp_path / "out")
    (line,) = (
        line
        for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()
        if '"parts"' in line
    )
    part = json.loads(line)["messages"][0]["content"][0]
    assert part["type"] == "image" and part["image"].startswith("images/")


def test_what_cannot_be_used_is_counted_and_stays(processor: str, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    Image.new("RGB", (50, 60), "red").save(source / "a.png")
    (source / "cut.png").write_bytes((source / "a.png").read_bytes()[:40])
    records = [{"messages": TURNS, "images": [name]} for name in ("a.png", "cut.png", "no.png")]
    more = {**records[0], "videos": ["v.mp4"]}
    text = "\n".join([*map(json.dumps, [*records, more]), "{broken"])
    (source / "x.jsonl").write_text(text)
    done = write_images(str(source), tmp_path / "out", processor, workers=1)
    assert (done.num_records, done.num_unchanged, done.num_left_out) == (4, 2, 1)
    lines = [json.loads(line) for line in (tmp_path / "out" / "x.jsonl").read_text().splitlines()]
    video = {"type": "video", "video": str(source / "v.mp4")}
    assert lines[1:3] == records[1:3] and video in lines[3]["messages"][0]["content"]
    (source / "x.jsonl").write_text(json.dumps(records[1]))
    with pytest.raises(SourceError, match="none of 1 records can be used"):
        write_images(str(source), tmp_path / "none", processor, workers=1)


def said(image: Any = "", text: str = "What is it?", **more: Any) -> dict[str, Any]:
    """A chat whose question has an image as a part of its own."""
    part = {"type": "image", **({"image": image} if image else {})}
    asked = {"role": "user", "content": [part, {"type": "text", "text": text}]}
    return {"messages": [asked, TURNS[1]], **more}


# records, of which the last is rejected before and after; and how they are read
FORMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "TRL": ([said(images=["a.png"]), said(image="b.png"), said()], {}),
    "captions": ([{"file_name": "a.png", "caption": "Noise."}, {"file_name": "no.png", "text": "x"}], {}),
    "id is a path": ([{"messages": TURNS, "images": ["a.png"], "id": "a.png"}, {"messages": []}], {}),
    "a name beside it": ([{"messages": TURNS, "images": ["a.png"], "n": 3, "split": "train"}, {"messages": TURNS}], {}),
    "columns": ([{"chat": TURNS, "pics": ["b.png"]}, {"chat": TURNS, "pics": ["no.png"]}], {"columns": {"messages": "chat", "images": "pics"}}),
    "a column that hides another": ([{"q": "What?", "answer": "A", "gold": "Bee.", "image": "a.png"}, {"q": "What?", "answer": "A"}], {"columns": {"prompt": "q", "response": "gold"}, "ignore": ("answer",)}),
    "rejected by its own names alone": ([{"question": "So?", "answer": "A", "gold": "Bee.", "image": "a.png"}, {"question": "So?", "answer": "A"}], {"columns": {"response": "gold"}, "ignore": ("answer",)}),
    "tags": ([{"messages": [{"who": "U", "says": "<image>"}, {"who": "A", "says": "b"}], "image": "a.png"}, {"messages": TURNS}], {"tags": {"role_tag": "who", "content_tag": "says", "user_tag": "U", "assistant_tag": "A"}}),
    "alpaca": ([{"instruction": "Say", "input": "it.", "output": "So.", "system": "Be brief.", "images": ["a.png"], "history": [["a", "b"]]}, {"instruction": "x"}], {}),
    "flags": ([{"messages": [*TURNS, {**TURNS[0], "content": "And?"}, {**TURNS[1], "train": False}], "images": ["a.png"]}, {"messages": TURNS, "images": ["a.png", "b.png"]}], {}),
    "documents": ([{"text": "It was <image> dark."}, {"texts": ["One:", None], "images": [None, "a.png"]}, {"text": 3}], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_copy_is_read_without_its_names(name: str, processor: str, tmp_path: Path) -> None:
    records, given = FORMS[name]
    (tmp_path / "data").mkdir()
    for number, each in enumerate(("a.png", "b.png")):
        Image.effect_noise((300 + 40 * number, 250), 90).save(tmp_path / "data" / each)
    (tmp_path / "data" / "x.jsonl").write_text("\n".join(map(json.dumps, records)))
    write_images(str(tmp_path / "data"), tmp_path / "out", processor, workers=1, **given)
    rows = []
    for folder, options in (("data", given), ("out", {})):
        source, to = str(tmp_path / folder / "x.jsonl"), tmp_path / f"{folder}-lengths"
        estimate_lengths(source, to, processor=processor, workers=1, **options)
        rows.append(pq.read_table(next(to.glob("part-*"))).to_pylist())
    same = ("status", "length", "label_tokens", "image_tokens", "method")
    old, new = ([[row[column] for column in same] for row in each] for each in rows)
    assert new == old and [row["status"] for row in rows[0]][-2:] == ["ok", "rejected"]
    first = json.loads((tmp_path / "out" / "x.jsonl").read_text().splitlines()[0])
    if name == "a name beside it":
        assert (first["n"], first["split"]) == (3, "train")


def test_what_stays_has_absolute_paths(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "v").mkdir(parents=True)
    for name in ("0.png", "1.png"):
        Image.new("RGB", (60, 60)).save(tmp_path / "data" / "v" / name)
    write_clip(tmp_path / "data" / "v.mp4", frames=4)
    turns = [{"role": "user", "content": "<video>"}, TURNS[1]]
    videos: list[Any] = ["v.mp4", "v", ["v/0.png", "v/1.png"], {"frames": ["v/0.png", "v/1.png"]}]
    lines = [json.dumps({"messages": turns, "videos": [video]}) for video in videos]
    (tmp_path / "data" / "x.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    write_images("data", "out", processor, workers=1)
    found = [json.loads(line) for line in (tmp_path / "out" / "x.jsonl").read_text().splitlines()]
    parts = [record["messages"][0]["content"][0]["video"] for record in found]
    folder = str(tmp_path / "data")
    frames = [f"{folder}/v/0.png", f"{folder}/v/1.png"]
    assert parts == [f"{folder}/v.mp4", f"{folder}/v", frames, frames]
    monkeypatch.chdir("/")
    options: dict[str, Any] = {"processor": processor, "remote_media": [folder], "workers": 1}
    counted = estimate_lengths(str(tmp_path / "out" / "x.jsonl"), tmp_path / "lengths", **options)
    assert counted.methods == {"exact": 4}


def test_names_that_meet_and_outputs_that_are_finished(
    processor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "x").mkdir(parents=True)
    Image.new("RGB", (50, 60)).save(tmp_path / "data" / "a.png")
    line = json.dumps({"messages": TURNS, "images": ["a.png"]})
    for name in ("x/y.jsonl", "x__y.jsonl", "z/y.jsonl"):
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text(line)
    out, root = tmp_path / "out", {"media_root": tmp_path / "data", "workers": 1}
    with pytest.raises(SourceError, match=r"would both be x__y\.jsonl"):
        write_images(str(tmp_path / "data"), out, processor, **root)
    (tmp_path / "data" / "x__y.jsonl").unlink()
    assert write_images(str(tmp_path / "data"), out, processor, **root).num_records == 2
    assert {path.name for path in out.glob("*.jsonl")} == {"x__y.jsonl", "z__y.jsonl"}
    command = ["precompute", str(tmp_path / "data"), "--images", "-o", str(out)]
    assert main([*command, "--processor", processor, "--quiet"]) == 1
    assert "is never overwritten: delete it" in capsys.readouterr().err


def test_images_that_a_killed_run_over_other_data_left_are_removed(
    processor: str, tmp_path: Path
) -> None:
    source, left = tmp_path / "data", tmp_path / ".out.new"
    source.mkdir()
    Image.new("RGB", (50, 60), "red").save(source / "a.png")
    Image.new("RGB", (50, 60), "blue").save(source / "b.png")
    records = [json.dumps({"messages": TURNS, "images": [name]}) for name in ("a.png", "b.png")]
    (source / "x.jsonl").write_text("\n".join(records))
    other = write_images(str(source), tmp_path / "other", processor, workers=1)
    fingerprint = ProcessorEncoder(processor, pixels="uint8").fingerprint()
    shutil.copytree(tmp_path / "other" / "images", left / "table" / "images")
    (left / "job").write_text(f"images by {fingerprint}")
    (source / "x.jsonl").write_text(records[0])
    done = write_images(str(source), tmp_path / "out", processor, workers=1)
    files = list((tmp_path / "out" / "images").rglob("*.*"))
    assert (other.num_images, done.num_images, len(files)) == (2, 1, 1)
    assert done.nbytes == files[0].stat().st_size


def test_where_it_does_not_write(processor: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(tar_of([("1.json", b"{}"), ("1.jpg", b"")]))
    with pytest.raises(SourceError, match="is a tar file, and precompute writes back JSON"):
        write_images(str(tmp_path / "b.tar"), tmp_path / "out", processor)
    for output in ("s3://bucket/x", str(data)):
        with pytest.raises(OptionError):
            write_images(str(data), output, processor)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"notes\.txt"):
        write_images(str(data), tmp_path / "mine", processor)


DYING = dying("import packidx.precompute.images, packidx.encode.encoder, transformers")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(processor: str, tmp_path: Path) -> None:
    root, source = tmp_path / "root", tmp_path / "data"
    source.mkdir()
    root.mkdir()
    for number, image in enumerate(image_modes.images(1, 12)):
        Image.fromarray(np.asarray(image.convert("RGB"))).save(source / f"{number}.png")
    names = [path.name for path in source.iterdir()]
    records = [json.dumps({"messages": TURNS, "images": [name]}) for name in sorted(names)]
    (source / "x.jsonl").write_text("\n".join(records))
    write_images(str(source), tmp_path / "whole", processor, workers=1)
    arguments = ["precompute", str(source), "--images", "-o", str(root / "out")]
    arguments += ["--processor", processor, "--workers", "1", "--quiet"]
    kills = 0
    runs = ([number, str(root), arguments] for number in itertools.count(0, 2))
    for status in statuses(DYING, runs):
        if status == 0 or (root / "out").exists():
            break
        assert status == -signal.SIGKILL
        kills += 1
    assert kills > 3 and contents(root / "out") == contents(tmp_path / "whole")
    shutil.rmtree(root)
