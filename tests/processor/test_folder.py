"""Processor folders: what is read, what is refused, and one fingerprint however it was saved."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from processors import FEW_RANKS, qwen_folders

from packidx.encode.loading import load_processor
from packidx.errors import SourceError
from packidx.processor.families import FAMILIES
from packidx.processor.families.base import FamilyMedia
from packidx.processor.fingerprint import complete_settings, normalise_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to change, its tokenizer a link to the original."""
    copy = tmp_path / "processor"
    copy.mkdir()
    for path in folders["qwen2.5-vl"].iterdir():
        if path.name == "tokenizer.json":
            (copy / path.name).symlink_to(path)
        else:
            shutil.copy(path, copy)
    return copy


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_a_folder_holds(folders: dict[str, Path]) -> None:
    files = load_processor(folders["qwen3-vl"])
    assert isinstance(files.vision, FamilyMedia)
    assert files.vision.name == "qwen3_vl" and files.vision.video is not None
    assert files.vision.count_images([(10, 10)]).grids.tolist() == [[1, 16, 16]]  # min_pixels
    assert files.tokenizer is not None and files.tokenizer.get_vocab_size() == FEW_RANKS + 26
    assert files.template is not None and "<|im_end|>" in files.template.control_tokens
    assert "<tool_call>" not in files.template.control_tokens
    assert files.video_settings is not None and files.video_settings["fps"] == 2
    copy = pickle.loads(pickle.dumps(files))
    assert copy.fingerprint() == files.fingerprint()


def test_each_family_and_setting_has_its_own_fingerprint(
    folders: dict[str, Path], folder: Path
) -> None:
    seen = {load_processor(path).fingerprint() for path in folders.values()}
    assert len(seen) == 2  # Qwen2-VL and 2.5-VL differ in class only here: same tokens and pixels
    edit(folder / "preprocessor_config.json", max_pixels=1_003_520)
    seen.add(load_processor(folder).fingerprint())
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("helpful", "kind"))
    seen.add(load_processor(folder).fingerprint())
    (folder / "tokenizer.json").unlink()
    seen.add(load_processor(folder).fingerprint())
    assert len(seen) == 5


def test_documents_that_end_otherwise_are_told(folder: Path) -> None:
    before = load_processor(folder)
    assert before.settings["end_of_text"] == "<|im_end|>"
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    after = load_processor(folder)
    assert after.fingerprint() != before.fingerprint()
    assert after.settings["end_of_text"] == "<|endoftext|>"


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


def test_state_and_spelling_of_a_tokenizer_do_not_count(folders: dict[str, Path]) -> None:
    path = folders["qwen3-vl"] / "tokenizer.json"
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
    "name",
    ["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.json"],
)
def test_broken_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text('{"a": ')
    with pytest.raises(SourceError, match=name):
        load_processor(folder)
    (folder / name).write_text("[]")
    with pytest.raises(SourceError, match=name):
        load_processor(folder)


def test_broken_templates_are_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(SourceError, match="not valid Jinja"):
        load_processor(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match=r"chat_template\.jinja is not readable text"):
        load_processor(folder)


def test_parts_may_be_missing_but_not_all(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    files = load_processor(folder)
    assert files.template is None and files.vision is not None
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(SourceError, match="nothing usable .* nor both a tokenizer.json and a chat"):
        load_processor(folder)


@pytest.mark.parametrize("name", ["./missing", "missing/deeper/still", "/no/such/folder", ".."])
def test_missing_folders(name: str, tmp_path: Path) -> None:
    if name == "..":
        name = str(tmp_path / "file")
        Path(name).write_text("")
    with pytest.raises(SourceError, match="does not exist or is not a folder"):
        load_processor(name)


def test_a_models_files_are_fetched(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folders["qwen3-vl"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    files = load_processor("Qwen/Qwen3-VL-2B-Instruct")
    assert files.fingerprint() == load_processor(folders["qwen3-vl"]).fingerprint()
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
    config = json.loads((folder / "tokenizer_config.json").read_text())
    taken = config | {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": []}
    (folder / "tokenizer_config.json").write_text(json.dumps(taken))
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
