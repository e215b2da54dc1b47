"""`exact` stands where counts were compared with the real processor, or a family's were tested."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import orjson
import pyarrow.parquet as pq
import pytest
import transformers
from absent import WITHOUT_TRANSFORMERS
from other_processors import PROCESSORS
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx import estimate_lengths
from packidx.encode.loading import load_processor
from packidx.encode.proof import compare
from packidx.records.dialects.parse import parse

TRANSFORMERS = f"transformers {transformers.__version__}"
KINDS = ["text", "text, text in lists", "image"]
"""Of `records`."""
SIZES = [(64, 48), (337, 211), (300, 100)]


def records(images: bool = True) -> list[dict[str, Any]]:
    """Texts, and one record per size with an image."""
    talks: list[list[Any]] = [["What is it?"], [" Tell me more.\n"], ["漢字 👩‍👩‍👧"]]
    if images:
        talks += [[{"type": "image", "image": f"{n}.png"}, "?"] for n in range(len(SIZES))]
    return [{"messages": [{"role": "user", "content": content(talk)}]} for talk in talks]


def content(talk: list[Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in talk]


def data(folder: Path, given: list[dict[str, Any]]) -> Path:
    for number, size in enumerate(SIZES):
        Image.new("RGB", size, number).save(folder / f"{number}.png")
    path = folder / "data.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, given)) + b"\n")
    return path


def real_lengths(processor: Any, folder: Path, given: list[dict[str, Any]]) -> list[int]:
    lengths = []
    for record in given:
        messages = json.loads(json.dumps(record["messages"]))
        for part in messages[0]["content"]:
            if part["type"] == "image":
                part["image"] = Image.open(folder / part["image"])
        real = processor.apply_chat_template(messages, tokenize=True, return_dict=True)
        lengths.append(len(tiles.real_ids(real)))
    return lengths


def estimated(
    source: Path, folder: Path, processor: Path, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, and the manifest."""
    estimate_lengths(str(source), folder, processor=processor, workers=1, **options)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return pq.read_table(sorted(folder.glob("part-*.parquet"))).to_pylist(), manifest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)["qwen2.5-vl"]


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_that_estimate_wrongly_themselves_are_counted_exactly(
    name: str, tmp_path: Path
) -> None:
    """`_get_num_multimodal_tokens` is wrong for these; Molmo 2 puts a BOS before every text."""
    processor = PROCESSORS[name](tmp_path)
    processor.save_pretrained(tmp_path / name)
    given = records()
    rows, manifest = estimated(data(tmp_path, given), tmp_path / "lengths", tmp_path / name)
    assert [row["length"] for row in rows] == real_lengths(processor, tmp_path, given)
    assert {row["method"] for row in rows} == {"exact"}
    compared = manifest["encoder"]["compared"]
    assert compared["with"] == TRANSFORMERS and compared["equal"] == KINDS
    assert compared["records"] > 32


def test_a_family_is_compared_on_records_of_the_data(qwen: Path, tmp_path: Path) -> None:
    rows, manifest = estimated(data(tmp_path, records()), tmp_path / "lengths", qwen)
    assert {row["method"] for row in rows} == {"exact"}
    compared = manifest["encoder"]["compared"]
    assert compared["equal"] == KINDS and compared["with"] == TRANSFORMERS
    assert compared.keys() == {"with", "records", "equal"}
    none = compare(load_processor(qwen), [], KINDS)
    assert compared["records"] == none.records + len(rows)


def test_a_family_that_differs_from_the_real_processor_is_not_exact(
    qwen: Path, tmp_path: Path
) -> None:
    """As with a transformers that counts otherwise than the one this was tested with."""
    folder = tmp_path / "other"
    shutil.copytree(qwen, folder)
    files = load_processor(folder)
    settings = json.loads((folder / "preprocessor_config.json").read_bytes())
    changed = settings | {"max_pixels": 28 * 28 * 4, "min_pixels": 28 * 28 * 4}
    changed.pop("size", None)
    (folder / "preprocessor_config.json").write_text(json.dumps(changed))
    found = compare(files, [parse(record) for record in records(images=False)], KINDS)
    assert found.equal == tuple(KINDS[:2])
    assert list(found.unequal) == ["image"] and "image" in found.unequal["image"]


def test_a_processor_that_differs_in_what_we_do_not_read_is_compared(
    qwen: Path, tmp_path: Path
) -> None:
    """Its fingerprint, which is of what we read, is the one that was found equal."""
    source = data(tmp_path, [{"messages": [{"role": "user", "content": "my friend and my foe"}]}])
    rows, _ = estimated(source, tmp_path / "first", qwen)
    assert {row["method"] for row in rows} == {"exact"}
    other = tmp_path / "other"
    shutil.copytree(qwen, other)
    path = other / "tokenizer_config.json"
    settings = json.loads(path.read_bytes()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "split_special_tokens": True}))
    assert load_processor(other).fingerprint() == load_processor(qwen).fingerprint()
    rows, manifest = estimated(source, tmp_path / "second", other)
    assert {row["method"] for row in rows} == {"heuristic"}
    assert "text" in manifest["encoder"]["compared"]["unequal"]


def test_what_could_not_be_compared_is_compared_another_time(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = data(tmp_path, records(images=False))
    with monkeypatch.context() as broken:
        broken.setattr("transformers.AutoProcessor.from_pretrained", None)
        _, first = estimated(source, tmp_path / "first", qwen)
    assert "cannot load the Processor of" in first["encoder"]["compared"]["reason"]
    _, second = estimated(source, tmp_path / "second", qwen)
    assert second["encoder"]["compared"]["with"] == TRANSFORMERS


ALONE = f"""{WITHOUT_TRANSFORMERS}
import packidx
packidx.estimate_lengths(sys.argv[1], sys.argv[2], processor=sys.argv[3], workers=int(sys.argv[4]))
"""


def test_without_transformers_only_known_families_are_exact(qwen: Path, tmp_path: Path) -> None:
    """And the manifest says that nothing was compared here."""
    source = data(tmp_path, records(images=False))
    unknown = tmp_path / "unknown"
    PROCESSORS["gemma3n"](tmp_path).save_pretrained(unknown)
    text = tmp_path / "text"
    transformers.AutoTokenizer.from_pretrained(qwen).save_pretrained(text)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (qwen / name).exists():
            shutil.copy(qwen / name, text)
    for folder, method in ((qwen, "exact"), (text, "exact"), (unknown, "heuristic")):
        out = tmp_path / f"lengths-{folder.name}"
        command = [sys.executable, "-c", ALONE, str(source), str(out), str(folder), "1"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": ""})
        rows = pq.read_table(next(out.glob("part-00000*"))).to_pylist()
        assert {row["method"] for row in rows} == {method}, folder
        compared = json.loads((out / "manifest.json").read_bytes())["encoder"]["compared"]
        assert compared["with"] is None
        assert compared["reason"].startswith("transformers was not installed")


def test_what_is_too_large_to_be_compared_is_told(processors: Path, tmp_path: Path) -> None:
    """`min_pixels` of a foreign folder may ask for any size; nothing of it is built."""
    folder = tmp_path / "p"
    shutil.copytree(processors / "qwen2.5-vl", folder)
    settings = json.loads((folder / "preprocessor_config.json").read_bytes())
    settings |= {"min_pixels": 10**12, "max_pixels": 10**13}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = compare(load_processor(folder), [], ("text", "image"))
    assert found.equal == ("text",) and found.unequal.keys() == {"image"}
    assert "patches, too many to compare" in found.unequal["image"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB
