"""What NeMo Automodel's own utilities make of the same packs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import packs_of, tiny, worst_difference

from packidx.torch import Pack, collate

pytestmark = [
    pytest.mark.skipif(
        find_spec("nemo_automodel") is None,
        reason="nemo-automodel is not installed (pip install --no-deps nemo-automodel==0.7.0)",
    ),
    pytest.mark.filterwarnings("ignore"),  # of its imports
]


def nemo(module: str) -> Any:
    return import_module(f"nemo_automodel.components.{module}")


def theirs(given: Pack) -> dict[str, Any]:
    """A pack as NeMo's packing would hand it to NeMo's collater."""
    pack = given.joined()
    slots, lengths = pack["cu_seqlens"].diff(), pack["lengths"]
    number = torch.zeros_like(pack["input_ids"])
    for at, (start, length) in enumerate(zip(pack["cu_seqlens"].tolist(), lengths, strict=False)):
        number[start : start + int(length)] = at + 1
    keys = ("input_ids", "labels", "mm_token_type_ids", "pixel_values", "image_grid_thw")
    return {
        **{key: pack[key] for key in keys if key in pack},
        "n_images": len(pack.get("image_grid_thw", ())),
        "n_videos": 0,
        "position_ids": pack["position_ids"][1:],
        "attention_mask": number,
        "seq_lens": lengths,
        "seq_lens_padded": slots,
    }


def test_indexed(tmp_path: Path) -> None:
    packs = packs_of(tmp_path, "qwen2_5_vl", 45)
    batch = collate(packs, "indexed")
    assert nemo("models.common.packing").is_indexed_packed_mask(batch["attention_mask"])
    neat_collater = nemo("datasets.vlm.collate_fns").neat_packed_vlm_collater
    expected = neat_collater([theirs(one) for one in packs], materialize_4d_mask=False)
    for key in ("input_ids", "labels", "attention_mask", "mm_token_type_ids", "image_grid_thw"):
        assert torch.equal(batch[key], expected[key]), key
        assert batch[key].dtype == expected[key].dtype, key
    counts = batch["n_images_per_sample"]
    assert torch.equal(counts, expected["n_images_per_sample"])
    assert (
        counts.dtype == expected["n_images_per_sample"].dtype and "n_videos_per_sample" not in batch
    )
    real = expected["attention_mask"] > 0
    assert torch.equal(batch["position_ids"] * real, expected["position_ids"] * real)

    expand = nemo("datasets.utils")._indexed_mask_to_4d_block_causal
    batch["attention_mask"] = expand(batch["attention_mask"])
    padding = torch.eye(batch["input_ids"].shape[1], dtype=torch.bool)
    batch["attention_mask"] |= padding & ~real[:, None, :, None]  # else rows of nothing
    model = tiny("qwen2_5_vl")
    with torch.no_grad():
        logits = model(**batch).logits
    assert worst_difference(model, "qwen2_5_vl", packs, logits) < 1e-5


@pytest.mark.parametrize("attention", ["indexed", "thd"])
def test_media_are_dealt_to_pipeline_stages(tmp_path: Path, attention: str) -> None:
    """NeMo cuts a batch into micro-batches of rows: each must get the media of its packs."""
    deal = nemo("datasets.vlm.pp_media").chunk_vlm_media
    packs = packs_of(tmp_path, "qwen2_5_vl", 45)
    packs = [*packs, *packs[:1]]
    batch = collate(packs, attention)
    rows = len(batch["input_ids"])
    dealt = [packs] if rows == 1 else [[each] for each in packs]
    pixels, grids = deal(
        batch["pixel_values"],
        batch["image_grid_thw"],
        rows,
        rows,
        n_images_per_sample=batch["n_images_per_sample"],
    )
    for part, grid, own in zip(pixels, grids, dealt, strict=True):
        mine = [each for each in (pack.joined() for pack in own) if "pixel_values" in each]
        empty = torch.zeros(0, part.shape[1])
        assert torch.equal(part, torch.cat([empty, *(each["pixel_values"] for each in mine)]))
        assert len(grid) == sum(len(each["image_grid_thw"]) for each in mine)


@pytest.mark.parametrize("align", [1, 8])
def test_thd(tmp_path: Path, align: int) -> None:
    thd_collater = nemo("datasets.vlm.collate_fns").packed_sequence_thd_vlm_collater
    (pack,) = packs_of(tmp_path, "qwen2_5_vl", align=align)
    expected = nemo("distributed.thd_utils").process_input_for_thd(thd_collater([theirs(pack)]))
    batch = collate(pack, "thd")
    bounds = {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"}
    # It leaves the padded bounds out where they are the same.
    assert ("cu_seqlens_padded" in expected) == (align > 1)
    expected.setdefault("cu_seqlens_padded", expected["cu_seqlens"])
    for key in bounds:
        assert torch.equal(batch[key], expected[key]) and batch[key].dtype == expected[key].dtype
    assert batch["qkv_format"] == expected["qkv_format"]
    assert torch.equal(batch["n_images_per_sample"], expected["n_images_per_sample"])
    extra = {key: batch[key] for key in (*bounds, "qkv_format")}
    ids, positions, padding, extra = nemo("utils.model_utils").squeeze_input_for_thd(
        batch["input_ids"], batch["position_ids"], batch["padding_mask"], extra
    )
    assert torch.equal(ids, expected["input_ids"])
    assert torch.equal(positions, expected["position_ids"])
    assert torch.equal(padding, expected["padding_mask"])
    assert torch.equal(batch["labels"][0], expected["labels"])
    assert extra["max_seqlen"] == int(expected["max_seqlen"])
