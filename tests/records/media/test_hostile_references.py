"""A corpus whose records name everything hostile: nothing of it is asked for or opened, and its
good records are counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from bad_input import chat
from hostile import COUNTED, IMAGES, MISSING, REMOTE, VIDEOS, database, make_corpus

from packidx import estimate_lengths

REPO = Path(__file__).parents[3]

# What a process opens and whom it calls, a line each.
WATCHING = """
import json, os, sys

log = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
calls = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
         "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(args[0]))
        os.write(log, (json.dumps(["open", path]) + "\\n").encode())
    elif event in calls:
        os.write(log, (json.dumps([event, repr(args)]) + "\\n").encode())


sys.addaudithook(watch)
"""


def watched(folder: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """`packidx` in a process of its own, and what it and its children opened and called."""
    (folder / "watching").mkdir()
    (folder / "watching" / "sitecustomize.py").write_text(WATCHING)
    (folder / "home").mkdir()
    (folder / "tmp").mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "watching"), str(REPO)]),
        "WATCHED": str(folder / "watched"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PACKIDX_CACHE": str(folder / "cache"),
        "AWS_ACCESS_KEY_ID": "a-key-that-must-sign-nothing",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "packidx_cli", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder / "home")
    return done, [json.loads(line) for line in (folder / "watched").read_text().splitlines()]


def is_of_the_program(path: str) -> bool:
    """Whether a file is Python's, a library's, the system's settings, or nobody's."""
    scheme = sysconfig.get_paths()
    own = [scheme["stdlib"], scheme["platstdlib"], scheme["purelib"], sys.prefix, sys.base_prefix]
    own += [str(REPO / name) for name in ("packidx", "cli", "tests", "packidx.egg-info")]
    own += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    own += ["/usr/lib", "/usr/share", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    own += ["/etc/mime.types", "/etc/pki", "/etc/ssl", "/sys", "/dev/null", "/dev/urandom"]
    own += ["/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys"]
    if re.fullmatch("/proc/[0-9]+/maps", path):  # what of a library is loaded where
        return True
    return any(path == one or path.startswith(os.path.realpath(one) + "/") for one in own)


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two processes"])
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, processors: Path
) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("hostile")
    shard, root, reasons = make_corpus(place)
    options = ["--processor", str(processors / "qwen2.5-vl"), "--media-root", str(root)]
    command = ["estimate", str(shard), "-o", str(place / "lengths"), "--workers", request.param]
    done, seen = watched(place, *command, *options)
    return {
        "done": done,
        "seen": seen,
        "reasons": reasons,
        "rows": pq.read_table(sorted((place / "lengths").glob("part-*"))).to_pylist(),
        "own": [str(place / name) for name in ("root", "all.jsonl", "lengths", "cache", "watching")]
        + [str(place / ".lengths."), str(place / "home" / "notes"), str(processors)]
        + [str(place / "tmp")],
        "folders": [str(place)],
    }


@pytest.mark.slow
def test_the_run_ends_well(counted: dict[str, Any]) -> None:
    done = counted["done"]
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(counted["rows"]) == len(counted["reasons"]) == 2 * (len(IMAGES) + len(VIDEOS))


def test_every_hostile_record_is_rejected_by_its_reason_and_no_other(
    counted: dict[str, Any],
) -> None:
    names = [name for name in (*IMAGES, *VIDEOS) for _ in range(2)]
    wrong = [
        (name, reason, row["reason"], row["detail"])
        for name, reason, row in zip(names, counted["reasons"], counted["rows"], strict=True)
        if row["reason"] != reason
    ]
    assert wrong == []
    good = [row for row in counted["rows"] if row["reason"] is COUNTED]
    assert {(row["status"], row["num_images"]) for row in good} == {("ok", 1)}
    assert all(row["image_tokens"] > 0 for row in good)


def test_nobody_is_called(counted: dict[str, Any]) -> None:
    assert [event for event in counted["seen"] if event[0] != "open"] == []


def test_no_file_outside_the_root_is_opened(counted: dict[str, Any]) -> None:
    opened = {path for event, path in counted["seen"] if event == "open"}
    assert any(path.endswith("root/good.png") for path in opened)  # what is watched is seen
    strange = [
        path
        for path in sorted(opened - set(counted["folders"]))
        if not path.startswith(tuple(counted["own"])) and not is_of_the_program(path)
    ]
    assert strange == []


def test_what_is_no_regular_file_is_not_opened(counted: dict[str, Any]) -> None:
    names = {os.path.basename(path) for event, path in counted["seen"] if event == "open"}
    assert {"good.png", "bomb.png"} <= names
    assert not names & {"pipe.png", "pipe.lmdb", "pipe.mp4", "socket.png", "zero", "environ"}


def test_without_a_media_root_no_scheme_ends_the_scan(tmp_path: Path) -> None:
    """Absolute paths are allowed then, so only references that are no paths are told from them."""
    cases = {name: case for name, case in IMAGES.items() if case[1] in (REMOTE, MISSING)}
    lines, reasons = [], []
    for make, reason in cases.values():
        lines.append(json.dumps(chat("<image> what?", images=[make(tmp_path, tmp_path)])))
        reasons.append(reason)
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    database(tmp_path / "good.lmdb")
    estimate_lengths(str(tmp_path / "x.jsonl"), tmp_path / "l", workers=1)
    rows = pq.read_table(tmp_path / "l" / "part-00000.parquet").to_pylist()
    found = dict(zip(cases, (row["reason"] for row in rows), strict=True))
    assert found == dict(zip(cases, reasons, strict=True))
