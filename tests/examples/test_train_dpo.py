"""examples/train_dpo.py: the loss and its gradients are those of TRL's `DPOTrainer`."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401 - before transformers
from datasets import Dataset
from PIL import Image
from transformers import AutoProcessor
from trl import DPOConfig, DPOTrainer

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
PAIRS = 64


@pytest.fixture(scope="module")
def dpo() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("train_dpo", EXAMPLES / "train_dpo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pairs(corpus: Path) -> list[dict[str, Any]]:
    """Right and wrong answers to questions about drawings; each tenth pair has two drawings."""
    lines = (corpus / "vqa_single.jsonl").read_text().splitlines()
    asked = [record["messages"][-2:] for record in map(json.loads, lines[: 2 * PAIRS])]
    answers = [answer["content"] for _, answer in asked]
    made = []
    for number, (question, answer) in enumerate(asked[:PAIRS]):
        image, text = question["content"]
        more = asked[PAIRS + number][0]["content"][:1] if number % 10 == 0 else []
        made.append(
            {
                "images": [part["image"] for part in (image, *more)],
                "prompt": [{"role": "user", "content": text["text"]}],
                "chosen": [{"role": "assistant", "content": answer["content"]}],
                "rejected": [
                    {
                        "role": "assistant",
                        "content": f"It is {answers[number + 7]}, or not {number}.",
                    }
                ],
            }
        )
    return made


@pytest.fixture(scope="module")
def index(
    pairs: list[dict[str, Any]],
    corpus: Path,
    whole_processors: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("dpo")
    with open(folder / "pairs.jsonl", "w") as file:
        for pair in pairs:
            question = "<image>" * len(pair["images"]) + pair["prompt"][0]["content"]
            file.write(json.dumps({**pair, "prompt": [{"role": "user", "content": question}]}))
            file.write("\n")
    shard, lengths = str(folder / "pairs.jsonl"), folder / "lengths"
    processor = whole_processors / "qwen2.5-vl"
    estimate_lengths(
        shard, lengths, processor=processor, media_root=corpus, pair="both", max_rejected=0
    )
    plan_packs(lengths, folder / "index", capacity=512, pad_pack_to=64)
    return folder / "index"


def different(model: Any, seed: int) -> Any:
    """`model` with other weights: a policy that is its own reference has the loss ln 2."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # TRL's own words
def test_loss_and_gradients_are_those_of_trl(
    dpo: ModuleType,
    pairs: list[Any],
    index: Path,
    corpus: Path,
    whole_processors: Path,
    tmp_path: Path,
) -> None:
    reference = dpo.prepare_model(dpo.build_model())
    model = different(copy.deepcopy(reference), 1)
    theirs, batch = trl_batch(
        copy.deepcopy(model), copy.deepcopy(reference), pairs, corpus, whole_processors, tmp_path
    )
    packs = PackedDataset(index, ProcessorEncoder(whole_processors / "qwen2.5-vl"))
    samples = [sample for pack in packs for sample in samples_of(pack)]
    assert len(packs) > 4 and len(samples) == 2 * PAIRS

    loss = 0.0
    for k in range(len(packs)):
        packed = dpo.collate_pairs([packs[k]])
        with torch.no_grad():
            before = dpo.log_probabilities(reference, packed)
        ids = packed["pair_ids"]
        of_pack = dpo.dpo_loss(dpo.log_probabilities(model, packed), before, ids)
        part = of_pack * (len(ids) / 2 / PAIRS)
        part.backward()
        loss += float(part.detach())

    expected = theirs._compute_loss(theirs.model, batch, False)
    expected.backward()
    assert abs(float(expected.detach()) - 0.6931) > 0.01  # that they agree means something
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    others = dict(theirs.model.named_parameters())
    compared = 0
    for name, parameter in model.named_parameters():
        gradient, other = parameter.grad, others[name].grad
        assert (gradient is None) == (other is None), name
        if gradient is not None:
            scale = float(other.abs().max())
            torch.testing.assert_close(gradient, other, atol=1e-5 * scale, rtol=1e-5, msg=name)
            compared += scale > 0
    assert compared > 30

    rows = [
        row[mask.bool()].tolist()
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    assert sorted(rows) == sorted(samples)  # the very tokens that TRL makes of the pairs


def samples_of(pack: Any) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in pack.samples]


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def trl_batch(
    model: Any, reference: Any, pairs: list[Any], corpus: Path, whole_processors: Path, folder: Path
) -> tuple[Any, Any]:
    """TRL's trainer, and all pairs as its own collator makes one batch of them.

    The template's newline behind an answer is the only token that TRL trains and packidx does not.
    """
    processor = AutoProcessor.from_pretrained(whole_processors / "qwen2.5-vl")
    rows = [
        {**pair, "images": [opened(corpus / name) for name in pair["images"]]} for pair in pairs
    ]
    arguments = DPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], beta=0.1, max_length=None
    )
    trainer = DPOTrainer(
        model,
        reference,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=processor,
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    mask = batch["completion_mask"]
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    every_row = torch.arange(len(mask))
    newline = processor.tokenizer.convert_tokens_to_ids("Ċ")
    assert (batch["input_ids"][every_row, last] == newline).all()
    mask[every_row, last] = 0
    return trainer, batch


def test_it_trains(index: Path, whole_processors: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_dpo.py"), "--index", str(index)]
    command += ["--processor", str(whole_processors / "qwen2.5-vl"), "--steps", "12"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("step   1  loss 0.6931") and len(lines) == 14
    assert float(lines[-1].split()[-3]) < 0.69
