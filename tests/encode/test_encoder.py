"""`ProcessorEncoder` builds what the real processor builds, and what the plan counted."""

from __future__ import annotations

import copy
import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from counting import count_row
from family_talks import record
from PIL import Image
from processors import FEW_RANKS, qwen_folders
from transformers import AutoProcessor, AutoTokenizer

from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.errors import BadRecord, OptionError, SourceError
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import to_messages
from packidx.records.read import parse_record

NAMES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)


@pytest.fixture(scope="module")
def processors(folders: dict[str, Path]) -> dict[str, Any]:
    return {name: AutoProcessor.from_pretrained(path) for name, path in folders.items()}


@pytest.fixture(scope="module")
def encoders(folders: dict[str, Path]) -> dict[str, ProcessorEncoder]:
    return {name: ProcessorEncoder(path) for name, path in folders.items()}


def messages_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The record as a transformers user writes it, images in place."""
    conversation = parse_record(raw)
    messages = to_messages(conversation)
    images = iter(medium.ref for medium in conversation.media)
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part["image"] = next(images)
    return messages


def with_image(image: Image.Image) -> dict[str, Any]:
    content = [{"type": "text", "text": "x"}, {"type": "image", "image": image}]
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_processor(
    name: str, encoders: dict[str, ProcessorEncoder], processors: dict[str, Any]
) -> None:
    """Ids, pixels and grids equal transformers', and the counts what is built."""
    encoder = encoders[name]
    counter = ConversationCounter(encoder.files)
    num_images = 0
    for seed in range(40):
        raw = record(random.Random(seed), late_system=False)
        want = processors[name].apply_chat_template(
            messages_of(raw), tokenize=True, return_dict=True, return_tensors="pt"
        )
        got = encoder(raw)
        assert torch.equal(got["input_ids"], want["input_ids"][0]), seed
        conversation = parse_record(raw)
        sizes = [(medium.ref.height, medium.ref.width) for medium in conversation.media]
        row = count_row(counter, conversation, *sizes)
        assert row.length == encoder.count(raw) == len(got["input_ids"]), seed
        assert row.label_tokens == int((got["labels"] != -100).sum()), seed
        assert row.method == "exact"
        kept = got["labels"] != -100
        assert torch.equal(got["labels"][kept], got["input_ids"][kept])
        assert {value.dtype for key, value in got.items() if "pixel" not in key} == {torch.int64}
        assert got["position_ids"].shape == (3, row.length)
        if not sizes:
            assert "pixel_values" not in got
            continue
        num_images += len(sizes)
        assert torch.equal(got["pixel_values"], want["pixel_values"]), seed
        assert torch.equal(got["image_grid_thw"], want["image_grid_thw"]), seed
        assert [[m["t"], m["h"], m["w"]] for m in row.media] == got["image_grid_thw"].tolist()
        pad = got["input_ids"] == processors[name].image_token_id
        starts = torch.nonzero(pad & ~torch.roll(pad, 1)).flatten().tolist()
        assert [m["at"] for m in row.media] == starts
    assert num_images > 40


@pytest.mark.parametrize("name", NAMES[1:])
def test_one_fingerprint(
    name: str, folders: dict[str, Path], processors: dict[str, Any], tmp_path: Path
) -> None:
    """Folder, object, saved folder, object loaded from that; and a call leaves no trace."""
    want = load_processor(folders[name]).fingerprint()
    processor = processors[name]
    processor.tokenizer(["a", "b c"], padding=True, truncation=True, max_length=4)
    assert ProcessorEncoder(processor).fingerprint() == want
    assert ProcessorEncoder(folders[name]).fingerprint() == want
    processor.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert load_processor(tmp_path).fingerprint() == want
    assert ProcessorEncoder(AutoProcessor.from_pretrained(tmp_path)).fingerprint() == want


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_the_tokenizers(
    processors: dict[str, Any], encoders: dict[str, ProcessorEncoder], name: str
) -> None:
    wanted = processors[name].tokenizer.pad_token_id
    assert wanted is not None
    assert encoders[name].pad_token_id == wanted
    assert ProcessorEncoder(processors[name]).pad_token_id == wanted


def test_a_changed_object_has_another_fingerprint(processors: dict[str, Any]) -> None:
    original = processors["qwen3-vl"]
    smaller, reworded, extended = (copy.copy(original) for _ in range(3))
    smaller.image_processor = copy.copy(original.image_processor)
    smaller.image_processor.size = {"shortest_edge": 65_536, "longest_edge": 262_144}
    reworded.chat_template = original.chat_template + " "
    extended.tokenizer = copy.deepcopy(original.tokenizer)
    extended.tokenizer.add_tokens(["<new>"])
    changed = (original, smaller, reworded, extended)
    assert len({ProcessorEncoder(processor).fingerprint() for processor in changed}) == 4


def test_a_tokenizer_alone(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["qwen3-vl"])
    encoder = ProcessorEncoder(tokenizer)
    raw = {"messages": messages_of(record(random.Random(3), images=False))}
    want = tokenizer.apply_chat_template(raw["messages"], tokenize=True, return_dict=True)
    sample = encoder(raw)
    assert sample["input_ids"].tolist() == list(want["input_ids"])
    assert torch.equal(sample["position_ids"], torch.arange(len(sample["input_ids"])))
    with pytest.raises(BadRecord, match="unsupported_media"):
        encoder(with_image(Image.new("L", (9, 9))))


def test_counting_decodes_no_pixels(encoders: dict[str, ProcessorEncoder]) -> None:
    data = io.BytesIO()
    Image.effect_noise((300, 200), 9).save(data, "JPEG")
    cut = data.getvalue()[:2000]
    encoder = encoders["qwen3-vl"]
    raw = with_image(Image.open(io.BytesIO(cut)))
    assert encoder.count(raw) > 20
    with pytest.raises(BadRecord, match="broken_media"):
        encoder(raw)


def test_unusable_processors(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="fast tokenizer"):
        ProcessorEncoder(object())
    tokenizer = AutoTokenizer.from_pretrained(folders["qwen3-vl"])
    tokenizer.chat_template = None
    with pytest.raises(OptionError, match="no chat template"):
        ProcessorEncoder(tokenizer)
    settings = (folders["qwen3-vl"] / "preprocessor_config.json").read_bytes()
    (tmp_path / "preprocessor_config.json").write_bytes(settings)
    with pytest.raises(SourceError, match=r"no tokenizer\.json"):
        ProcessorEncoder(tmp_path)


NO_TORCH = """
import sys
sys.modules["torch"] = None
from packidx.encode import ProcessorEncoder
from packidx.errors import MissingExtraError
encoder = ProcessorEncoder(sys.argv[1])
raw = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
assert encoder.count(raw) > 5 and len(encoder.fingerprint()) == 64
try:
    encoder(raw)
except MissingExtraError as error:
    print(error)
"""


def test_without_torch(folders: dict[str, Path]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", NO_TORCH, str(folders["qwen3-vl"])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert 'pip install "packidx[torch]"' in done.stdout
