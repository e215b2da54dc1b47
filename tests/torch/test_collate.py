"""`collate`: what each layout returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from torch.nn.attention.flex_attention import BlockMask
from torch_packs import pack

from packidx.errors import MismatchError
from packidx.torch import (
    Pack,
    collate,
)

MEDIA = {"pixel_values": torch.ones(8, 6), "image_grid_thw": torch.tensor([[1, 2, 4]])}


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
@pytest.mark.parametrize("mrope", [True, False])
def test_one_pack(attention: str, mrope: bool) -> None:
    mask = torch.ones(7, dtype=torch.long)
    one = pack([3, 4], mrope=mrope, attention_mask=mask, mm_token_type_ids=mask, **MEDIA)
    for packs in (one, [one]):
        batch = collate(packs, attention)
        flash = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
        keys = {"input_ids", "labels", "position_ids", "mm_token_type_ids", "use_cache", *MEDIA}
        assert batch.keys() == keys | (flash if attention == "flash" else set())
        assert batch["use_cache"] is False
        assert batch["input_ids"].shape == batch["labels"].shape == (1, 7)
        assert batch["mm_token_type_ids"].shape == (1, 7)
        assert batch["position_ids"].shape == ((4, 1, 7) if mrope else (1, 7))
        assert torch.equal(batch["position_ids"].squeeze(-2), one.joined()["position_ids"])


def test_several_packs_are_padded_rows() -> None:
    packs = [pack([3, 4], **MEDIA), pack([2]), pack([5], mrope=False, **MEDIA)]
    batch = collate(packs, pad_token_id=99)
    assert batch["input_ids"].tolist()[1] == [10, 11, 99, 99, 99, 99, 99]
    assert batch["labels"].tolist()[1] == [10, 11, -100, -100, -100, -100, -100]
    assert batch["position_ids"].shape == (4, 3, 7)
    assert batch["position_ids"][:, 1].tolist()[3] == [3, 4, 0, 1, 2, 3, 4]
    assert batch["position_ids"][:, 2].tolist() == [[0, 1, 2, 3, 4, 0, 1]] * 4
    assert batch["pixel_values"].shape == (16, 6) and batch["image_grid_thw"].shape == (2, 3)


def test_flash_puts_all_packs_into_one_row() -> None:
    batch = collate([pack([3, 4]), pack([2])], "flash")
    assert batch["input_ids"].shape == (1, 9)
    assert batch["position_ids"].shape == (4, 1, 9)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 7, 9] == batch["cu_seq_lens_k"].tolist()
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 4
    assert isinstance(batch["max_length_q"], int)


def aligned(**media: Any) -> Pack:
    """Two samples in slots of 4, then a segment of nothing but padding."""
    return pack([3, 4, 0], slots=[4, 4, 4], **media)


def test_flex_sees_its_segment_up_to_itself() -> None:
    batch = collate([aligned(), pack([2])], "flex")
    mask = batch["attention_mask"]
    assert isinstance(mask, BlockMask) and mask.shape == (2, 1, 12, 12)
    assert batch["position_ids"].shape == (4, 2, 12)
    place = torch.arange(12)
    seen = mask.mask_mod(torch.tensor(0), torch.tensor(0), place[:, None], place)
    assert torch.equal(seen, (place[:, None] // 4 == place // 4).tril())
    seen = mask.mask_mod(torch.tensor(1), torch.tensor(0), place[:, None], place)
    assert torch.equal(seen[:2, 2:], torch.zeros(2, 10, dtype=torch.bool))
    assert not seen[2:, :2].any() and seen.diagonal().all()


def test_indexed_numbers_the_segments() -> None:
    batch = collate([aligned(), pack([2, 1])], "indexed")
    mask = batch["attention_mask"]
    assert mask.tolist() == [[1, 1, 1, 0, 2, 2, 2, 2, 0, 0, 0, 0], [1, 1, 2] + [0] * 9]
    assert mask.dtype == torch.int64
    assert batch["position_ids"].shape == (3, 2, 12)  # no row of restarting positions
    assert collate(pack([3], mrope=False), "indexed")["position_ids"].shape == (1, 3)
    assert batch.keys() == {"input_ids", "labels", "position_ids", "attention_mask", "use_cache"}


def test_media_are_counted_by_rows_for_pipelines() -> None:
    rows = [pack([2], **MEDIA), pack([2]), pack([3], **MEDIA)]
    assert collate(rows, "indexed")["n_images_per_sample"].tolist() == [1, 0, 1]


def test_thd_counts_true_lengths_and_slots() -> None:
    batch = collate([aligned(), pack([2, 1], **MEDIA)], "thd")
    assert batch["cu_seqlens"].tolist() == [0, 3, 7, 9, 10]
    assert batch["cu_seqlens_padded"].tolist() == [0, 4, 12, 14, 15]  # padding joins its neighbour
    assert batch["max_seqlen"].tolist() == 4 and batch["max_seqlen"].ndim == 0
    for key in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen"):
        assert batch[key].dtype == torch.int32
    assert batch["qkv_format"] == "thd"
    assert batch["padding_mask"].tolist() == [[n in (3, 8, 9, 10, 11) for n in range(15)]]
    assert batch["input_ids"].shape == (1, 15) and batch["position_ids"].shape == (3, 1, 15)
    assert "attention_mask" not in batch and batch["pixel_values"].shape == (8, 6)
    assert batch["n_images_per_sample"].tolist() == [1]  # of a batch of one row
    assert not batch.keys() & {"pack_id", "sample_ids", "source_ids", "events", "lengths"}


def test_packs_may_differ_in_tiles_per_image() -> None:
    """LLaVA-OneVision's pixel_values: how many are real follows from image_sizes."""

    def tiles(count: int) -> Pack:
        return pack([2], pixel_values=torch.ones(1, count, 3, 2, 2), image_sizes=torch.ones(1, 2))

    batch = collate([tiles(1), tiles(3)])
    assert batch["pixel_values"].shape == (2, 3, 3, 2, 2)
    assert batch["pixel_values"].sum(dim=(2, 3, 4)).tolist() == [[12, 0, 0], [12, 12, 12]]
    with pytest.raises(MismatchError, match="pixel_values with different shapes"):
        collate(
            [pack([2], pixel_values=torch.ones(2, 6)), pack([2], pixel_values=torch.ones(2, 7))]
        )
