"""``on_mismatch="fit"``: every sample as long as it is, as far as its pack goes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from manifests import edit, fingerprinted, refresh
from small_packs import length_of, record, write_lengths
from torch_packs import SyntheticEncode

from packidx import open_index, plan_packs
from packidx.errors import OptionError
from packidx.index import Index
from packidx.torch import PackedDataset, collate

PARTS = [
    [[5 + 7 * n] for n in range(9)],
    [[3, (4, 4), 2 + n] for n in range(6)],
    [[70], [95], [1], [2, (8, 8), 90, (4, 4), 6]],
]
RECORDS = [record(n, parts) for n, parts in enumerate(itertools.chain(*PARTS))]


def guessed(folder: Path, records: list[dict[str, Any]], factor: float, **options: Any) -> Index:
    """A plan of lengths that are so many times the true ones, 1 at least, as guesses are stated."""
    folder.mkdir(exist_ok=True)
    lengths = write_lengths(folder, {"all": records})
    part = lengths / "part-00000.parquet"
    table = pq.read_table(part)
    false = [max(1, int(n * factor)) for n in table["length"].to_pylist()]
    unknown = [None] * len(false)
    changes = {"length": false, "method": ["heuristic"] * len(false)}
    changes |= {"media": unknown, "label_tokens": unknown, "audio_tokens": [0] * len(false)}
    for name, values in changes.items():
        field = table.schema.field(name)
        table = table.set_column(
            table.column_names.index(name), field, [pa.array(values, field.type)]
        )
    pq.write_table(table, part)
    methods = {"methods": {"heuristic": len(false)}}
    edit(lengths, lambda manifest: manifest.update(fingerprinted(manifest | methods)))
    refresh(lengths)
    plan_packs(lengths, folder / "index", **options)
    return open_index(folder / "index")


class Own(SyntheticEncode):
    """Says for itself how long a sample is."""

    def whole(self, sample_id: int, records: list[dict[str, Any]]) -> torch.Tensor:
        ids: torch.Tensor = self(records[sample_id])["input_ids"]
        return ids


def check_packs(
    dataset: PackedDataset, records: list[dict[str, Any]], capacity: int
) -> tuple[set[int], dict[int, dict[str, Any]]]:
    """Samples that were read, with ids equal to the encoder's, and those that are named as left
    out; no pack is above its capacity, and each takes what there is room for, in order."""
    options, encode = dataset.index.snapshot.options, Own()
    align = options.align
    room = (capacity - options.reserve) // options.pad_pack_to * options.pad_pack_to
    held: set[int] = set()
    told: dict[int, dict[str, Any]] = {}
    for each in dataset:
        pack = each.joined()
        bounds, lengths = pack["cu_seqlens"].tolist(), pack["lengths"].tolist()
        assert bounds[-1] == len(pack["input_ids"]) == len(pack["labels"]) <= capacity
        assert bounds[-1] % options.pad_pack_to == 0
        assert pack["max_seqlen"] == max(b - a for a, b in itertools.pairwise(bounds))
        ids = pack["sample_ids"].tolist()
        planned = [sample.sample_id for sample in dataset.index.pack(pack["pack_id"]).samples]
        assert ids == [number for number in planned if number in ids]  # in order of position
        for number, start, length in zip(ids, bounds, lengths, strict=False):
            whole = encode.whole(number, records)
            assert torch.equal(pack["input_ids"][start : start + length], whole)
            assert pack["position_ids"][0, start : start + length].tolist() == [*range(length)]
            held.add(number)
        slots = dict(zip(ids, (b - a for a, b in itertools.pairwise(bounds)), strict=False))
        for event in each.events:
            assert (event["kind"], event["done"]) == ("no_room", "left_out")
            found = length_of(records[event["sample_id"]]["parts"])
            assert event["found"] == found
            # No room beside those before it, of which none was left out later.
            before = planned.index(event["sample_id"])
            ahead = [number for number in ids if planned.index(number) < before]
            assert sum(slots[number] for number in ahead) + -(-found // align) * align > room
            told[event["sample_id"]] = event
    return held, told


RULES: list[dict[str, Any]] = [
    {},
    {"align": 8},
    {"pad_pack_to": 32},
    {"margin": 0.25},
    {"reserve": 48, "align": 4, "pad_pack_to": 16},
]


@pytest.mark.parametrize("factor", [0.1, 0.4, 0.9, 1, 1.7])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_every_sample_is_in_its_pack_or_named(
    tmp_path: Path, factor: float, rules: dict[str, Any]
) -> None:
    index = guessed(tmp_path, RECORDS, factor, capacity=128, **rules)
    dataset = PackedDataset(index, Own(), on_mismatch="fit")
    held, told = check_packs(dataset, RECORDS, 128)
    dropped = set(index.dropped()["sample_id"].to_pylist())
    assert held | told.keys() | dropped == {*range(len(RECORDS))}
    assert not held & told.keys() and not (held | told.keys()) & dropped
    lost = dataset.events.left_out
    assert (lost.samples, lost.tokens) == (len(told), sum(e["found"] for e in told.values()))
    if factor >= 1:  # every pack has room for all that it was planned to have
        assert not told
    if factor == 0.1:
        assert told


def test_a_pack_of_which_nothing_is_left_is_pad_tokens(tmp_path: Path) -> None:
    records = [record(0, [300]), record(1, [20])]
    rules: dict[str, Any] = {"margin": 0, "max_samples": 1, "pad_pack_to": 16}
    index = guessed(tmp_path, records, 0.2, capacity=64, **rules)
    dataset = PackedDataset(index, Own(), on_mismatch="fit")
    packs = list(dataset)
    (empty,) = [pack for pack in packs if not len(pack.samples)]
    joined = empty.joined()
    assert empty.sample_ids.dtype == torch.int64
    assert len(joined["input_ids"]) == 16 and joined["labels"].eq(-100).all()
    assert empty.events[0]["found"] == 300
    for attention in ("sdpa", "flash", "thd", "indexed"):
        assert collate([empty], attention)["input_ids"].shape == (1, 16)
        assert collate(packs, attention)["labels"].ne(-100).sum() == 19


@pytest.mark.parametrize("on_long", ["split", "truncate"])
def test_plans_that_cut_guesses_are_refused(tmp_path: Path, on_long: str) -> None:
    records = [record(0, [150]), record(1, [9])]
    index = guessed(tmp_path, records, 0.9, capacity=60, on_long=on_long)
    with pytest.raises(OptionError, match="plan with --on-long drop"):
        PackedDataset(index, Own(), on_mismatch="fit")
    whole = guessed(tmp_path / "whole", records[1:], 0.9, capacity=60, on_long=on_long)
    assert len(PackedDataset(whole, Own(), on_mismatch="fit")[0].samples) == 1
