"""Teach a tiny model to answer questions about drawings, on packs and on padded rows, on the CPU.

    python examples/train_vqa.py data

The questions are easy-vqa's (`make_corpus.py`): what shape, what colour, is there a blue circle. One
drawing in ten is held out, with all its questions. The same model is trained twice on the same
samples in the same steps: packed, as planned, and with one sample per row, padded. Both see the same
gradients but for rounding, so both learn the same; the picture shows it, and the table how many
tokens per second each trained on.

Everything comes from `PackedDataset`. What is tiny is the model, and its vocabulary: the ids that
easy-vqa uses, numbered anew, instead of Qwen's 151,936.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.torchvision_cpu import allow_cuda_torchvision
from packidx.torch import PackedDataset, PackSampler, collate

Pack = dict[str, Any]

HOLDOUT = "0.1"  # share of the drawings that is never trained on
CAPACITY = 512  # attention costs the square of a row: wider rows would lose on a CPU what they fill
TURNS = (1, 1, 2, 4, 16)  # questions per sample: short samples and long ones, as in a real mix
COLOURS = {"black", "blue", "brown", "gray", "green", "red", "teal", "yellow"}
SHAPES = {"circle", "rectangle", "triangle"}


# --- the data -------------------------------------------------------------------------------------


def write_questions(corpus: Path, out: Path, limit: int | None = None) -> int:
    """Deal each drawing's questions to samples of `TURNS` questions; returns how many samples.

    All samples of a drawing have one id: the holdout goes by it, so no drawing is on both sides.
    """
    rng, count = random.Random("train_vqa"), 0
    lines = (corpus / "vqa_multiturn.jsonl").read_text().splitlines()[:limit]
    with out.open("w") as file:
        for record in map(json.loads, lines):
            turns = record["conversations"]
            asked = [(q["value"].removeprefix("<image>\n"), a["value"]) for q, a in pairs(turns)]
            rng.shuffle(asked)
            while asked:
                size = rng.choice(TURNS)
                some, asked = asked[:size], asked[size:]
                dealt = []
                for n, (question, answer) in enumerate(some):
                    dealt.append({"from": "human", "value": "<image>\n" * (n == 0) + question})
                    dealt.append({"from": "gpt", "value": answer})
                sample = {"id": record["id"], "image": record["image"], "conversations": dealt}
                file.write(json.dumps(sample) + "\n")
                count += 1
    return count


def pairs(turns: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(turns[::2], turns[1::2], strict=True)


def read(index: Path, encode: ProcessorEncoder) -> list[Pack]:
    """Every pack of a snapshot, in memory: they are small, and each is used several times."""
    loader = DataLoader(PackedDataset(index, encode), batch_size=None, num_workers=2)
    return [pack | {"pixel_values": pack["pixel_values"].half()} for pack in loader]


def samples_of(pack: Pack) -> list[Pack]:
    """A pack's samples as packs of one sample each: what is padded to a batch without packing."""
    bounds = pack["cu_seqlens"].tolist()
    images = pack["image_grid_thw"]  # one per sample
    patches = images.prod(dim=1).tolist()
    result, patch = [], 0
    for n, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        sample = {name: pack[name][start:stop] for name in ("input_ids", "labels")}
        sample["position_ids"] = pack["position_ids"][:, start:stop]
        sample["pixel_values"] = pack["pixel_values"][patch : patch + patches[n]]
        sample["image_grid_thw"] = images[n : n + 1]
        sample["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
        result.append(sample | {"max_seqlen": stop - start})
        patch += patches[n]
    return result


class Vocabulary:
    """The ids that occur, numbered from 0 in their order."""

    def __init__(self, packs: list[Pack]) -> None:
        self.ids = torch.unique(torch.cat([pack["input_ids"] for pack in packs]))

    def __len__(self) -> int:
        return len(self.ids)

    def number(self, ids: Tensor) -> Tensor:
        """`ids` numbered anew; -100 stays."""
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self) - 1)
        if not torch.equal(self.ids[place][ids >= 0], ids[ids >= 0]):
            raise SystemExit("the held-out questions have a word that the others lack")
        return torch.where(ids < 0, ids, place)

    def batch(self, packs: list[Pack]) -> dict[str, Any]:
        """The model's arguments."""
        batch = collate(packs, attention="sdpa", pad_token_id=int(self.ids[0]))
        batch["input_ids"] = self.number(batch["input_ids"])
        batch["labels"] = self.number(batch["labels"])
        batch["pixel_values"] = batch["pixel_values"].float()
        return batch


# --- the model ------------------------------------------------------------------------------------


def build_model(vocabulary: Vocabulary, media: dict[str, int], hidden: int = 128, layers: int = 4, vhidden: int=64, depth: int=2) -> Any:
    """A Qwen2.5-VL."""
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    half = hidden // 4 // 2
    text = {
        "vocab_size": len(vocabulary),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
        },
    }
    vision = {
        "depth": depth,
        "hidden_size": vhidden,
        "intermediate_size": 2 * vhidden,
        "num_heads": 2,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": list(range(depth)),
    }
    image = int(vocabulary.number(torch.tensor([media["image"]])))
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, tie_word_embeddings=True,
        video_token_id=len(vocabulary)+1,
    )
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
