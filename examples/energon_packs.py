"""Packs of `packidx export energon` in Megatron-Energon: a task encoder to take and change.

    from energon_packs import PackEncoder, train_dataset
    from megatron.energon import WorkerConfig, get_savable_loader

    workers = WorkerConfig(rank=0, world_size=1, num_workers=2)
    loader = get_savable_loader(train_dataset("export/metadataset.yaml", workers))

A pack comes as its samples in order: messages as a chat template takes them, with images opened in
their places. Put your tokenizer into `PackEncoder.encode_sample`; ``sample["token_len"]`` is the
length that was planned, and so what `len(input_ids)` must be. Images are decoded as packidx counted
them (EXIF rotation applied, RGB); videos are bytes, for the decoder of your choice.

Run as a script it reads every pack of an export once and says what was in them:

    python examples/energon_packs.py EXPORT/metadataset.yaml
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    FileStore,
    Sample,
    SavableDataset,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
    reraise_exception,
    stateless,
)
from PIL import Image, ImageOps


@edataclass
class PackSample(Sample):
    """A pack before it is tokenized."""

    pack_id: int
    samples: list[dict[str, Any]]
    """As in packs.jsonl, in order of position, media in the messages; `token_start` and
    `token_len` say which of a cut sample's tokens are this pack's."""


@stateless  # without this, Energon drops every sample
def cook_pack(line: CrudeSample, **aux: FileStore) -> PackSample:
    """A line of packs.jsonl with the media out of the original tars."""
    pack = line["json"]
    for sample in pack["samples"]:
        store = aux[sample.get("aux", "src")]
        names = iter(sample["media"])
        for part in placeholders(sample["json"].get("messages", ())):
            if "frames" in part:
                part["video"] = [image(next(names), store, line) for _ in range(part.pop("frames"))]
            elif part["type"] == "image":
                part["image"] = image(next(names), store, line)
            else:
                part["video"] = store.get(next(names), line)
    keys = basic_sample_keys(line)
    return PackSample(**keys, pack_id=pack["pack_id"], samples=pack["samples"])


def placeholders(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The parts that stand for media, in the order of a sample's ``media``."""
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part for part in message["content"] if part["type"] != "text")


def image(name: str, store: FileStore, line: CrudeSample) -> Image.Image:
    """A member of a tar as packidx counts it."""
    opened = Image.open(io.BytesIO(store.get(name, line)))
    return ImageOps.exif_transpose(opened).convert("RGB")


class PackEncoder(DefaultTaskEncoder):
    """Cooks packs; `encode_sample` is yours."""

    decoder = None  # media come as bytes: Energon's own decoder leaves images as they are stored
    cookers = [Cooker(cook_pack, has_subflavors={"sample_type": "packidx"})]

    @stateless
    def encode_sample(self, sample: PackSample) -> PackSample:
        """A pack as your trainer takes it: tokenize each of `sample.samples`, then concatenate."""
        return sample


def train_dataset(
    metadataset: str, workers: WorkerConfig, encoder: PackEncoder | None = None, **options: Any
) -> SavableDataset:
    """The packs, one at a time, in the planned order within each worker's range of them.

    Energon gives every worker of every rank a range of neighbouring packs. Batches and shuffling
    buffers would undo the plan, so there are none.
    """
    return get_train_dataset(
        metadataset,
        worker_config=workers,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder or PackEncoder(),
        **options,
    )


def main(metadataset: str) -> None:
    # Energon logs errors and goes on; here every pack is wanted.
    workers = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception
    )
    packs = samples = tokens = 0
    for pack in get_loader(train_dataset(metadataset, workers, repeat=False)):
        packs += 1
        samples += len(pack.samples)
        tokens += sum(sample["token_len"] for sample in pack.samples)
    print(f"{packs} packs, {samples} samples, {tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
