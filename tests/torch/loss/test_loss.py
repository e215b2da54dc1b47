"""Loss weights, denominators and holes on one process; test_ddp.py has many."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_packs import make_index, record
from torch.nn import functional
from torch_packs import SyntheticEncode
from trained_packs import (
    BATCH,
    Encode,
    gradients,
    largest_difference,
    tiny_model,
    trained_index,
)

from packidx.errors import MismatchError, OptionError
from packidx.index import Index
from packidx.records.fetch import Fetcher
from packidx.torch import PackedDataset, PackSampler, collate
from packidx.torch.loss import (
    WEIGHTS,
    LossWeights,
    batch_weight,
    label_positions,
    loss_targets,
    packed_loss,
    seen_denominator,
    segment_numbers,
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return trained_index(tmp_path_factory.mktemp("trained"))


def weight_of(name: str, count: int) -> float:
    return {"token": 1.0, "sample": 1 / count, "square": 1 / math.sqrt(count)}[name]


def alone(index: Index, packs: list[int], name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by the definition: every sample on its own, nothing of packidx.torch."""
    model, encode = tiny_model(), Encode()
    fetcher = Fetcher(index)
    summed, denominator = torch.zeros(()), 0.0
    for number in packs:
        for sample in index.pack(number).samples:
            encoded = encode(fetcher.read(sample))
            labels = encoded["labels"][1:]
            logits = model(encoded["input_ids"][None], use_cache=False).logits[0, :-1]
            losses = functional.cross_entropy(logits, labels, reduction="sum")
            count = int((labels != -100).sum())
            summed = summed + losses * weight_of(name, count)
            denominator += count * weight_of(name, count)
    (summed / denominator).backward()
    return float(summed.detach()) / denominator, gradients(model)


@functools.cache
def reference(index: Index, name: str) -> tuple[float, dict[str, torch.Tensor]]:
    return alone(index, PackSampler(index, global_batch=BATCH).packs_of_step(0), name)


def packed(
    index: Index, name: str, together: int = 1, attention: str = "sdpa", how: str = "plain"
) -> tuple[float, dict[str, torch.Tensor]]:
    """The same in packs, `together` per micro-step."""
    model, dataset, weights = tiny_model(), PackedDataset(index, Encode()), LossWeights(name)
    packs = [dataset[k] for k in PackSampler(index, global_batch=BATCH).packs_of_step(0)]
    batches = [
        collate(packs[start : start + together], attention) for start in range(0, BATCH, together)
    ]
    denominator, total = seen_denominator(batches, weights), 0.0
    for batch in batches:
        inputs = {k: v for k, v in batch.items() if "labels" not in k}
        extra: dict[str, Any] = {}
        if how == "kept":
            extra["kept"] = label_positions(batch)
            hidden = model(**inputs, logits_to_keep=extra["kept"]).logits
            assert hidden.shape[1] < batch["labels"].shape[1]
        else:
            hidden = model(**inputs).logits
        loss = packed_loss(hidden, batch, weights, denominator, **extra)
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(
    ("together", "attention", "how"),
    [(1, "sdpa", "plain"), (2, "sdpa", "kept"), (4, "flash", "plain")],
)
def test_packed_is_the_definition(
    index: Index, name: str, together: int, attention: str, how: str
) -> None:
    loss, expected = reference(index, name)
    found, grads = packed(index, name, together, attention, how)
    assert found == pytest.approx(loss, abs=1e-5)
    assert largest_difference(grads, expected) < 1e-5


def test_per_token_weights_are_internvls() -> None:
    counts = torch.tensor([0, 1, 4, 100])
    expected = {"token": [0, 1, 1, 1], "sample": [0, 1, 0.25, 0.01], "square": [0, 1, 0.5, 0.1]}
    for name, values in expected.items():
        weights = LossWeights(name)
        assert weights.per_token(counts).tolist() == pytest.approx(values)
        assert weights.total(counts.numpy()) == pytest.approx(
            float((counts * torch.tensor(values)).sum())
        )


def test_a_batch_without_labels_adds_nothing(index: Index) -> None:
    batch = collate(PackedDataset(index, Encode())[0])
    batch["labels"] = torch.full_like(batch["labels"], -100)
    model = tiny_model()
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    loss = packed_loss(model(**inputs).logits, batch, LossWeights("square"), 0.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(not grad.any() for grad in gradients(model).values())
    assert batch_weight(batch, LossWeights("sample")) == 0 and not len(label_positions(batch))


def test_alignment_padding_and_mrope_do_not_matter(index: Index) -> None:
    """Segments begin where positions are 0: padding at their end belongs to them."""
    labels = torch.tensor([[-100, 5, 6, -100, -100, 7, -100, -100]])
    row = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0]])
    rows = torch.stack([row, *[torch.arange(8)[None]] * 3])
    expected = [[0.5, 0.5, 0, 0, 1, 0, 0, 0]]
    for positions in (row, rows):
        batch = {"labels": labels, "position_ids": positions}
        targets, weights = loss_targets(batch, LossWeights("sample"))
        assert targets.tolist() == [[5, 6, -100, -100, 7, -100, -100, -100]]
        assert weights.tolist() == expected
        pack = {"labels": labels[0], "position_ids": positions[..., 0, :]}
        assert loss_targets(pack, LossWeights("sample"))[1].tolist() == expected[0]


def test_bad_use(index: Index) -> None:
    with pytest.raises(OptionError, match="'tokens' is not one of token, sample, square"):
        LossWeights("tokens")
    batch = {"labels": torch.tensor([[-100, 1, 2]]), "position_ids": torch.tensor([[0, 1, 2]])}
    with pytest.raises(OptionError, match="denominator is -1"):
        packed_loss(torch.zeros(1, 3, 9), batch, LossWeights(), -1)
    with pytest.raises(OptionError, match="denominator is nan"):
        packed_loss(torch.zeros(1, 3, 9), batch, LossWeights(), math.nan)
    with pytest.raises(MismatchError, match=r"\[1, 2, 9\] are not those .*\[1, 3\]: give"):
        packed_loss(torch.zeros(1, 2, 9), batch, LossWeights(), 1)
    with pytest.raises(MismatchError, match="at 1 kept positions"):
        packed_loss(torch.zeros(1, 1, 9), batch, LossWeights(), 1, kept=torch.tensor([0]))


class BeginsWithAnImage(SyntheticEncode):
    """mRoPE positions that are 0 more than once: the first tokens are an image's."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        encoded = super().__call__(record)
        encoded["position_ids"][:, :4] = 0
        return encoded


@pytest.mark.parametrize("attention", ["sdpa", "flash", "thd", "indexed"])
def test_segments_are_samples_whatever_positions_say(tmp_path: Path, attention: str) -> None:
    records = [record(seed, [6 + seed]) for seed in range(9)]
    index = make_index(tmp_path, {"all": records}, capacity=40, align=4)
    dataset = PackedDataset(index, BeginsWithAnImage(rope=True))
    packs = [dataset[k] for k in range(len(dataset))]
    batch = collate(packs, attention)
    trained = batch["labels"] != -100
    counts = torch.bincount(segment_numbers(batch)[trained])
    planned = [sample.length - 1 for k in range(len(dataset)) for sample in index.pack(k).samples]
    assert counts[counts > 0].tolist() == planned
