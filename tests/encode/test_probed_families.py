"""Where arithmetic ends: settings that a family does not count, and media no tensor is made of."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import family_processors as families
import family_processors_tiles as tiles
import pytest
from every_processor import build, processor_classes
from transformers import AutoProcessor

from packidx.encode import ProcessorEncoder
from packidx.encode.blanks import medium_of
from packidx.encode.learn import probe
from packidx.encode.loading import load_processor
from packidx.encode.media import info_of
from packidx.encode.probe import ProbedMedia
from packidx.encode.whole import NotBuilt, build_sample, ids_of, tensors_of
from packidx.errors import BadRecord, PackidxError, SourceError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter

SIZES = ["56x84", "224x224", "100x130", "28x28"]
SPLIT = ["5x48x64@2.0", "9x48x64@2.0"]
"""Two videos whose frames become squares of one size, 5 and 9 of them."""


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probed-families")


@pytest.fixture(autouse=True)
def own_cache(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp / "cache"))


def made(name: str, tmp: Path) -> tuple[Any, Path]:
    if name.endswith("Processor"):
        return build(name, processor_classes()[name], tmp)
    if name.startswith("internvl"):
        return families.family_processor(name, tmp)
    processor, folder = getattr(tiles, name)(tmp), tmp / name
    processor.save_pretrained(folder)
    return processor, folder


def lengths(files: ProcessorFiles, real: Any, kind: str, *shapes: str) -> tuple[Any, Any]:
    """Of a sample, by our count and by the real processor; why there is none."""
    talk = probe([medium_of(kind, shape, 1) for shape in shapes])
    counts = ConversationCounter(files).count([talk], [[info_of(each) for each in talk.media]])
    try:
        built = build_sample(real, files.template_of(talk), talk)
        tensors_of(built, type(real).__name__)
    except NotBuilt as error:
        return counts.errors.get(0, int(counts.length[0])), error
    return counts.errors.get(0, int(counts.length[0])), len(ids_of(built))


@pytest.mark.parametrize(
    ("name", "changed", "refusal"),
    [
        ("llava", {"size": 224, "do_center_crop": False}, "its size is 224"),
        ("llava", {"size": {"shortest_edge": 224}, "do_center_crop": False}, "do_center_crop"),
        ("llava_next", {"do_resize": False}, "do_resize false"),
        ("gemma3", {"do_resize": False}, "do_resize false"),
        ("internvl-small", {"do_resize": False}, "do_resize is False"),
    ],
)
def test_settings_that_a_family_does_not_count_are_probed(
    name: str, changed: dict[str, Any], refusal: str, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made(name, tmp)
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["image_processor"] |= changed
    path.write_text(json.dumps(config))
    files = load_processor(folder)
    assert isinstance(files.vision, ProbedMedia) and files.needs_proof
    real = AutoProcessor.from_pretrained(folder)
    for size in SIZES:
        ours, theirs = lengths(files, real, "image", size)
        assert ours == theirs
    content = [{"type": "image", "image": medium_of("image", SIZES[0], 1).ref}]
    assert "pixel_values" in ProcessorEncoder(folder)(
        {"messages": [{"role": "user", "content": content}]}
    )

    def fails(*_: Any) -> None:
        raise PackidxError("transformers is not there")

    monkeypatch.setattr(ProbedMedia, "__init__", fails)
    with pytest.raises(SourceError, match=refusal):
        load_processor(folder)


def test_settings_that_the_real_processor_cannot_count_are_refused(tmp: Path) -> None:
    processor = tiles.llava(tmp)
    processor.patch_size = None
    with pytest.raises(SourceError, match="patch_size"):
        tiles.saved(processor, tmp / "no-patches")


@pytest.mark.parametrize("name", ["Emu3Processor", "VideoLlavaProcessor"])
def test_images_that_the_real_processor_does_not_build_are_rejected(name: str, tmp: Path) -> None:
    """Few rows are taken for channels when values are changed: no image of such is counted."""
    real, folder = made(name, tmp)
    files, outcomes = load_processor(folder), set()
    pairs = itertools.permutations(("1x60", "3x3", "3x30", "30x60"), 2)
    for sizes in [("1x1",), ("1x60",), ("30x60",), ("48x64", "30x60"), *pairs]:
        ours, theirs = lengths(files, real, "image", *sizes)
        assert ours == theirs or ours.reason == "media_not_counted"
        outcomes.add(type(ours))
    assert outcomes == {int, BadRecord}


@pytest.mark.parametrize(
    "name",
    ["internvl-small", "llava_onevision", "LlavaNextVideoProcessor", "VideoLlavaProcessor"],
)
def test_videos_of_different_numbers_of_frames_are_rejected_in_one_sample(
    name: str, tmp: Path
) -> None:
    real, folder = made(name, tmp / "several")
    files = load_processor(folder)
    for shapes in ([SPLIT[0]], [SPLIT[0]] * 2, [SPLIT[0], "5x90x70@2.0"]):
        ours, theirs = lengths(files, real, "video", *shapes)
        assert ours == theirs > 10
    for shapes in (SPLIT, [SPLIT[1], *SPLIT]):
        ours, theirs = lengths(files, real, "video", *shapes)
        assert isinstance(theirs, NotBuilt)
        assert ours.reason in ("unsupported_media", "media_not_counted")
        assert {"5", "9"} <= {
            *ours.detail.replace(":", " ").replace("[", " ").replace(",", " ").split()
        }
