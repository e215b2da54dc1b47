"""Train a tiny, randomly initialised Qwen2.5-VL on the packs of an index, on the CPU.

    python examples/train_tiny.py --index data/index --processor data/processors/qwen2.5-vl

Everything but the model's size is real: the vocabulary, the images, the loader with its worker
processes, the packed batches. A step trains on its first 512 label tokens
only: the logits of a whole pack would take 5 GB. Nothing is saved. It takes about a minute.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from packidx.encode.imports import allow_cuda_torchvision
from packidx.index import Index, open_index
from packidx.torch import PackedDataset, PackSampler, collate, prepare_model

LOGITS = 512  # label tokens trained per step: x 152k vocabulary x 4 bytes = 0.3 GB of logits


def build_model(seed: int = 0) -> Any:
    """Two language layers, one vision layer, the real vocabulary and patch size."""
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": 151_936,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1_000_000.0,
            "mrope_section": [2, 3, 3],
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [],
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")


def loss_of(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Mean loss over at most `LOGITS` label tokens of the batch, and how many label tokens it has.

    `model(**batch).loss` takes all of them, but first computes the logits of all 8,192 tokens: 5 GB
    with the real vocabulary, and most of the time on a CPU. That is why this goes step by step.
    """
    labels = batch.pop("labels")
    hidden = model.model(**batch).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    chosen = (targets != -100).nonzero(as_tuple=True)
    some = tuple(axis[:LOGITS] for axis in chosen)
    logits = model.lm_head(hidden[some])
    return torch.nn.functional.cross_entropy(logits, targets[some]), len(chosen[0])


def train(index: Index, processor: str, steps: int, workers: int) -> list[float]:
    """Run `steps` optimizer steps of one pack each; returns their losses per label token."""
    model = prepare_model(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = PackSampler(index, global_batch=1)
    dataset = PackedDataset(index, processor)
    loader = DataLoader(
        dataset, batch_size=1, sampler=sampler, num_workers=workers, collate_fn=collate
    )
    print(f"{model.num_parameters():,} parameters, {len(sampler)} packs per epoch")
    losses, begin = [], time.perf_counter()
    for step, batch in zip(range(min(steps, sampler.num_steps)), loader, strict=False):
        tokens, images = batch["input_ids"].numel(), len(batch.get("image_grid_thw", ()))
        loss, count = loss_of(model, batch)
        [pack] = sampler.packs_of_step(step)
        planned = sampler.index.stats(pack)["label_tokens"]
        if planned not in (None, count):
            raise SystemExit(f"step {step}: {count} label tokens, but the plan says {planned}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds = time.perf_counter() - begin
        print(
            f"step {step:3d}  loss {losses[-1]:6.3f}  {tokens} tokens  {images:3d} images"
            f"  {count:4d} label tokens{' (as planned)' if planned is not None else ''}"
            f"  {seconds:5.1f} s",
            flush=True,
        )
    print("a checkpoint taken now would hold", sampler.state_at(len(losses)))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", default="data/index", help="folder of the pack index")
    parser.add_argument("--processor", default="data/processors/qwen2.5-vl", help="its processor")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of one pack each")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader worker processes")
    args = parser.parse_args()
    losses = train(open_index(args.index), args.processor, args.steps, args.workers)
    half = len(losses) // 2
    if half:
        first, last = sum(losses[:half]) / half, sum(losses[-half:]) / half
        print(f"mean loss of the first {half} steps {first:.3f}, of the last {half} {last:.3f}")
        if last >= first:
            raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
