"""`exact` stands where counts were compared with the real processor, or a family's were tested."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import transformers
from other_processors import PROCESSORS
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.processor.families.base import FamilyMedia
from packidx.torch import PackedDataset

TRANSFORMERS = f"transformers {transformers.__version__}"
KINDS = ["image", "text, text in lists"]
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
        lengths.append(len(real["input_ids"][0]))
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
    assert compared["with"] == TRANSFORMERS
    kinds = {*compared["computed"], *compared.get("built", ())}
    assert "text" in {kind.partition(", ")[0] for kind in kinds} <= {"text", "image"}


def test_records_that_a_family_counts_wrongly_are_built(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a transformers that counts otherwise than the one this was tested with."""
    real = FamilyMedia.count_images

    def wrong(self: FamilyMedia, *given: Any) -> Any:
        counts = real(self, *given)
        return replace(counts, tokens=counts.tokens + 1)

    monkeypatch.setattr(FamilyMedia, "count_images", wrong)
    given = records()
    rows, manifest = estimated(data(tmp_path, given), tmp_path / "lengths", qwen)
    processor = transformers.AutoProcessor.from_pretrained(qwen)
    assert [row["length"] for row in rows] == real_lengths(processor, tmp_path, given)
    assert {row["method"] for row in rows} == {"exact"}
    assert [row["detail"] for row in rows] == [None] * 3 + ["built by the processor"] * 3
    assert list(manifest["encoder"]["compared"]["built"]) == KINDS[:1]
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=512)
    packs = PackedDataset(tmp_path / "index", ProcessorEncoder(qwen))
    lengths = [length for pack in packs for length in pack.joined()["lengths"].tolist()]
    assert sorted(lengths) == sorted(row["length"] for row in rows)


def test_special_tokens_that_are_split(qwen: Path, tmp_path: Path) -> None:
    texts = ["Hi", "What is <|im_end|> for?", "a<|endoftext|>b"]
    given = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    source = data(tmp_path, given)
    other = tmp_path / "other"
    shutil.copytree(qwen, other)
    path = other / "tokenizer_config.json"
    settings = json.loads(path.read_bytes()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "split_special_tokens": True}))
    assert load_processor(other).fingerprint() != load_processor(qwen).fingerprint()
    real = transformers.AutoProcessor.from_pretrained(other)
    encode = ProcessorEncoder(other)
    rows, _ = estimated(source, tmp_path / "lengths", other)
    for row, text, record in zip(rows, texts, given, strict=True):
        talk = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        built = real.apply_chat_template(talk, tokenize=True, return_dict=True)
        ids = list(built["input_ids"][0])
        assert (row["method"], row["length"]) == ("exact", len(ids))
        assert encode(record)["input_ids"].tolist() == ids


def test_a_processor_that_cannot_be_loaded_is_not_compared_until_it_can(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(qwen, tmp_path / "p")
    source = data(tmp_path, records())
    with monkeypatch.context() as patch:
        patch.setattr("transformers.AutoProcessor.from_pretrained", None)
        rows, manifest = estimated(source, tmp_path / "lengths", tmp_path / "p")
    compared = manifest["encoder"]["compared"]
    assert compared["with"] is None and "cannot load the Processor of" in compared["reason"]
    assert {row["method"] for row in rows} == {"exact"}  # by the rules of the family
    _, manifest = estimated(source, tmp_path / "lengths", tmp_path / "p")
    assert manifest["encoder"]["compared"] == {"with": TRANSFORMERS, "computed": KINDS}


ALONE = """
import sys
sys.modules["torch"] = None
import packidx
packidx.estimate_lengths(sys.argv[1], sys.argv[2], processor=sys.argv[3], workers=int(sys.argv[4]))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_without_torch(workers: int, qwen: Path, tmp_path: Path) -> None:
    """Families count by their rules, other processors only where they load without it."""
    source = data(tmp_path, records())
    text = tmp_path / "text"
    transformers.AutoTokenizer.from_pretrained(qwen).save_pretrained(text)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (qwen / name).exists():
            shutil.copy(qwen / name, text)
    expected: dict[Path, list[Any]] = {qwen: ["exact"] * 6, text: ["exact"] * 3 + [None] * 3}
    for name, method in (("gemma3n", "exact"), ("gemma4", "heuristic"), ("molmo2", "heuristic")):
        PROCESSORS[name](tmp_path).save_pretrained(tmp_path / name)
        expected[tmp_path / name] = [method] * 6
    for folder, methods in expected.items():
        out = tmp_path / f"lengths-{folder.name}"
        command = [sys.executable, "-c", ALONE, str(source), str(out), str(folder), str(workers)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        rows = pq.read_table(next(out.glob("part-00000*"))).to_pylist()
        assert [row["method"] for row in rows] == methods, folder
        compared = json.loads((out / "manifest.json").read_bytes())["encoder"]["compared"]
        if "heuristic" in methods or folder == qwen:
            assert compared["with"] is None and "torch" in compared["reason"]
        elif folder != text:
            processor = transformers.AutoProcessor.from_pretrained(folder)
            real = real_lengths(processor, tmp_path, records())
            assert [row["length"] for row in rows] == real


@pytest.mark.parametrize("without", ["torch", "torchvision"])
def test_texts_alone_are_compared_by_the_tokenizer(
    without: str, qwen: Path, tmp_path: Path
) -> None:
    source, out = data(tmp_path, records(images=False)), tmp_path / "lengths"
    script = ALONE.replace("torch", without)
    command = [sys.executable, "-c", script, str(source), str(out), str(qwen), "1"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    compared = json.loads((out / "manifest.json").read_bytes())["encoder"]["compared"]
    assert compared == {"with": TRANSFORMERS, "computed": KINDS[1:]}


def test_what_is_too_large_to_be_built(processors: Path, tmp_path: Path) -> None:
    """`min_pixels` of a foreign folder may ask for any size; nothing of it is built."""
    folder = tmp_path / "p"
    shutil.copytree(processors / "qwen2.5-vl", folder)
    settings = json.loads((folder / "preprocessor_config.json").read_bytes())
    settings |= {"min_pixels": 10**12, "max_pixels": 10**13}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, manifest = estimated(data(tmp_path, records()), tmp_path / "lengths", folder)
    assert manifest["encoder"]["compared"]["computed"] == KINDS[1:]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB


def test_more_kinds_than_are_compared_are_built(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packidx.estimate.compare.MAX_KINDS", 1)
    given = records()
    rows, manifest = estimated(data(tmp_path, given), tmp_path / "lengths", qwen)
    processor = transformers.AutoProcessor.from_pretrained(qwen)
    assert [row["length"] for row in rows] == real_lengths(processor, tmp_path, given)
    compared = manifest["encoder"]["compared"]
    assert len(compared["computed"]) == len(compared["built"]) == 1
