"""The core profile: a reader of pyarrow alone, and vectors for any reader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]
VECTORS = sorted(Path(__file__).with_name("vectors").glob("*.json"))
sys.path.append(str(REPO / "examples"))

from core_reader import CoreIndex  # noqa: E402


def packs_of(index: CoreIndex) -> list[list[list[int]]]:
    names = ("sample_id", "copy", "piece", "token_start", "length")
    numbers = range(index.first_packs[-1])
    return [[[row[name] for name in names] for row in index.samples(k)] for k in numbers]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda path: path.stem)
def test_the_core_reader_agrees_with_the_vectors(vector: Path) -> None:
    expected: dict[str, Any] = json.loads(vector.read_text())
    index = CoreIndex(str(vector.with_suffix("")))
    assert index.id == expected["snapshot_id"]
    assert packs_of(index) == expected["packs"]
    for order in expected["orders"]:
        for rank, packs in enumerate(order["ranks"]):
            own = index.rank(
                expected["global_batch"],
                rank,
                order["world_size"],
                epoch=order["epoch"],
                seed=expected["seed"],
            )
            assert own == packs


def test_the_vectors_are_what_index_and_sampler_say() -> None:
    pytest.importorskip("torch")  # of the sampler
    sys.path.append(str(REPO / "tools"))
    from vectors import RULES, expected

    assert {vector.stem for vector in VECTORS} == set(RULES)
    for vector in VECTORS:
        assert json.loads(vector.read_text()) == expected(vector.with_suffix(""))
    windows, *_ = (json.loads(v.read_text()) for v in VECTORS if v.stem == "windows")
    assert (
        len({tuple(order["ranks"][0]) for order in windows["orders"]}) == 8
    )  # no order is another


def test_it_needs_pyarrow_alone() -> None:
    program = "import sys, core_reader; print([n for n in sys.modules if n.startswith('packidx')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO / "examples"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("path", ["snapshots", "windows"])
def test_damage_is_told(tmp_path: Path, path: str) -> None:
    shutil.copytree(VECTORS[0].with_suffix(""), tmp_path / "i")
    file = next(p for p in (tmp_path / "i" / path).rglob("*") if p.is_file())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError):
        packs_of(CoreIndex(str(tmp_path / "i")))
