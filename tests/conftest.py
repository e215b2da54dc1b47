"""Fixtures every test may use: the example corpus and processors, made once per test run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from object_store import Store, object_store
from processors import FEW_RANKS, qwen_folders

REPO = Path(__file__).parent.parent

# A slow machine is not a defect: nothing is asserted about time. Every run draws other examples.
settings.register_profile("packidx", deadline=None, max_examples=40)
settings.load_profile("packidx")


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache of the run's own: what other code found out about processors proves nothing."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    os.environ["PACKIDX_CACHE"] = str(shared / "cache")


def _once(tmp_path_factory: pytest.TempPathFactory, script: str, name: str) -> Path:
    """Run a generator once per session, also when several workers want its output."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    output = shared / name
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, str(REPO / "tools" / script), str(output)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example corpus: five JSONL files in three dialects, images on disk."""
    return _once(tmp_path_factory, "make_corpus.py", "corpus")


@pytest.fixture(scope="session")
def whole_processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the processor folders qwen2.5-vl and qwen3-vl, as `make plan` has them."""
    return _once(tmp_path_factory, "make_processors.py", "processors")


@pytest.fixture(scope="session")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a small vocabulary, where Qwen's own is not what is tested: they load in a
    tenth of the time."""
    folders = qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)
    return folders["qwen2.5-vl"].parent


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An object store on this machine, of one module's own."""
    with object_store(tmp_path_factory.mktemp("cache")) as found:
        yield found
