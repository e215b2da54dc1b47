"""examples/train_vqa.py: packed and padded rows give each sample the same loss, and it falls."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401 - before transformers

from packidx.encode import ProcessorEncoder

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_vqa.py"


@pytest.fixture(scope="module")
def vqa() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_vqa", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_vqa"] = module
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def planned(
    vqa: ModuleType, corpus: Path, whole_processors: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any], list[Any], Any]:
    """Folder of the plans, packs of both sides, vocabulary: of 100 drawings."""
    out = tmp_path_factory.mktemp("vqa")
    vqa.plan(corpus, whole_processors / "qwen2.5-vl", out, limit=100)
    encode = ProcessorEncoder(whole_processors / "qwen2.5-vl")
    packs = vqa.read(out / "train", encode, workers=0)
    held_out = vqa.read(out / "holdout", encode, workers=0)
    return out, packs, held_out, vqa.Vocabulary(packs + held_out, encode)


def test_packed_and_padded_are_the_same_samples(vqa: ModuleType, planned: Any) -> None:
    out, packs, _, vocabulary = planned
    model = vqa.build_model(vocabulary)
    steps = list(vqa.schedule(out / "train", 12))
    assert len(steps) == 12 and all(len(step) == vqa.PACKS_PER_STEP for step in steps)
    chosen = [packs[k] for k in steps[0]]
    found, gradients = {}, {}
    for is_packed in (True, False):
        batch = vocabulary.collate(chosen, is_packed)
        rows = len(chosen) if is_packed else sum(len(pack.samples) for pack in chosen)
        assert batch["input_ids"].shape[0] == rows
        found[is_packed] = vqa.predict(model, batch)
        found[is_packed].losses.mean().backward()
        gradients[is_packed] = [one.grad.clone() for one in model.parameters()]
        model.zero_grad()
    packed, padded = found[True], found[False]
    assert torch.equal(packed.labels, padded.labels) and torch.equal(packed.answer, padded.answer)
    assert int(packed.sample[-1]) + 1 == sum(len(pack.samples) for pack in chosen)
    assert packed.loss_per_sample().std() > 0.05  # that they agree means something
    torch.testing.assert_close(
        packed.loss_per_sample(), padded.loss_per_sample(), atol=1e-4, rtol=0
    )
    for a, b in zip(gradients[True], gradients[False], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
