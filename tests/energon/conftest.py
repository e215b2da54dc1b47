"""What the tests in Energon's environment share: packidx's own commands, and a prepared data set.

packidx is not installed here. ``PACKIDX`` names its command; `make test-energon` sets it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wds_folder
from megatron.energon import WorkerConfig, reraise_exception

REPO = Path(__file__).parents[2]
PACKIDX = os.environ.get("PACKIDX", str(REPO / ".venv" / "bin" / "packidx"))

SHARDS, PER_SHARD = 3, 25


def packidx(*arguments: str | Path) -> str:
    """Run a command of packidx, which finds Energon on the PATH; its stdout."""
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command, environment = [PACKIDX, *map(str, arguments)], os.environ | {"PATH": here}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(folder: Path) -> Path:
    """`energon prepare`, as people run it."""
    energon = str(Path(sys.executable).parent / "energon")
    command = [energon, "prepare", str(folder), "--non-interactive", "--no-progress"]
    command += ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset", "--num-workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and (folder / ".nv-meta" / "index.sqlite").exists(), done.stdout
    return folder


def rows(index: Path, columns: str = "pack_id, key, length, piece, token_start") -> list[Any]:
    """The samples of an index in the order of packs and positions, as packidx's SQL gives them."""
    query = f"SELECT {columns} FROM samples ORDER BY pack_id, position"
    return list(json.loads(packidx("sql", index, query, "--format", "json")))


def config(workers: int, rank: int = 0, world_size: int = 1) -> WorkerConfig:
    """Workers of one rank; an error is raised, where Energon would log it and go on."""
    return WorkerConfig(
        rank=rank,
        world_size=world_size,
        num_workers=workers,
        global_error_handler=reraise_exception,
    )


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Plans a data set: sources and options of `plan` → the index."""

    def plan(*sources: str | Path, options: tuple[str, ...] = ()) -> Path:
        folder = tmp_path_factory.mktemp("planned")
        packidx("estimate", *sources, "-o", folder / "lengths", "--quiet")
        capacity = () if "--capacity" in options else ("--capacity", "4096")
        packidx("plan", folder / "lengths", "-o", folder / "index", *capacity, *options)
        return folder / "index"

    return plan


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """75 samples in three tars of a prepared folder."""
    folder = tmp_path_factory.mktemp("wds") / "tars"
    return prepare(wds_folder.write_folder(folder, SHARDS, PER_SHARD))


@pytest.fixture(scope="session")
def index(tars: Path, planned: Callable[..., Path]) -> Path:
    """A plan of them."""
    return planned(tars)
