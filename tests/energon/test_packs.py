"""`packidx export energon` in Megatron-Energon: every pack, every sample in order, every medium.

Energon logs errors and goes on without the sample, so everything is counted.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wds_folder
from conftest import PER_SHARD, REPO, SHARDS, config, packidx, prepare, rows
from megatron.energon import get_loader, get_savable_loader, load_dataset
from megatron.energon.flavors.jsonl.jsonl_prepare import JsonlPreparator
from PIL import Image, ImageOps

from energon_packs import PackSample, placeholders, train_dataset

Drawn = tuple[tuple[int, int], bytes]


@pytest.fixture(scope="session")
def export(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "packs"
    packidx("export", "energon", index, "-o", folder)
    return folder


def read(export: Path, workers: int = 0) -> list[PackSample]:
    """One epoch of an export."""
    dataset = train_dataset(str(export / "metadataset.yaml"), config(workers), repeat=False)
    return list(get_loader(dataset))


def drawn(image: Image.Image) -> Drawn:
    return image.size, image.tobytes()


def expected_media(first: int = 0, count: int = SHARDS * PER_SHARD) -> dict[str, list[Drawn]]:
    """The upright pictures that each sample uses, in order, of what was put into the tars."""
    found = {}
    for key, members, used in wds_folder.samples(count, first):
        data = dict(members)
        opened = [Image.open(io.BytesIO(data[name])) for name in used]
        found[key] = [drawn(ImageOps.exif_transpose(one).convert("RGB")) for one in opened]
    return found


def media_of(sample: dict[str, Any]) -> Iterator[Drawn]:
    for part in placeholders(sample["json"]["messages"]):
        video = part.get("video", [])
        yield from map(drawn, video if part["type"] == "video" else [part["image"]])


def in_order(packs: list[PackSample], index: Path) -> None:
    """Every sample of an index, in its packs, at its place, with all its media."""
    media = expected_media()
    wanted: dict[int, list[tuple[str, int]]] = {}
    for row in rows(index):
        wanted.setdefault(row["pack_id"], []).append((row["key"], row["length"]))
    assert len(packs) == len(wanted)
    num_media = 0
    for pack in packs:
        found = [(sample["key"], sample["token_len"]) for sample in pack.samples]
        assert found == wanted.pop(pack.pack_id)
        for sample in pack.samples:
            assert (seen := list(media_of(sample))) == media[sample["key"]]
            num_media += len(seen)
    assert not wanted
    assert num_media == sum(map(len, media.values())) > 100


@pytest.mark.parametrize("workers", [0, 2])
def test_every_pack_and_sample_and_medium(export: Path, index: Path, workers: int) -> None:
    packs = read(export, workers)
    in_order(packs, index)
    ids = [pack.pack_id for pack in packs]
    if workers:  # each worker has a range of neighbours, and they take turns
        assert ids[::2] + ids[1::2] == sorted(ids)
    else:
        assert ids == sorted(ids)


def test_every_rank_has_its_share(export: Path, index: Path) -> None:
    seen: list[int] = []
    for rank in range(3):
        workers = config(0, rank, 3)
        dataset = train_dataset(str(export / "metadataset.yaml"), workers, repeat=False)
        seen += [pack.pack_id for pack in get_loader(dataset)]
    assert seen == sorted({row["pack_id"] for row in rows(index)})


# A loader of workers that is let go in the middle waits 10 seconds for them: once is enough.
@pytest.mark.parametrize(("workers", "before"), [(0, 1), (0, 5), (0, 20), (2, 5)])
def test_saved_and_restored_in_the_middle(
    export: Path, index: Path, tmp_path: Path, workers: int, before: int
) -> None:
    """`before` packs, then a state on disk; 20 is in the second epoch."""

    def loader() -> Any:
        return get_savable_loader(
            train_dataset(str(export / "metadataset.yaml"), config(workers)),
            checkpoint_every_sec=0,
        )

    def contents(packs: list[PackSample]) -> list[Any]:
        return [(p.pack_id, [(s["key"], *media_of(s)) for s in p.samples]) for p in packs]

    one, num_packs = loader(), len({row["pack_id"] for row in rows(index)})
    draw = iter(one)
    first = [next(draw).pack_id for _ in range(before)]
    torch.save(one.save_state_rank(), tmp_path / "state")
    rest = [next(draw) for _ in range(num_packs)]
    other = loader()
    other.restore_state_rank(torch.load(tmp_path / "state", weights_only=False))
    draw = iter(other)
    assert contents([next(draw) for _ in range(num_packs)]) == contents(rest)
    epoch = first + [pack.pack_id for pack in rest]
    assert sorted(epoch[:num_packs]) == list(range(num_packs))


def test_the_index_is_the_one_that_energon_makes(export: Path, tmp_path: Path) -> None:
    shutil.copy(export / "packs.jsonl", tmp_path)
    lines = JsonlPreparator.prepare_dataset(tmp_path / "packs.jsonl")
    assert lines == (export / "packs.jsonl").read_bytes().count(b"\n")
    own, energons = export / "packs.jsonl.idx", tmp_path / "packs.jsonl.idx"
    assert own.read_bytes() == energons.read_bytes()


def test_the_example_as_a_script(export: Path, index: Path) -> None:
    script, yaml = REPO / "examples" / "energon_packs.py", export / "metadataset.yaml"
    done = subprocess.run([sys.executable, script, yaml], capture_output=True, text=True)
    lengths = [row["length"] for row in rows(index)]
    num_packs = len({row["pack_id"] for row in rows(index)})
    said = f"{num_packs} packs, {len(lengths)} samples, {sum(lengths)} tokens"
    assert done.stdout.splitlines()[-1:] == [said], done.stderr


def test_cut_and_repeated_samples(tars: Path, planned: Callable[..., Path], tmp_path: Path) -> None:
    """Pieces and copies come as the index has them."""
    options = ("--capacity", "700", "--on-long", "split", "--mix", "tars=2")
    index = planned(f"tars={tars}", options=options)
    packidx("export", "energon", index, "-o", tmp_path / "packs")
    columns = ("pack_id", "key", "length", "piece", "token_start", "copy")
    wanted = [tuple(row[name] for name in columns) for row in rows(index, ", ".join(columns))]
    assert {row[3] for row in wanted} == {0, 1} and {row[5] for row in wanted} == {0, 1}
    found = []
    for pack in read(tmp_path / "packs"):
        for one in pack.samples:
            optional = (one.get(name, 0) for name in columns[3:])
            found.append((pack.pack_id, one["key"], one["token_len"], *optional))
    assert found == wanted


def test_several_folders_that_move_along(planned: Callable[..., Path], tmp_path: Path) -> None:
    """Two prepared folders, named relatively: all is well at another place."""
    home, count = tmp_path / "here", 10
    names = ("web", "books")
    for number, name in enumerate(names):
        prepare(wds_folder.write_folder(home / name, 1, count, number * count))
    index = planned(home / "web", home / "books")
    packidx("export", "energon", index, "-o", home / "packs", "--energon-root", f"{home}=..")
    home.rename(tmp_path / "there")
    packs = read(tmp_path / "there" / "packs")
    media = expected_media(0, 2 * count)
    seen = {sample["key"]: list(media_of(sample)) for pack in packs for sample in pack.samples}
    assert seen == media
    auxes = {sample["aux"] for pack in packs for sample in pack.samples}
    assert auxes == {"src", "src1"}


def test_a_yaml_that_energon_knows(export: Path, tars: Path) -> None:
    """The only YAML of the folder, with the folder of the tars as `src`."""
    assert [path.name for path in export.glob("*.y*ml")] == ["metadataset.yaml"]
    (reference,) = load_dataset(export / "metadataset.yaml").splits.values()
    assert reference.subflavors == {"sample_type": "packidx"}
    assert [str(one.path) for one in reference.aux.values()] == [str(tars)]
    line = json.loads((export / "packs.jsonl").open().readline())
    assert list(line) == ["pack_id", "samples"]
    assert {tuple(one) for one in line["samples"]} == {("key", "json", "media", "token_len")}
