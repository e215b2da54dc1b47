"""Many small files: memory that does not grow with them, and limits of the system in words."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import re
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from clips import write_clip
from packidx_cli.main import main
from PIL import Image

from packidx import estimate_lengths, plan_packs

RUN = """
import sys
from packidx_cli.main import main
status = main(sys.argv[1:])
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
sys.exit(status)
"""


def write(folder: Path, count: int, **more: object) -> str:
    folder.mkdir(exist_ok=True)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    line = json.dumps({"messages": turns, **more}) + "\n"
    for number in range(count):
        (folder / f"{number:05d}.jsonl").write_text(line)
    return str(folder)


def peak(source: str, output: Path) -> int:
    """Memory of a run, in kB."""
    command = [sys.executable, "-c", RUN, "estimate", source, "-o", str(output)]
    done = subprocess.run([*command, "--workers", "1", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_a_file_takes_little_memory(tmp_path: Path) -> None:
    few, many = write(tmp_path / "few", 300), write(tmp_path / "many", 1800)
    grown = peak(many, tmp_path / "l2") - peak(few, tmp_path / "l1")
    assert grown / 1500 < 25  # kB; Arrow's tables of all files once took 60


def test_counting_again_takes_calls_in_proportion_to_files(tmp_path: Path) -> None:
    """Even if all of them are equal."""
    calls = []
    for number in (400, 800):
        data, out = write(tmp_path / f"data{number}", number), tmp_path / f"out{number}"
        estimate_lengths(data, out, workers=1)
        changed = Path(data, "00000.jsonl")
        changed.write_text(changed.read_text() * 2)
        with cProfile.Profile() as profile:
            reused = estimate_lengths(data, out, workers=1).reused
        assert reused is not None and (reused.num_samples, reused.num_counted) == (number - 1, 2)
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[1] < 2.5 * calls[0]


EATER = """
import os
held = []

def eat(record, *_):
    if record["n"] == 3:
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
    return record
"""
EATS = {
    "image": ({"images": ["x.png"]}, "<image>"),
    "video": ({"videos": ["x.mp4"]}, "<video>"),
    "frames": ({"videos": [["x.png", "x.png"]]}, "<video>"),
}


@pytest.mark.parametrize("kind", EATS)
def test_too_many_open_files_are_no_fault_of_a_record(
    tmp_path: Path, processors: Path, kind: str
) -> None:
    media, mark = EATS[kind]
    Image.new("RGB", (40, 30)).save(tmp_path / "x.png")
    write_clip(tmp_path / "x.mp4", frames=8)
    (tmp_path / "eater.py").write_text(EATER)
    turns = [{"role": "user", "content": mark + "?"}, {"role": "assistant", "content": "yes"}]
    lines = [json.dumps({"messages": turns, **media, "n": number}) for number in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    command = ["estimate", "a.jsonl", "-o", "l", "--workers", "1", "--transform", "eater:eat"]
    command += ["--processor", str(processors / "qwen2.5-vl")]
    code = "import resource, sys; from packidx_cli.main import main; sys.path.insert(0, '.');"
    code += "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-c", code, *command, "--quiet"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "`ulimit -n" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "l").exists()


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_too_many_open_files_are_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spare: int
) -> None:
    """Whatever is the first file for which there is no room."""
    estimate_lengths(write(tmp_path / "data", 3), tmp_path / "l", workers=1)
    lengths, index = str(tmp_path / "l"), str(tmp_path / "i")
    plan_packs(lengths, index, capacity=600)
    commands = [["stats", index], ["verify", index], ["sql", index, "FROM packs"]]
    commands += [["plan", lengths, "-o", index, "--capacity", "700", "--quiet"]]
    commands += [["export", "wds", index, "-o", str(tmp_path / "out"), "--quiet"]]
    for command in commands:
        main([*command[:3], "--help"])  # loads what it needs
        main(command[:2]) if command[0] in ("stats", "verify") else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for command in commands:
        capsys.readouterr()
        with open(os.devnull) as first:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first.fileno() + spare, hard))
        try:
            status = main(command)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        told, error = capsys.readouterr()
        assert "damaged" not in told + error and "missing" not in told + error
        assert status == 0 or "`ulimit -n" in told + error, (command, told, error)


FULL = """
import os, resource, signal, sys
from packidx_cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["estimate", "plan", "export wds", "export energon"])
def test_a_disk_that_is_full_is_told_with_the_file(tmp_path: Path, command: str) -> None:
    """As by a limit of the size of files, where writing fails in the same way."""
    data = write(tmp_path / "data", 40)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for shard in sorted(Path(data).iterdir()):
            tar.add(shard, f"{shard.stem}.json")
    source = str(tmp_path / "x.tar") if command == "export energon" else data
    estimate_lengths(source, tmp_path / "l", workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=2000)
    given = {"estimate": source, "plan": str(tmp_path / "l")}.get(command, str(tmp_path / "i"))
    more = ["--capacity", "1500"] if command == "plan" else ["--workers", "1"]
    words = [*command.split(), given, "-o", str(tmp_path / "out"), *more, "--quiet"]
    run = [sys.executable, "-c", FULL, "1000", *words]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1, done
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1
    named = re.findall(rf"{tmp_path}/\.?out[^ ():,;]*", done.stderr)
    assert any(os.path.basename(name) not in ("out", ".out.new") for name in named), done.stderr
