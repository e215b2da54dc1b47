"""How `packidx doctor` imports packages: in processes that may crash, hang or write anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packidx.inspect.doctor import imports, machine
from packidx.inspect.doctor.imports import Imported, try_imports
from packidx.inspect.doctor.machine import Torch, examine_environment

SLOW = (
    "import os, pathlib, time\npathlib.Path({pid!r}).write_text(str(os.getpid()))\ntime.sleep(90)\n"
)
TORCH = Torch("2.9", "12.8", None, True, ("H100",), True)


def module(folder: Path, name: str, body: str) -> None:
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(body)


@pytest.mark.slow
def test_ctrl_c_ends_what_is_being_imported(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    module(tmp_path, "slow_one", SLOW.format(pid=str(pid)))
    importing = "from packidx.inspect.doctor.imports import try_imports\n"
    program = importing + "try_imports([['slow_one'], ['csv']])"
    command = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as parent:
        until = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        start = time.monotonic()
        parent.send_signal(signal.SIGINT)  # to this process alone, as `kill` sends it
        parent.wait(80)
    assert time.monotonic() - start < 20 and parent.returncode == -signal.SIGINT
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("'no JSON'", 0, "ended its process"),
        ("'7'", 0, "ended its process"),
        ("''", 4, "ended its process with status 4"),
    ],
)
def test_a_process_that_says_something_else_is_one_that_ended(
    line: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(f"import sys\nprint({line})\nsys.exit({status})\n")
    monkeypatch.setattr(imports, "_CHILD", child)
    answers = try_imports([["one", "two"]])
    assert [answers[name].error for name in ("one", "two")] == [f"importing it {said}"] * 2


def test_a_package_that_ends_its_process_without_an_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "leaves", "import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answers = try_imports([["leaves", "csv"]])
    assert answers["leaves"].error == "importing it ended its process"
    assert answers["csv"] == Imported(None)


@pytest.mark.parametrize(
    ("body", "state", "said"),
    [
        ("", "ok", ""),
        ("raise OSError('libtransformer_engine.so')", "problem", "libtransformer_engine.so"),
    ],
)
def test_attentions_of_other_packages_are_usable_if_they_can_be_imported(
    body: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "transformer_engine.__init__", "")
    module(tmp_path, "transformer_engine.pytorch", body)
    module(tmp_path, "nemo_automodel.__init__", body)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine, "_torch", lambda *_: TORCH)
    monkeypatch.setattr(machine, "extras", lambda *_: ())
    monkeypatch.setattr(machine, "required", lambda *_: ())
    ways = {one.name: one for one in examine_environment().attention}
    for name in ("thd", "indexed"):
        assert ways[name].state == state and said in ways[name].detail
    monkeypatch.setattr(machine, "_torch", lambda *_: replace(TORCH, available=False))
    if state == "ok":
        ways = {one.name: one for one in examine_environment().attention}
        assert (ways["thd"].state, ways["thd"].detail) == (
            "absent", "Transformer Engine is here, but no GPU",
        )  # fmt: skip
        assert ways["indexed"].state == "ok"
