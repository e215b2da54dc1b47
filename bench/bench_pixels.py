"""Pixels: packs of the example index and of large photos, in each form, against the bare processor.

All are ratios of CPU time, taken in turns in one run: of `collate(dataset[k])`, and of the bare
`processor.apply_chat_template(..., tokenize=True)` of its samples one by one, record and images
read from disk. Then what a pack takes from a worker to the process that trains.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench_packs import MODEL, processor_calls
from bench_tools import heading, line, ratio
from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.imports import allow_cuda_torchvision
from packidx.precompute import write_images
from packidx.torch import Pack, PackedDataset, collate

PACKS = 16
ROUNDS = 2
PHOTOS = 300
SENT = 40
"""How often a pack is sent."""
PROMISED = {
    "example": {"float32": 1.3, "uint8": 2.5},
    "photos": {"float32": 1.3, "uint8": 1.8, "images": 4.0},
}
"""``images``: bytes of what ``packidx precompute --images`` has written."""


def main(data: Path) -> None:
    """Print the ratios over packs of the corpus in `data`, and of photos made of its images."""
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    from transformers import AutoProcessor

    folder = data / "processors" / MODEL
    processor = AutoProcessor.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        corpus = data / "corpus"
        _plan(str(corpus), output, "example", folder, 8192)
        _compare("example", output / "example", folder, processor)
        _write_photos(data / "corpus" / "images" / "photos", output)
        photos = output / "photos.jsonl"
        _plan(str(photos), output, "photos", folder, 16384)
        write_images(str(photos), output / "resized", folder)
        _plan(str(output / "resized" / "photos.jsonl"), output, "images", folder, 16384)
        _compare("photos", output / "photos", folder, processor, output / "images")
        for each in ("example", "photos"):
            _send(each, output / each, folder)


def _plan(source: str, output: Path, name: str, folder: Path, capacity: int) -> None:
    lengths = output / f"{name}-lengths"
    root = source if Path(source).is_dir() else None
    estimate_lengths(source, lengths, processor=str(folder), media_root=root)
    plan_packs(lengths, output / name, capacity=capacity)


def _compare(
    name: str, path: Path, folder: Path, processor: Any, resized: Path | None = None
) -> None:
    index = open_index(path)
    promised = PROMISED[name]
    encoders = {form: ProcessorEncoder(folder, pixels=form) for form in ("float32", "uint8")}
    datasets = {form: PackedDataset(index, encode) for form, encode in encoders.items()}
    if resized is not None:
        datasets["images"] = PackedDataset(open_index(resized), encoders["uint8"])
    if resized is not None:
        for k in range(3):
            _assert_equal(datasets["uint8"][k], datasets["images"][k])
    packs = np.random.default_rng(0).permutation(index.num_packs)[:PACKS].tolist()

    def ours(form: str) -> None:
        for k in packs:
            collate(datasets[form][k], "flash")

    def theirs() -> None:
        for k in packs:
            processor_calls(index, processor, k)

    ways: dict[str, Callable[[], None]] = {form: partial(ours, form) for form in promised}
    ways["theirs"] = theirs
    taken: dict[str, list[float]] = {form: [] for form in ways}
    for _ in range(ROUNDS + 1):  # each way by itself, as in a worker; the first loads things
        for form, run in ways.items():
            begin = time.process_time()
            run()
            taken[form].append(time.process_time() - begin)
    seconds = {form: sum(each[1:]) / ROUNDS for form, each in taken.items()}
    heading(f"{PACKS} packs of {index.capacity:,} tokens, {name}: packs per core-second")
    for form, least in promised.items():
        ratio(f"processor's calls / {form}", seconds["theirs"], seconds[form], at_least=least)


def _assert_equal(pack: Pack, other: Pack) -> None:
    one, two = pack.joined(), other.joined()
    assert all(torch.equal(one[key], two[key]) for key in ("input_ids", "pixel_values", "labels"))


def _write_photos(folder: Path, output: Path) -> None:
    """`PHOTOS` of 2 to 6 megapixels, every second one a PNG, and their records."""
    rng = np.random.default_rng(0)
    found = [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.png"))]
    with open(output / "photos.jsonl", "w", encoding="utf-8") as file:
        for number in range(PHOTOS):
            image, scale = found[number % len(found)], 1e6 * rng.uniform(2, 6)
            ratio_of_sides = (scale / (image.width * image.height)) ** 0.5
            size = round(image.width * ratio_of_sides), round(image.height * ratio_of_sides)
            photo = image.resize(size, Image.Resampling.BICUBIC)
            path = output / (f"{number}.jpg" if number % 2 else f"{number}.png")
            photo.save(path, **({"quality": 90} if number % 2 else {"compress_level": 1}))
            asked = {"role": "user", "content": "<image>\nWhat does this show?"}
            turns = [asked, {"role": "assistant", "content": "A photograph."}]
            file.write(json.dumps({"messages": turns, "images": [path.name]}) + "\n")


class Again(Dataset[Pack]):
    """The same pack again and again, made once."""

    def __init__(self, dataset: PackedDataset, number: int) -> None:
        self._dataset, self._number = dataset, number
        self._pack: Pack | None = None

    def __len__(self) -> int:
        return SENT

    def __getitem__(self, _: int) -> Pack:
        if self._pack is None:
            self._dataset[0]  # what is loaded once
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
            before = _peak()
            self._pack = self._dataset[self._number]
            self._pack.events.append({"grown": _peak() - before})
        return self._pack


def _peak() -> int:
    """The most bytes of memory, shared ones too, that this process had."""
    stated = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(stated.partition("VmHWM:")[2].split()[0])


def _send(name: str, path: Path, folder: Path) -> None:
    """Print what sending the pack with the most images takes."""
    index = open_index(path)
    images = [sum(len(s.media) for s in index.pack(k).samples) for k in range(index.num_packs)]
    for form in ("float32", "uint8"):
        dataset = PackedDataset(index, ProcessorEncoder(folder, pixels=form))
        again = Again(dataset, int(np.argmax(images)))
        loader = iter(DataLoader(again, None, num_workers=1, multiprocessing_context="spawn"))
        pack = next(loader)
        nbytes = collate(pack, "flash")["pixel_values"].nbytes
        begin = time.perf_counter()
        for _ in range(SENT - 1):
            next(loader)
        taken = (time.perf_counter() - begin) / (SENT - 1)
        heading(f"{name}: a pack of {max(images)} images, {nbytes / 1e6:.1f} MB of {form}")
        line("from worker to main", f"{1e3 * taken:.1f} ms", "<= 8 ms", taken <= 8e-3)
        grown = pack.events[-1]["grown"] / nbytes
        # Of large photos the one that is being decoded is as large as the pack's bytes.
        is_promised = name == "example" or form == "float32"
        promised = "<= 1.5" if is_promised else ""
        line("worker's peak, in packs", f"{grown:.2f}", promised, grown <= 1.5 or not is_promised)
        one, two = (_least([pack] * number) for number in (1, 2))
        line("collate of one, of two", f"{1e3 * one:.1f} ms, {1e3 * two:.1f} ms")


def _least(packs: list[Pack]) -> float:
    times = []
    for _ in range(7):
        begin = time.process_time()
        collate(packs, "flash")
        times.append(time.process_time() - begin)
    return min(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
