"""A flipped bit in a file of an index or of lengths never gives other rows to who reads it."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_packs import make_index, record

from packidx.errors import PackidxError
from packidx.index import Index, open_index
from packidx.plan import plan_packs

FLIPS = 1000


@pytest.fixture
def index(tmp_path: Path) -> Index:
    chats = [record(n, [5 + n % 7, (4, 4), 3] if n % 3 else [60]) for n in range(300)]
    return make_index(tmp_path, {"öne": chats, "two": chats[:50]}, capacity=48, on_long="drop")


def flip(folder: Path, other: Path, rng: random.Random) -> str:
    """Make a copy of `folder` with a bit flipped in one of its files; returns its name."""
    shutil.copytree(folder, other, copy_function=os.link)
    files = [path for path in other.rglob("*") if path.is_file() and path.name != ".lock"]
    chosen = rng.choice(sorted(files))
    data = bytearray(chosen.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    chosen.unlink()
    chosen.write_bytes(bytes(data))
    return chosen.name


def looked_up(index: Index) -> Any:
    return [index.pack(number) for number in range(index.num_packs)]


def whole(index: Index) -> Any:
    return [table.to_pylist() for table in (index.packs(), index.samples(), index.dropped())]


def test_a_flip_in_an_index_gives_the_same_rows_or_one_named_error(
    index: Index, tmp_path: Path
) -> None:
    """In each kind of file: HEAD, manifest, packs, samples, dropped."""
    expected = {"looked up": looked_up(index), "whole": whole(index)}
    found: Counter[str] = Counter()
    for number in range(FLIPS):
        place = tmp_path / f"{number}"
        name = flip(Path(index.path), place, random.Random(number))
        for how, reading in (("looked up", looked_up), ("whole", whole)):
            try:
                rows = reading(open_index(place))
            except PackidxError as error:
                assert "\n" not in str(error) and name in str(error), number
                found[f"{name.partition('-')[0]} {how}"] += 1
            else:
                assert rows == expected[how], number
    assert found["packs whole"] and found["samples looked up"] and found["HEAD whole"]


def test_a_flip_in_lengths_is_never_planned(index: Index, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths"
    for number in range(40):
        folder = tmp_path / f"lengths-{number}"
        flip(lengths, folder, random.Random(number))
        with pytest.raises(PackidxError) as caught:
            plan_packs(folder, tmp_path / "other", capacity=48)
        assert "\n" not in str(caught.value)
    assert plan_packs(lengths, tmp_path / "other", capacity=48).snapshot_id == index.id
