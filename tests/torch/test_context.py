"""`shard_for_cp`: parts of a batch that are all of it, and train as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_packs import make_index, record
from torch.nn import functional
from torch_packs import SyntheticEncode

from packidx.errors import OptionError
from packidx.torch import PackedDataset, collate, shard_for_cp

TEXTS = [record(n, [n]) for n in (5, 40, 17, 33, 64, 8, 90, 21, 3, 120)]


def batch_of(tmp_path: Path, attention: str, **options: Any) -> dict[str, Any]:
    index = make_index(tmp_path, {"all": TEXTS}, capacity=256, **options)
    dataset = PackedDataset(index, SyntheticEncode())
    return collate([dataset[k] for k in range(len(dataset))], attention)


def part_by_hand(row: torch.Tensor, bounds: list[int], rank: int, size: int) -> list[int]:
    kept: list[int] = []
    for begin, end in zip(bounds, bounds[1:], strict=False):
        chunks = row[begin:end].chunk(2 * size)
        kept += chunks[rank].tolist() + chunks[2 * size - 1 - rank].tolist()
    return kept


@pytest.mark.parametrize("attention", ["thd", "flash"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_have_all_of_it_between_them(tmp_path: Path, attention: str, size: int) -> None:
    batch = batch_of(tmp_path, attention, align=8)
    name = "cu_seqlens_padded" if attention == "thd" else "cu_seq_lens_q"
    bounds = batch[name].tolist()
    parts = [shard_for_cp(batch, rank, size) for rank in range(size)]
    for rank, part in enumerate(parts):
        for key in ("input_ids", "position_ids"):
            flat = batch[key].reshape(-1, bounds[-1])[0]
            own = part[key].reshape(-1, bounds[-1] // size)[0]
            assert own.tolist() == part_by_hand(flat, bounds, rank, size)
        if attention == "thd":
            assert part[name].equal(batch[name])
        else:
            assert (part[name] * size).equal(batch[name])
            assert part["max_length_q"] * size == batch["max_length_q"]
    ids = torch.cat([part["input_ids"].flatten() for part in parts])
    assert ids.sort().values.equal(batch["input_ids"].flatten().sort().values)


def test_the_loss_of_the_parts_is_that_of_the_whole(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, "thd", align=8)
    table = torch.randn(int(batch["input_ids"].max()) + 1, 50)

    def loss(of: dict[str, Any], targets: torch.Tensor) -> torch.Tensor:
        logits = table[of["input_ids"].flatten()]
        return functional.cross_entropy(logits, targets.flatten() % 50, reduction="none")[
            targets.flatten() >= 0
        ].sum()

    labels = batch["labels"]
    whole = loss(batch, functional.pad(labels[:, 1:], (0, 1), value=-100))
    parts = [shard_for_cp(batch, rank, 4) for rank in range(4)]
    assert sum(loss(part, part["shift_labels"]) for part in parts) == pytest.approx(
        float(whole), rel=1e-5
    )
    assert whole > 0


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, "thd", align=8)
    with pytest.raises(OptionError, match="plan with --align 10"):
        shard_for_cp(batch, 0, 5)
    with pytest.raises(OptionError, match=r"rank 2 is outside \[0, 2\)"):
        shard_for_cp(batch, 2, 2)
    with pytest.raises(OptionError, match="attention='thd' or 'flash'"):
        shard_for_cp({"input_ids": batch["input_ids"]}, 0, 2)
    pixels = {**batch, "pixel_values": torch.zeros(4, 3)}
    with pytest.raises(OptionError, match="embed them first"):
        shard_for_cp(pixels, 0, 2)
    hidden = torch.randn(1, batch["input_ids"].shape[1], 6)
    part = shard_for_cp({**pixels, "inputs_embeds": hidden}, 1, 2)
    assert part["inputs_embeds"].shape == (1, hidden.shape[1] // 2, 6)
