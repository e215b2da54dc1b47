"""Under any release: what packidx counts and builds is what that release's own processors build."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
from operator import eq
from pathlib import Path
from typing import Any

import family_talks
import image_modes
import pytest
import release_processors as release
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from clips import decode
from PIL import Image

from packidx import open_index
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import files_of, load_processor
from packidx.errors import MismatchError, SourceError
from packidx.torch import PackedDataset

EVERY = (*release.FAMILIES, *release.FURTHER)


@pytest.fixture(autouse=True, scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole run; what other code found out about processors proves nothing."""
    out = tmp_path_factory.mktemp("release")
    os.environ["PACKIDX_CACHE"] = str(out / "cache")
    transformers.logging.set_verbosity_error()
    return out


@pytest.fixture(scope="session")
def folders(out: Path) -> dict[str, Path]:
    """Every family's processor, saved by this release."""
    return {name: release.folder_of(name, out / "own") for name in EVERY}


@pytest.fixture(scope="session")
def newest(out: Path, folders: dict[str, Path]) -> Path:
    """What the environment's own release saved, counted and planned, and tells of our folders."""
    script = Path(release.__file__)
    release.under_the_environments_own(script, out / "newest", out / "own")
    return out / "newest"


def answers(newest: Path, name: str) -> Any:
    return json.loads((newest / "answers.json").read_bytes())["families"][name]


def opened(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its images opened and its clips as all their frames."""
    messages = json.loads(json.dumps(record["messages"]))
    for part in (part for message in messages for part in message["content"]):
        if part["type"] == "image":
            part["image"] = Image.open(part["image"]).convert("RGB")
    return {"messages": messages}


def real(processor: Any, record: dict[str, Any]) -> Any:
    """What the processor builds; it is given a clip's frames and what a decoder knows of them."""
    messages, metadata = opened(record)["messages"], []
    for part in (part for message in messages for part in message["content"]):
        if part["type"] == "video":
            stem, frames = Path(part["video"]).stem, decode(Path(part["video"]))
            part["video"] = frames
            fps = float(stem)
            known = {"total_num_frames": len(frames), "fps": fps, "duration": len(frames) / fps}
            metadata.append({**known, "frames_indices": list(range(len(frames)))})
    options = {"video_metadata": metadata} if metadata else {}
    given = family_talks.processor_options(processor, **options) if options else {}
    return processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", **given
    )


@pytest.mark.parametrize("name", EVERY)
def test_ids_and_media_equal_the_processors(name: str, folders: dict[str, Path], out: Path) -> None:
    processor = transformers.AutoProcessor.from_pretrained(folders[name])
    encoders = [ProcessorEncoder(folders[name]), ProcessorEncoder(processor)]
    with_images = 0
    for record in release.records(out / "media"):
        try:
            want = real(processor, record)
        except ValueError:  # older releases' GLM-4V, of an image smaller than a token
            assert name == "glm4v"
            for encoder in encoders:
                with pytest.raises(MismatchError, match="does not build images of (.* )?13x17"):
                    encoder(opened(record))
            continue
        for encoder in encoders:
            found = encoder(opened(record))
            assert found["input_ids"].tolist() == want["input_ids"][0].tolist()
            assert encoder.count(opened(record)) == len(found["input_ids"])
            assert encoder.files.vision is not None
            for key in encoder.files.vision.model_inputs:
                assert (key in found) == (key in want), key
                if key in found:
                    with_images += 1
                    assert found[key].shape == want[key].shape, key
                    assert torch.equal(found[key], want[key]), key
    assert with_images >= 6


@pytest.mark.parametrize("name", release.FAMILIES[:-1])
def test_ids_and_frames_of_clips_equal_the_processors(
    name: str, folders: dict[str, Path], out: Path
) -> None:
    processor = transformers.AutoProcessor.from_pretrained(folders[name])
    encoder = ProcessorEncoder(folders[name])
    assert encoder.files.vision is not None
    # transformers 4 takes Qwen2.5-VL's seconds from an option `fps`, not from the video.
    names = set(encoder.files.vision.model_inputs) - {"second_per_grid_ts"}
    for record in release.clip_records(out / "media"):
        want, found = real(processor, record), encoder(opened(record))
        ids = found["input_ids"].tolist()
        if name == "qwen3-vl" and not hasattr(processor, "replace_video_token"):
            ids = release.without_outer_markers(ids, encoder.files.tokenizer)
        assert ids == want["input_ids"][0].tolist()
        assert encoder.count(opened(record)) == len(found["input_ids"])
        for key in names & {*want.keys(), *found.keys()}:
            assert torch.equal(found[key], want[key]), key
    if name == "qwen2.5-vl":
        assert found["second_per_grid_ts"].tolist() == [1.0]


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_positions_equal_the_models(name: str, folders: dict[str, Path], out: Path) -> None:
    encoder = ProcessorEncoder(folders[name])
    model, ids = release.rope_model(name, encoder)
    wanted = inspect.signature(model.get_rope_index).parameters
    for record in [*release.records(out / "media"), *release.clip_records(out / "media")]:
        sample = encoder(opened(record))
        input_ids = sample["input_ids"][None]
        types = (input_ids == ids["image"]) + 2 * (input_ids == ids["video"])
        given = {**sample, "input_ids": input_ids, "mm_token_type_ids": types}
        want, _ = model.get_rope_index(**{key: given[key] for key in wanted if key in given})
        assert torch.equal(sample["position_ids"], want[:, 0])


@pytest.mark.parametrize("name", EVERY)
def test_a_folder_has_one_fingerprint_whoever_saved_and_loads_it(
    name: str, folders: dict[str, Path], newest: Path
) -> None:
    own = load_processor(folders[name]).fingerprint()
    published = folders[name].parent / "qwen" / name  # its files have the names of hub checkpoints
    if published.is_dir():
        assert load_processor(published).fingerprint() == own
    told = [*answers(newest, name).values(), load_processor(newest / name).fingerprint()]
    loaded = transformers.AutoProcessor.from_pretrained(folders[name])
    assert len(told) == 4
    assert {own, files_of(loaded).fingerprint(), *told} == {own}


@pytest.mark.parametrize("name", release.PLANNED)
def test_a_plan_of_the_newest_is_read(name: str, folders: dict[str, Path], newest: Path) -> None:
    """By folder, and by the object that this release loads; its own folder serves as well."""
    loader = transformers.AutoProcessor.from_pretrained
    index = open_index(newest / f"{name}-index")
    processors = [newest / name, folders[name], loader(folders[name])]
    if transformers.__version__ < "5":  # its tokenizers cannot load the list of tokens that 5 saves
        with pytest.raises(AttributeError, match="'list' object has no attribute 'keys'"):
            loader(newest / name)
    else:
        processors.append(loader(newest / name))
    packs = [PackedDataset(index, ProcessorEncoder(one))[0].joined() for one in processors]
    for pack in packs[1:]:
        assert pack.keys() == packs[0].keys()
        for key, value in pack.items():
            same = torch.equal if torch.is_tensor(value) else eq
            assert same(value, packs[0][key]), key


def test_a_refusal_names_the_setting_that_this_release_reads_otherwise(
    folders: dict[str, Path], newest: Path
) -> None:
    processor = transformers.AutoProcessor.from_pretrained(folders["qwen2.5-vl"])
    processor.image_processor.rescale_factor = 0.5  # as another default would
    encoder = ProcessorEncoder(processor)
    with pytest.raises(MismatchError, match=r"images.rescale_factor: 0.0039\d* planned, 0.5 here"):
        PackedDataset(newest / "qwen2.5-vl-index", encoder)


def test_a_class_that_a_release_lacks_is_a_sentence(folders: dict[str, Path], out: Path) -> None:
    folder = shutil.copytree(folders["qwen2.5-vl"], out / "to come")
    for path in folder.glob("*processor_config.json"):
        text = path.read_text()
        path.write_text(text.replace("Qwen2VLImageProcessor", "Qwen2VLImageProcessorToCome"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["processor_class"] = "Qwen2_5_VLProcessor"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    image = release.record(release.make_media(out / "media")[0][0], "?")
    sentence = f"transformers {transformers.__version__} cannot load the ImageProcessor of"
    with pytest.raises(SourceError, match=re.escape(sentence)):
        ProcessorEncoder(folder)(opened(image))


@pytest.mark.parametrize("name", ["internvl", "qwen2.5-vl"])
def test_two_files_that_differ_are_read_as_they_were_counted_or_refused(
    name: str, folders: dict[str, Path], out: Path, tmp_path: Path
) -> None:
    """transformers 4 reads the flat file, 5 the nested one, as we do."""
    folder = tmp_path / name
    shutil.copytree(folders[name], folder)
    settings = transformers.AutoImageProcessor.from_pretrained(folders[name]).to_dict()
    flat, nested = {**settings, "image_mean": [0.1] * 3}, {**settings, "image_mean": [0.2] * 3}
    files = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
    stated = [settings, *(read_json(folder / one) for one in files)]
    named = (one["processor_class"] for one in stated if one.get("processor_class"))
    own = {"processor_class": next(named, None)}
    (folder / "preprocessor_config.json").write_text(json.dumps({**flat, **own}, default=str))
    nested_file = {**read_json(folder / "processor_config.json"), **own, "image_processor": nested}
    (folder / "processor_config.json").write_text(json.dumps(nested_file, default=str))
    mean = transformers.AutoImageProcessor.from_pretrained(folder).image_mean
    encoder, record = ProcessorEncoder(folder), release.clip_records(out / "media")[1]
    if list(mean) == [0.2] * 3:
        assert "pixel_values" in encoder(opened(record))
    else:
        assert list(mean) == [0.1] * 3
        with pytest.raises(MismatchError, match=r"image_mean: \[0.2, .* counted, \[0.1, "):
            encoder(opened(record))


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "glm4v"])
def test_patches_of_images_of_every_mode(name: str, folders: dict[str, Path]) -> None:
    encode = ProcessorEncoder(folders[name])
    image_modes.assert_equal_pixels(
        folders[name], encode._load_part("image"), image_modes.images(5, 84)
    )
