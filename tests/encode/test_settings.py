"""Settings given beside a processor's folder: what is built with them is what the real processor,
loaded with the same, builds; what it does not have is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from every_processor import build
from PIL import Image
from transformers import AutoProcessor

from packidx.encode import ProcessorEncoder
from packidx.encode.imports import load_real
from packidx.encode.loading import load_processor
from packidx.encode.whole import build_sample
from packidx.errors import OptionError, SourceError
from packidx.processor.families import FAMILIES
from packidx.records.read import parse_record

QWEN, INTERNVL, IDEFICS3 = "Qwen2_5_VLProcessor", "InternVLProcessor", "Idefics3Processor"
QWEN3, AYA = "Qwen3VLProcessor", "AyaVisionProcessor"  # the last is of no family
SETTINGS: dict[str, list[dict[str, Any]]] = {
    QWEN: [
        {"max_pixels": 60_000},
        {"min_pixels": 150_000},
        {"min_pixels": 30_000, "max_pixels": 40_000},
        {"patch_size": 16, "max_pixels": 200_000},
        {"merge_size": 1, "max_pixels": 50_000},
    ],
    INTERNVL: [
        {"max_patches": 3},
        {"min_patches": 2, "max_patches": 4},
        {"size": {"height": 224, "width": 224}, "max_patches": 6},
        {"size": {"height": 112, "width": 168}},
        {"image_seq_length": 64, "max_patches": 2},
    ],
    IDEFICS3: [
        {"size": {"longest_edge": 800}},
        {"do_image_splitting": False},
        {"do_resize": False},
        {"max_image_size": {"longest_edge": 182}, "size": {"longest_edge": 360}},
        {"image_seq_len": 676, "size": {"longest_edge": 364}},
    ],
}
"""As `AutoProcessor.from_pretrained` takes them: for every part that knows the name."""
OWN = ("image_seq_length", "image_seq_len")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tmp = tmp_path_factory.getbasetemp() / "settings"
    made = {name: build(name, [], tmp)[1] for name in (*SETTINGS, QWEN3)}
    return {**made, AYA: build(AYA, ["aya_vision"], tmp)[1]}


def by_part(name: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """The same for packidx, which asks which part is meant."""
    given = {key if key in OWN else f"images.{key}": setting for key, setting in keywords.items()}
    both = {"size", "max_pixels", "min_pixels", "patch_size", "merge_size"} & keywords.keys()
    if name != IDEFICS3:
        given |= {f"videos.{key}": keywords[key] for key in both}
    return given


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_build_what_the_real_processor_builds_with_them(
    name: str, folders: dict[str, Path]
) -> None:
    rng = random.Random(name)
    plain = ProcessorEncoder(folders[name])
    sizes = [(rng.randrange(30, 900), rng.randrange(30, 900)) for _ in range(8)]
    content = [
        {"type": "image", "image": Image.effect_noise(size, 60).convert("RGB")} for size in sizes
    ]
    record = {"messages": [{"role": "user", "content": content}]}
    lengths = {plain.count(record)}
    for keywords in SETTINGS[name]:
        real = AutoProcessor.from_pretrained(folders[name], **keywords)
        encoder = ProcessorEncoder(folders[name], settings=by_part(name, keywords))
        assert encoder.fingerprint() == ProcessorEncoder(real).fingerprint(), keywords
        assert encoder.fingerprint() != plain.fingerprint()
        for number in range(len(sizes)):
            images = content[number : number + 1 + number % 2]
            asked = [
                {"type": "text", "text": "What "},
                *images,
                {"type": "text", "text": " is it?"},
            ]
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "A"}]
            sample = encoder({"messages": turns})
            expected = build_sample(real, encoder.files.template, parse_record({"messages": turns}))
            assert sample["input_ids"].equal(expected["input_ids"].reshape(-1)), keywords
            pixels = expected["pixel_values"].reshape(sample["pixel_values"].shape)
            assert sample["pixel_values"].equal(pixels), keywords
            assert encoder.count({"messages": turns}) == expected["input_ids"].numel()
        lengths.add(encoder.count(record))
    assert len(lengths) == 1 + len(SETTINGS[name])  # each setting has changed something


def test_one_setting_has_one_name(folders: dict[str, Path]) -> None:
    told = {"images.max_pixels": 602112}
    files = load_processor(folders[QWEN], settings=told)
    assert files.overrides == told and files.settings["images.max_pixels"] == 602112
    assert files.settings["videos.max_pixels"] != 602112
    assert load_processor(folders[QWEN], settings={}).overrides == {}
    with pytest.raises(OptionError, match="load the processor object with them"):
        ProcessorEncoder(AutoProcessor.from_pretrained(folders[QWEN]), settings=told)


def test_limits_of_qwen3_vl_videos_have_no_older_names(folders: dict[str, Path]) -> None:
    """Its class does not read ``max_pixels``, whatever a folder says."""
    files = load_processor(folders[QWEN3], settings={"videos.size.longest_edge": 300_000})
    real = ProcessorEncoder(load_real(str(folders[QWEN3]), "AutoProcessor", False, files.keywords))
    assert files.settings["videos.size.longest_edge"] == 300_000
    assert files.fingerprint() == real.fingerprint()
    family = FAMILIES[QWEN3]
    stated = {**family.video_defaults, "max_pixels": 30_000}
    assert family.complete(stated, family.video_defaults)["size"] == family.video_defaults["size"]


def test_a_folder_of_older_files_takes_settings(folders: dict[str, Path], tmp_path: Path) -> None:
    """``preprocessor_config.json`` alone: what it says is of images and of videos."""
    for file in folders[QWEN].iterdir():
        if file.name != "processor_config.json":
            (tmp_path / file.name).symlink_to(file)
    nested = json.loads((folders[QWEN] / "processor_config.json").read_text())
    flat = {**nested["image_processor"], "processor_class": QWEN, "max_pixels": 1003520}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(flat))
    for given in ({"images.max_pixels": 602112}, {"videos.max_pixels": 602112}):
        [part] = [name.partition(".")[0] for name in given]
        files = load_processor(tmp_path, settings=given)
        changed = {part: files.settings[f"{part}.max_pixels"] for part in ("images", "videos")}
        assert changed == {"images": 1003520, "videos": 1003520, part: 602112}
        real = ProcessorEncoder(load_real(str(tmp_path), "AutoProcessor", False, files.keywords))
        assert real.fingerprint() == files.fingerprint()


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (QWEN, {"images.max_pixel": 5}, r"images\.max_pixel.* may be one of .*images\.max_pixels"),
        (QWEN, {"max_pixels": 5}, r"may be one of images\.max_pixels, videos\.max_pixels"),
        (QWEN, {"image.max_pixels": 5}, r"image\.max_pixels.* may be one of .*images\.max_pixels"),
        (QWEN, {"images.fps": 1}, r"images\.fps.* may be one of .*videos\.fps"),
        (QWEN, {"images.max_pixels": 6e5}, r"images\.max_pixels is 600000.0: give a whole number"),
        (QWEN, {"images.max_pixels": -1}, "is -1: give a whole number"),
        (QWEN, {"images.patch_size": 0}, "is 0: give a whole number"),
        (QWEN, {"images.max_pixels": True}, "is True: give a whole number"),
        (QWEN, {"images.do_resize": 0}, r"images\.do_resize is 0: give true or false"),
        (INTERNVL, {"images.size": 448}, r"images\.size is 448: give an object of whole numbers"),
        (QWEN, {"videos.fps": "2"}, r"videos\.fps is '2': give a number"),
        (QWEN, {"images.image_mean": 0.5}, "is 0.5: give a list"),
        (QWEN, {"images": {"max_pixels": 5}}, r"images does not exist; it may be one of images\."),
        (QWEN, {"images.size.longest_edge": 5}, "does not exist; it may be one of .*max_pixels"),
        (QWEN, {"images.do_resize": False}, "do_resize false: set it to true"),
        (INTERNVL, {"images.size.longest_edge": 5}, r"may be one of .*images\.size\.height"),
        (INTERNVL, {"image_seq_len": 64}, "image_seq_len.* may be one of .*image_seq_length"),
        (IDEFICS3, {"videos.fps": 1}, r"videos\.fps does not exist"),
        (QWEN3, {"videos.max_pixels": 5}, r"videos\.max_pixels does not exist; it may be one of"),
        (AYA, {"images.max_patches": 2}, r"is of none: .* save_pretrained\(\) another folder"),
    ],
)
def test_what_a_processor_does_not_have_is_refused(
    folders: dict[str, Path], name: str, given: dict[str, Any], told: str
) -> None:
    with pytest.raises((OptionError, SourceError), match=told):
        load_processor(folders[name], settings=given)
