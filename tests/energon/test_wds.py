"""`packidx export wds` in Megatron-Energon: every pack, sample and medium, in order and decoded.

Energon logs errors and goes on without the sample, so everything is counted.
"""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wds_folder
from conftest import PER_SHARD, SHARDS, config, packidx, rows
from megatron.energon import (
    Cooker,
    CrudeSample,
    Sample,
    TaskEncoder,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from PIL import Image

MAX_SIZE = "40KB"


@edataclass
class PackSample(Sample):
    """A pack as the export has it, its media decoded."""

    json: dict[str, Any]
    media: list[Any]


def flat(names: Any) -> Iterator[str]:
    """Names of media, in order; a video's frames are a list."""
    for name in names:
        yield from [name] if isinstance(name, str) else flat(name)


@stateless
def cook(sample: CrudeSample) -> PackSample:
    media = [sample[name] for name in flat(sample["json"]["media_files"])]
    return PackSample(**basic_sample_keys(sample), json=sample["json"], media=media)


class PackEncoder(TaskEncoder[PackSample, PackSample, list[PackSample], list[PackSample]]):
    """The packs as they come, none batched with another."""

    cookers = [Cooker(cook, has_subflavors={"sample_type": "packed_multi_mix_qa"})]

    @stateless
    def batch(self, samples: list[PackSample]) -> list[PackSample]:
        return samples


def dataset(export: Path, workers: int, repeat: bool, rank: int = 0, world_size: int = 1) -> Any:
    return get_train_dataset(
        export,
        split_part="train",
        worker_config=config(workers, rank, world_size),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        parallel_shard_iters=1,
        task_encoder=PackEncoder(),
        repeat=repeat,
    )


@pytest.fixture(scope="module")
def export(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "tars"
    done = packidx("export", "wds", index, "-o", folder, "--max-size", MAX_SIZE, "--json")
    program, *arguments = shlex.split(json.loads(done)["prepare"])
    subprocess.run([Path(sys.executable).parent / program, *arguments], check=True)
    assert len(list(folder.glob("*.tar"))) > 2
    return folder


def read(export: Path, workers: int = 0, rank: int = 0, world_size: int = 1) -> list[PackSample]:
    """One epoch of an export."""
    packs = get_loader(dataset(export, workers, False, rank, world_size))
    return [pack for batch in packs for pack in batch]


def decoded(data: bytes) -> torch.Tensor:
    """What Energon makes of a picture by default."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(image.height, image.width, 3).permute(2, 0, 1) / 255


def complete(packs: list[PackSample], index: Path) -> None:
    """Every sample of an index, in its packs, at its place, with all its media."""
    used = {
        key: [dict(members)[name] for name in names]
        for key, members, names in wds_folder.samples(SHARDS * PER_SHARD)
    }
    wanted: dict[int, list[tuple[str, int]]] = {}
    for row in rows(index):
        wanted.setdefault(row["pack_id"], []).append((row["key"], row["length"]))
    assert len(packs) == len(wanted)
    num_media = 0
    for pack in packs:
        meta = pack.json["_meta"]
        samples = wanted.pop(meta["pack_id"])
        assert list(zip(meta["keys"], meta["token_lens"], strict=True)) == samples
        assert meta["total_token_len"] == sum(length for _, length in samples)
        expected = [decoded(data) for key, _ in samples for data in used[key]]
        assert len(pack.media) == len(expected)
        for found, picture in zip(pack.media, expected, strict=True):
            assert isinstance(found, torch.Tensor) and torch.allclose(found, picture)
        num_media += len(expected)
    assert not wanted
    assert num_media == sum(map(len, used.values())) > 100


@pytest.mark.parametrize("workers", [0, 2])
def test_every_pack_and_sample_and_medium(export: Path, index: Path, workers: int) -> None:
    packs = read(export, workers)
    complete(packs, index)
    ids = [pack.json["_meta"]["pack_id"] for pack in packs]
    if workers:  # each worker has a range of neighbours, and they take turns
        assert ids[::2] + ids[1::2] == sorted(ids)
    else:
        assert ids == sorted(ids)
