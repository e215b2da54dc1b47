"""Processor folders: what is read, what is refused, and one fingerprint however it was saved."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from processors import FEW_RANKS

from packidx.encode.loading import load_processor
from packidx.errors import SourceError
from packidx.processor.families import FAMILIES
from packidx.processor.families.base import FamilyMedia
from packidx.processor.fingerprint import complete_settings, normalise_tokenizer

JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")
JSON_FILES += ("chat_template.json",)


@pytest.fixture
def folder(processors: Path, tmp_path: Path) -> Path:
    """A copy to change, its tokenizer a link to the original."""
    copy = tmp_path / "processor"
    copy.mkdir()
    for path in (processors / "qwen2.5-vl").iterdir():
        if path.name == "tokenizer.json":
            (copy / path.name).symlink_to(path)
        else:
            shutil.copy(path, copy)
    return copy


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_a_folder_holds(processors: Path) -> None:
    files = load_processor(processors / "qwen3-vl")
    assert isinstance(files.vision, FamilyMedia)
    assert files.vision.name == "qwen3_vl" and files.vision.video is not None
    assert files.vision.count_images([(10, 10)]).grids.tolist() == [[1, 16, 16]]  # min_pixels
    assert files.tokenizer is not None and files.tokenizer.get_vocab_size() == FEW_RANKS + 26
    assert files.template is not None and "<|im_end|>" in files.template.control_tokens
    assert "<tool_call>" not in files.template.control_tokens
    assert files.video_settings is not None and files.video_settings["fps"] == 2
    copy = pickle.loads(pickle.dumps(files))
    assert copy.fingerprint() == files.fingerprint()


def test_each_family_and_setting_has_its_own_fingerprint(processors: Path, folder: Path) -> None:
    names = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")
    seen = {load_processor(processors / name).fingerprint() for name in names}
    assert len(seen) == 2  # Qwen2-VL and 2.5-VL differ in class only here: same tokens and pixels
    edit(folder / "preprocessor_config.json", max_pixels=1_003_520)
    seen.add(load_processor(folder).fingerprint())
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("helpful", "kind"))
    seen.add(load_processor(folder).fingerprint())
    assert load_processor(folder).settings["end_of_text"] == "<|im_end|>"  # of a document
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    assert load_processor(folder).settings["end_of_text"] == "<|endoftext|>"
    seen.add(load_processor(folder).fingerprint())
    assert len(seen) == 5


def test_spellings_of_one_processor(folder: Path) -> None:
    before = load_processor(folder).fingerprint()
    template = folder / "chat_template.jinja"
    text = template.read_text()

    template.unlink()  # legacy: in JSON
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": text}))
    assert load_processor(folder).fingerprint() == before
    (folder / "chat_template.json").unlink()  # oldest: in the tokenizer's configuration, by name
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": text}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert load_processor(folder).fingerprint() == before

    image = folder / "preprocessor_config.json"  # pixel limits as `size`
    settings = json.loads(image.read_text())
    low, high = settings.pop("min_pixels"), settings.pop("max_pixels")
    settings["size"] = {"shortest_edge": float(low), "longest_edge": high}
    image.write_text(json.dumps(settings))
    assert load_processor(folder).fingerprint() == before
    nested = {"image_processor": settings, "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(nested))  # the newest, nested
    image.unlink()
    assert load_processor(folder).fingerprint() == before


def test_state_and_spelling_of_a_tokenizer_do_not_count(processors: Path) -> None:
    path = processors / "qwen3-vl" / "tokenizer.json"
    data = json.loads(path.read_text())
    want = normalise_tokenizer(path.read_text())
    data["padding"] = {"strategy": "BatchLongest"}
    data["truncation"] = {"max_length": 5}
    data["post_processor"] = None
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    data["model"]["unk_token"] = ""
    assert normalise_tokenizer(json.dumps(data)) == want
    data["post_processor"] = {"type": "ByteLevel", "trim_offsets": True}
    assert normalise_tokenizer(json.dumps(data)) != want  # it moves offsets, hence labels
    data["post_processor"] = None
    data["model"]["merges"].reverse()
    assert normalise_tokenizer(json.dumps(data)) != want


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((name, b'{"a": ', name) for name in JSON_FILES),
        *((name, b"[]", name) for name in JSON_FILES),
        ("chat_template.jinja", b"{% if %}", "not valid Jinja"),
        ("chat_template.jinja", b"\xff\xfe", r"chat_template\.jinja is not readable text"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        load_processor(folder)


def test_tokenizer_and_template_must_be_there(folder: Path) -> None:
    for name in ("chat_template.jinja", "tokenizer.json"):
        (folder / name).rename(folder / "kept")
        with pytest.raises(SourceError, match=f"there is no {name} in "):
            load_processor(folder)
        (folder / "kept").rename(folder / name)


@pytest.mark.parametrize("name", ["./missing", "missing/deeper/still", "/no/such/folder", __file__])
def test_missing_folders(name: str) -> None:
    with pytest.raises(SourceError, match="does not exist or is not a folder"):
        load_processor(name)


def test_a_models_files_are_fetched(processors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(processors / "qwen3-vl")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    files = load_processor("Qwen/Qwen3-VL-2B-Instruct")
    assert files.fingerprint() == load_processor(processors / "qwen3-vl").fingerprint()
    (name, patterns) = asked[0]
    assert name == files.name == "Qwen/Qwen3-VL-2B-Instruct"
    assert "tokenizer.json" in patterns and not any("safetensors" in p for p in patterns)


def test_placeholders_must_be_plain_added_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    path.unlink()
    for token in data["added_tokens"]:
        if token["content"] == "<|image_pad|>":
            token["lstrip"] = True
    path.write_text(json.dumps(data))
    given: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    edit(folder / "tokenizer_config.json", **given, additional_special_tokens=[])
    with pytest.raises(SourceError, match=r"no plain added token <\|image_pad\|>"):
        load_processor(folder)


def test_only_qwen_reads_pixel_limits_by_their_older_names(folder: Path) -> None:
    """Other processors of transformers ignore them, whatever a checkpoint says."""
    settings = {"size": {"shortest_edge": 100, "longest_edge": 1000}, "max_pixels": 500}
    assert complete_settings(settings)["size"] == {"shortest_edge": 100, "longest_edge": 500}
    others = [name for name, family in FAMILIES.items() if not family.older_names]
    assert {"Glm4vProcessor", "InternVLProcessor"} <= set(others)
    kept = complete_settings(settings, older_names=False)
    assert kept["size"] == settings["size"]
