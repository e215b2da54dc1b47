"""A pack against what it is made of: `dataset[k]` and its samples' own processor calls.

Packs of the corpus, one after another, each made twice: by `PackedDataset`, and sample by sample as
a training script without packs does it, record and images read from disk, then transformers' own
`processor.apply_chat_template(..., tokenize=True)`. What both read is in the page cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from bench_tools import heading, line, ratio
from packidx import open_index, plan_packs
from packidx.encode.imports import allow_cuda_torchvision
from packidx.index import Index, PlannedSample
from packidx.records.conversation import to_messages
from packidx.records.read import parse_record
from packidx.torch import PackedDataset

PACKS = 24
MODEL = "qwen2.5-vl"
MAX_PIXELS = 1_003_520


def main(data: Path) -> None:
    """Print the ratio over packs of the corpus in `data`."""
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    from transformers import AutoProcessor

    folder = data / "processors" / MODEL
    # The corpus is counted with the limit of an image that examples/recipe.yaml gives.
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor.size.longest_edge = MAX_PIXELS
    with tempfile.TemporaryDirectory() as output:
        plan_packs(data / "lengths", output, capacity=8192)
        index = open_index(output)
        dataset = PackedDataset(index, folder)
        packs = np.random.default_rng(0).permutation(index.num_packs)[: PACKS + 2].tolist()
        ours, theirs = np.array([_times(dataset, index, processor, k) for k in packs])[2:].T
        samples = sum(len(index.pack(k).samples) for k in packs[2:])
    heading(f"{PACKS} packs of 8,192 tokens, {samples} samples: one call a pack / one a sample")
    ratio("dataset[k] / its samples' processor calls", ours.sum(), theirs.sum(), at_most=1.05)
    line("    median pack", f"{np.median(ours / theirs):.3f}")


def _times(dataset: PackedDataset, index: Index, processor: Any, k: int) -> tuple[float, float]:
    begin = time.perf_counter()
    pack = dataset[k].joined()
    ours = time.perf_counter() - begin
    begin = time.perf_counter()
    calls = processor_calls(index, processor, k)
    theirs = time.perf_counter() - begin
    ids = np.concatenate([one["input_ids"][0].numpy() for one in calls])
    if not np.array_equal(pack["input_ids"].numpy(), ids):
        raise RuntimeError(f"pack {k} is not what its samples' processor calls make")
    return ours, theirs


def processor_calls(index: Index, processor: Any, k: int) -> list[Any]:
    """Return what a script without packs makes of pack `k`'s samples, one by one."""
    return [_call(index, processor, sample) for sample in index.pack(k).samples]


def _call(index: Index, processor: Any, sample: PlannedSample) -> Any:
    """What a script without packs does for one sample."""
    manifest = index.manifest
    shard = manifest["shards"][sample.shard]
    with open(shard["uri"], "rb") as file:
        file.seek(sample.offset or 0)
        conversation = parse_record(json.loads(file.read(sample.nbytes or 0)))
    messages = to_messages(conversation)
    roots = {source["name"]: source["media_root"] for source in manifest["sources"]}
    root = roots[sample.source] or str(Path(shard["uri"]).parent)
    images = iter(conversation.media)
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                opened = Image.open(Path(root) / str(next(images).ref))
                part["image"] = ImageOps.exif_transpose(opened.convert("RGB"))
    return processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
