"""Packs in other trainers' files, read back by what is known of the files alone.

What the trainers' own classes make of them: tests/trainers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from object_store import Store
from packidx_cli.main import cli
from small_packs import make_index, record
from torch.utils.data import DataLoader
from torch_packs import SyntheticEncode

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import MismatchError, OptionError
from packidx.export.exchange import export_tokens, export_xtuner
from packidx.index import Index
from packidx.torch import PackedDataset, PackSampler

CAPACITY = 64


class HalfLabelled(SyntheticEncode):
    """Every third token is trained on."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        sample = super().__call__(record)
        labels = sample["input_ids"].clone()
        labels[torch.arange(len(labels)) % 3 != 0] = -100
        return {**sample, "labels": labels}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Two sources of text, one of it in pieces, two planned epochs."""
    sources = {
        "short": [record(n, [11 + n % 19]) for n in range(60)],
        "long": [record(100 + n, [90 + n]) for n in range(9)],
    }
    folder = tmp_path_factory.mktemp("exchange")
    options = {"on_long": "split", "epochs": 2, "global_batch": 4, "micro_steps": 2}
    return make_index(folder, sources, capacity=CAPACITY, **options)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Index:
    records = [record(n, [9, (4, 4), 5]) for n in range(12)]
    return make_index(tmp_path_factory.mktemp("pictures"), {"seen": records}, capacity=CAPACITY)


def preset_of(folder: Path) -> list[list[tuple[str, int, int]]]:
    """Of each pack the records' ids, first tokens and ends, by the arrays and the files alone."""
    paths = json.loads((folder / "paths.json").read_text())
    lines = [Path(path).read_text().splitlines() for path in paths]
    samples, bounds = np.load(folder / "samples.npy"), np.load(folder / "boundaries.npy")
    assert samples.dtype == bounds.dtype == np.int64
    assert set(samples[:, 2:4].flat) == {-1}
    packs = [samples[begin:end].tolist() for begin, end in pairwise(bounds.tolist())]
    return [
        [(json.loads(lines[path][line])["id"], *tokens) for path, line, _, _, *tokens in rows]
        for rows in packs
    ]


def test_a_preset_is_the_plan(index: Index, tmp_path: Path) -> None:
    summary = export_xtuner(index, tmp_path / "out", 4, epochs=3, seed=7)
    planned = [
        [(each.key, each.token_start, each.token_start + each.length) for each in pack.samples]
        for pack in map(index.pack, range(index.num_packs))
    ]
    assert preset_of(tmp_path / "out") == planned
    assert any(first for pack in planned for _, first, _ in pack)
    assert summary.num_tokens == sum(end - first for pack in planned for _, first, end in pack)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_its_order_is_that_of_training(index: Index, tmp_path: Path, world_size: int) -> None:
    export_xtuner(index, tmp_path / "out", 4, epochs=3, seed=7)
    order = np.load(tmp_path / "out" / "order.npy")
    for rank in range(world_size):
        sampler = PackSampler(index, rank=rank, world_size=world_size, global_batch=4, seed=7)
        wanted: list[int] = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            wanted += sampler
        assert order[rank::world_size].tolist() == wanted


def test_a_preset_of_windows_and_moved_shards(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    sources = {name: [record(n, [8]) for n in range(30)] for name in "xy"}
    index = make_index(tmp_path / "plan", sources, capacity=32, window=1)
    assert len(index.snapshot.windows) == 2
    (tmp_path / "plan").rename(tmp_path / "moved")
    roots = {str(tmp_path / "plan"): str(tmp_path / "moved")}
    export_xtuner(tmp_path / "moved" / "index", tmp_path / "out", 2, roots=roots)
    moved = open_index(tmp_path / "moved" / "index", roots)
    keys = [[each.key for each in moved.pack(k).samples] for k in range(moved.num_packs)]
    assert [[key for key, *_ in pack] for pack in preset_of(tmp_path / "out")] == keys


def test_what_xtuner_would_not_train(pictures: Index, tmp_path: Path) -> None:
    lost = export_xtuner(pictures, tmp_path / "out", 1).lost
    assert f"{pictures.num_packs} packs would lose their images" in " ".join(lost)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "some words of a document"}))
    estimate_lengths([str(tmp_path / "a.jsonl")], tmp_path / "guessed", workers=1)
    plan_packs(tmp_path / "guessed", tmp_path / "plan", capacity=CAPACITY)
    with pytest.raises(OptionError, match="guessed or bare lengths"):
        export_xtuner(tmp_path / "plan", tmp_path / "none", 1)
    with pytest.raises(OptionError, match="global_batch 99 exceeds"):
        export_xtuner(pictures, tmp_path / "none", 99)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_that_xtuner_numbers_otherwise(tmp_path: Path, end: str) -> None:
    """A blank line has no row; nor is the end of the last line one."""
    shard, lines = tmp_path / "a.jsonl", [json.dumps(record(n, [8])) for n in range(6)]
    for name, text, says in (("plain", lines, None), ("blank", ["", *lines], "has blank lines")):
        shard.write_text("\n".join(text) + end)
        (tmp_path / name).mkdir()
        estimate_lengths([str(shard)], tmp_path / name / "lengths", encode=SyntheticEncode())
        plan_packs(tmp_path / name / "lengths", tmp_path / name / "index", capacity=CAPACITY)
        if says is None:
            export_xtuner(tmp_path / name / "index", tmp_path / name / "out", 1)
            continue
        with pytest.raises(OptionError, match=says):
            export_xtuner(tmp_path / name / "index", tmp_path / name / "out", 1)


def test_lines_of_a_store_are_counted_too(store: Store, tmp_path: Path) -> None:
    lines = [json.dumps(record(n, [8])) for n in range(6)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n\n".join(lines))
    url = store.put_tree(tmp_path / "data", "blank")
    estimate_lengths([f"{url}/a.jsonl"], tmp_path / "lengths", encode=SyntheticEncode(), workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=CAPACITY)
    with pytest.raises(OptionError, match="has blank lines"):
        export_xtuner(tmp_path / "index", tmp_path / "out", 1)


def test_shifted_packs_and_no_epochs_are_refused(tmp_path: Path) -> None:
    records = {"a": [record(n, [8]) for n in range(6)]}
    index = make_index(tmp_path, records, capacity=CAPACITY, shift=True)
    with pytest.raises(OptionError, match="XTuner shifts"):
        export_xtuner(index, tmp_path / "out", 1)
    with pytest.raises(OptionError, match="seed is -1"):
        export_xtuner(index, tmp_path / "out", 1, seed=-1)
    with pytest.raises(OptionError, match="epochs is 0"):
        export_xtuner(index, tmp_path / "out", 1, epochs=0)


def indexed(prefix: Path) -> tuple[list[np.ndarray], list[int]]:
    """Sequences and documents of Megatron's indexed data set, by its header."""
    data, tokens = prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()
    assert data[:9] == b"MMIDIDX\0\0"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
    assert (version, code) == (1, 4)  # 4 is int32
    lengths = np.frombuffer(data, "<i4", sequences, 34)
    starts = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
    bounds = np.frombuffer(data, "<i8", documents, 34 + 12 * sequences)
    assert len(data) == 34 + 12 * sequences + 8 * documents
    rows = [
        np.frombuffer(tokens, "<i4", length, start)
        for length, start in zip(lengths.tolist(), starts.tolist(), strict=True)
    ]
    assert sum(map(len, rows)) * 4 == len(tokens)
    return rows, bounds.tolist()


def test_indexed_tokens_are_the_packs(index: Index, tmp_path: Path) -> None:
    packs = PackedDataset(index, HalfLabelled())
    summary = export_tokens(index, packs, tmp_path / "out", "megatron", pad_token_id=95)
    rows, bounds = indexed(tmp_path / "out" / "packs")
    assert bounds == list(range(index.num_packs + 1))
    for row, pack in zip(rows, packs, strict=True):
        ids = pack.joined()["input_ids"].numpy()
        assert len(row) == CAPACITY
        np.testing.assert_array_equal(
            row, np.pad(ids, (0, CAPACITY - len(ids)), constant_values=95)
        )
    assert [text.partition(":")[0] for text in summary.lost[1:]] == [
        "the loss is over every token",
        "samples of a pack see each other",
    ]


def test_parquet_trains_on_the_labels(index: Index, tmp_path: Path) -> None:
    packs = PackedDataset(index, HalfLabelled())
    loader = DataLoader(packs, batch_size=None, num_workers=2)
    export_tokens(index, loader, tmp_path / "out", "bridge")
    rows = pq.read_table(tmp_path / "out" / "packs.idx.parquet").to_pylist()
    assert len(rows) == index.num_packs > 64  # of more than a row group
    for row, pack in zip(rows, packs, strict=True):
        joined = pack.joined()
        assert row["input_ids"] == joined["input_ids"].tolist()
        assert row["seq_start_id"] == joined["cu_seqlens"][:-1].tolist()
        trained = np.flatnonzero(row["loss_mask"]) + 1
        assert trained.tolist() == torch.nonzero(joined["labels"] != -100)[:, 0].tolist()


def shifted_label(packs: PackedDataset) -> list[Any]:
    read = [packs[k] for k in range(len(packs))]
    read[3].samples[0]["labels"][2] = 1
    return read


def less_a_sample(packs: PackedDataset) -> list[Any]:
    read = [packs[k] for k in range(len(packs))]
    read[2].segments.pop()
    return read


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda packs: [packs[0], packs[1]], "in order"),
        (lambda packs: [packs[k] for k in reversed(range(len(packs)))], "in order"),
        (lambda packs: [*map(packs.__getitem__, range(len(packs) - 1)), packs[0]], "in order"),
        (lambda packs: [*map(packs.__getitem__, range(len(packs))), packs[0]], "in order"),
        (less_a_sample, "pack 2 has [0-9]+ tokens, planned as"),
        (shifted_label, "pack 3 has labels that are not its tokens"),
    ],
)
def test_other_packs_than_the_plans(
    index: Index, tmp_path: Path, given: Callable[[PackedDataset], list[Any]], says: str
) -> None:
    packs = given(PackedDataset(index, SyntheticEncode()))
    with pytest.raises(MismatchError, match=says):
        export_tokens(index, packs, tmp_path / "out", "bridge")
    assert not (tmp_path / "out").exists()


def test_media_are_refused_as_tokens(pictures: Index, tmp_path: Path) -> None:
    packs = PackedDataset(pictures, SyntheticEncode())
    with pytest.raises(OptionError, match="packs of .* have media"):
        export_tokens(pictures, packs, tmp_path / "out", "megatron")


def test_the_commands(index: Index, pictures: Index, tmp_path: Path) -> None:
    out = str(tmp_path / "out")

    def run(*args: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli, ["export", *args])
        return result.exit_code, result.stdout, result.stderr

    code, said, warned = run("xtuner", pictures.path, "-o", out, "--global-batch", "2")
    assert code == 0 and "Exported for xtuner" in said and "lose their images" in warned
    first = {path.name: path.read_bytes() for path in Path(out).iterdir()}
    run("xtuner", pictures.path, "-o", out, "--global-batch", "2")
    assert {path.name: path.read_bytes() for path in Path(out).iterdir()} == first
    encode = ["--encode", "torch_packs:SyntheticEncode()"]
    code, said, warned = run("megatron", index.path, "-o", out, "--to", "bridge", *encode, "--json")
    assert code == 0 and json.loads(said)["num_packs"] == index.num_packs
    assert sorted(path.name for path in Path(out).iterdir()) == [
        ".packidx.json",
        "packs.idx.parquet",
    ]
    assert run("megatron", index.path, "-o", out)[0] == 1
