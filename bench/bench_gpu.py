"""Time one epoch on a GPU: packed, packed by a peer's rule, and padded.

    PYTHONPATH=. python bench/bench_gpu.py data         # Qwen2.5-VL-3B's shapes, on a CUDA device
    PYTHONPATH=. python bench/bench_gpu.py data --tiny  # a tiny model on a CPU, three batches

Weights are random: no number depends on them. Every way trains the same samples: forward and
backward, without an optimizer. A batch is one pack, or as many padded samples as fit its tokens.
Time spent waiting for the loader is included and printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from bench_packs import MODEL
from bench_tools import heading, line
from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.imports import allow_cuda_torchvision
from packidx.torch import Pack, PackedDataset, PackSampler, collate, prepare_model

FIRST = 5
"""Warm-up batches, not timed."""
PEER = "next-fit"
"""Strategy of `plan`: the packing rule of LMMS Engine."""
_TEXT_3B = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1_000_000.0,
        "mrope_section": [16, 24, 24],
    },
    "tie_word_embeddings": True,
}
_VISION_3B = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048}


def build_3b(attention: str, device: str) -> Any:
    """A Qwen2.5-VL of the 3B checkpoint's shapes, bfloat16."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(text_config=_TEXT_3B, vision_config=_VISION_3B)
    with torch.device(device):
        make = Qwen2_5_VLForConditionalGeneration._from_config
        model = make(config, attn_implementation=attention, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    return model


def build_tiny(attention: str, device: str) -> Any:
    """The model of examples/train_tiny.py."""
    from examples.train_tiny import build_model

    return build_model()


def padded(packs: list[Pack]) -> dict[str, Any]:
    """Packs of one sample as rows, padded to the longest."""
    samples = [sample for pack in packs for sample in pack.samples]

    def rows(name: str, fill: int) -> torch.Tensor:
        values = [sample[name].movedim(-1, 0) for sample in samples]
        return pad_sequence(values, batch_first=True, padding_value=fill)

    ids = rows("input_ids", 0)
    ends = torch.tensor([len(sample["input_ids"]) for sample in samples])
    batch = {
        "input_ids": ids,
        "labels": rows("labels", -100),
        "position_ids": rows("position_ids", 1).permute(2, 0, 1),
        "attention_mask": (torch.arange(ids.shape[1]) < ends[:, None]).long(),
        "use_cache": False,
    }
    for name in ("pixel_values", "image_grid_thw"):
        if given := [sample[name] for sample in samples if name in sample]:
            batch[name] = torch.cat(given)
    return batch


def batches_of(index: Any, capacity: int) -> list[list[int]]:
    """Packs of one sample, in the order of training: as many as fit when they are padded."""
    batches: list[list[int]] = [[]]
    longest = 0
    for number in PackSampler(index, global_batch=1):
        longest = max(longest, index.pack(number).samples[0].length)
        if batches[-1] and longest * (len(batches[-1]) + 1) > capacity:
            batches.append([])
            longest = index.pack(number).samples[0].length
        batches[-1].append(number)
    return batches


def measure(model: Any, loader: DataLoader, device: str, steps: int | None) -> dict[str, float]:
    """Train on `steps` batches (None: all) after `FIRST` warm-up batches.

    Returns:
        Label tokens, all tokens and seconds; the share of time spent waiting; peak memory in GiB.
    """
    labels = tokens = batches = 0
    waited = 0.0
    for warm in (True, False):
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        iterator = islice(loader, FIRST if warm else steps)
        begun = time.perf_counter()
        while True:
            asked = time.perf_counter()
            if (batch := next(iterator, None)) is None:
                break
            if not warm:
                waited += 0.0 if batches == 0 else time.perf_counter() - asked
                batches += 1
                labels += int((batch["labels"][..., 1:] != -100).sum())
                seen = batch.get("attention_mask")
                flat = seen is None or seen.ndim != 2
                tokens += batch["input_ids"].numel() if flat else int(seen.sum())
            if not warm and batches == 1:
                begun = time.perf_counter()  # workers have started
            moved = {
                name: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
                for name, value in batch.items()
            }
            model(**moved).loss.backward()
            model.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.synchronize()
    taken = time.perf_counter() - begun
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "labels": labels,
        "tokens": tokens,
        "seconds": taken,
        "batches": batches,
        "waited": waited / taken,
        "peak": peak,
    }


def main() -> None:
    """Print the figures of all ways, with flash-attn where it is there, and with sdpa."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--attention", action="append", help="only these implementations")
    given = parser.parse_args()
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    device = "cpu" if given.tiny else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: --tiny shows on a CPU that this runs")
    steps, capacity = (3, 1024) if given.tiny else (None, 8192)
    build: Callable[[str, str], Any] = build_tiny if given.tiny else build_3b
    has_flash = not given.tiny and find_spec("flash_attn") is not None
    kinds = {"flash_attention_2": "flash"} if has_flash else {}
    with tempfile.TemporaryDirectory() as name:
        folder, corpus = Path(name), given.data / "corpus"
        processor = given.data / "processors" / MODEL
        settings = {"images.max_pixels": 1_003_520 if not given.tiny else 200_704}
        made = {"processor": processor, "processor_settings": settings, "media_root": corpus}
        estimate_lengths(str(corpus), folder / "lengths", **made)
        ways = {"packed": {}, f"packed by {PEER}": {"strategy": PEER}, "padded": {"max_samples": 1}}
        for way, options in ways.items():
            plan_packs(folder / "lengths", folder / way, capacity=capacity, **options)
        for attention, layout in {**kinds, "sdpa": "sdpa"}.items():
            if given.attention and attention not in given.attention:
                continue
            model = prepare_model(build(attention, device)).train()
            heading(f"{attention}, batches of {capacity:,} tokens")
            for way in ways:
                index = open_index(folder / way)
                encode = ProcessorEncoder(processor, settings=settings, pixels="bfloat16")
                order = (
                    batches_of(index, capacity)
                    if way == "padded"
                    else PackSampler(index, global_batch=1)
                )
                loader = DataLoader(
                    PackedDataset(index, encode),
                    **({"batch_sampler": order} if way == "padded" else {"sampler": order}),
                    num_workers=given.workers,
                    pin_memory=device == "cuda",
                    collate_fn=padded if way == "padded" else partial(collate, attention=layout),
                )
                found = measure(model, loader, device, steps)
                line(
                    way,
                    f"{found['seconds']:,.0f} s for {found['batches']:,} batches, "
                    f"{found['labels'] / found['seconds']:,.0f} label tokens/s, "
                    f"{found['tokens'] / found['seconds']:,.0f} tokens/s, "
                    f"{found['peak']:.1f} GiB peak, {found['waited']:.1%} waiting for data",
                )


if __name__ == "__main__":
    main()
