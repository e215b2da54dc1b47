"""What reaches a terminal: help, escaped text of the data, progress, and Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import cloup
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import cli, main
from packidx_cli.show.console import escape_unseen, json_text

import packidx
from packidx import estimate_lengths

# A title, the clipboard, C1's CSI, DEL, text turned around, the start of the line.
HOSTILE = "k\x1b]0;title\x07\x1b]52;c;YQ\x07\x9b2J\x7f\u202eend\rover"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CLI = Path(__file__).parents[2] / "cli"


def shown(capfd: pytest.CaptureFixture[str], *args: str, status: int = 0) -> str:
    capfd.readouterr()
    assert main([*args]) == status
    out, err = capfd.readouterr()
    assert not CONTROLS.search(out + err), args
    return out + err


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Records whose keys, sources, files and folder are hostile."""
    monkeypatch.chdir(tmp_path)
    folder = Path(HOSTILE)
    folder.mkdir()
    with open(folder / "r.jsonl", "w") as file:
        for number in range(4):
            turns = [{"role": "user", "content": "one " * (number + 1)}]
            record = {"id": f"{HOSTILE}{number}", "messages": turns}
            file.write(json.dumps(record | ({"image": HOSTILE} if number == 3 else {})) + "\n")
    return f"{HOSTILE}={HOSTILE}/r.jsonl"


def test_no_command_lets_names_of_data_reach_the_terminal(
    data: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # in which no query stands
    lengths, index = f"{HOSTILE}/lengths", f"{HOSTILE}/index"
    assert "\\x1b]0;title\\x07" in shown(capfd, "estimate", data, "-o", lengths, "--workers", "1")
    assert "\\x9b2J\\x7f" in shown(capfd, "plan", lengths, "-o", index, "--capacity", "9")
    for command in (["stats"], ["log"], ["verify"], ["sql", "--format", "table"]):
        shown(capfd, *command, index)
        shown(capfd, *command, f"{HOSTILE}nowhere", status=1)
    for command in (["stats"], ["log"], ["verify"]):
        json.loads(shown(capfd, *command, index, "--json"))
    assert "\\u202eend\\rover" in shown(capfd, "stats", index)
    query = ["SELECT key, source FROM samples", "--format", "table"]
    assert "]0;title\\" in shown(capfd, "sql", index, *query)
    asked = ["sql", index, f"SELECT '{HOSTILE}' AS a", "--format", "json"]
    assert main(asked) == 0 and json.loads(capfd.readouterr().out) == [{"a": HOSTILE}]
    seen = on_a_terminal(asked).replace("\r\n", "\n")
    assert "]0;title" in seen and not CONTROLS.search(seen)
    shown(capfd, "sql", index, f"SELECT 1 AS \"{HOSTILE}\", error('{HOSTILE}')", status=1)
    assert "\\x1b]0;" in shown(capfd, "trace", index, "--step", "0", "--global-batch", "1")
    assert "\\x9b2J" in shown(capfd, "trace", index, "--key", f"{HOSTILE}0")
    shown(capfd, "trace", index, "--key", HOSTILE, status=1)
    json.loads(shown(capfd, "trace", index, "--sample-id", "0", "--json"))
    shown(capfd, "plan", lengths, "-o", f"{HOSTILE}/other", "--capacity", "5")
    assert "\\x1b]0;" in shown(capfd, "diff", index, f"{HOSTILE}/other")
    json.loads(shown(capfd, "diff", index, f"{HOSTILE}/other", "--json"))
    shown(capfd, "pack", data, "-o", f"{HOSTILE}/packs", "--capacity", "9")
    shown(capfd, "pack", f"{HOSTILE}/packs/recipe.yaml")
    Path("bad.yaml").write_text(
        f"sources: {{a: {json.dumps(HOSTILE + 'nowhere')}}}\nplan: {{capacity: 9}}\n"
    )
    shown(capfd, "pack", "bad.yaml", "-o", "out", status=1)
    shown(capfd, "export", "wds", index, "-o", f"{HOSTILE}/{HOSTILE}", status=0)
    shown(capfd, "export", "energon", index, "-o", f"{HOSTILE}/energon", status=1)
    shown(capfd, "precompute", data, "-o", "out", "--processor", HOSTILE, status=1)
    shown(capfd, "plan", lengths, "-o", index, "--capacity", HOSTILE, status=2)
    shown(capfd, "plan", lengths, "-o", index, "--capacity", "9", "--mix", f"{HOSTILE}=x", status=1)
    shown(capfd, HOSTILE, status=2)


def on_a_terminal(command: list[str], stream: str = "stdout") -> str:
    """Return what a command writes on one of its streams, which is a terminal."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, stream: theirs}
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    line = [sys.executable, "-m", "packidx_cli", *command]
    seen = b""
    with subprocess.Popen(line, env=environment, **streams) as run:  # type: ignore[call-overload]
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while block := os.read(ours, 1 << 16):
                seen += block
    os.close(ours)
    assert run.returncode == 0
    return ESCAPES.sub("", seen.decode())


def test_what_is_escaped_can_be_read_and_nothing_else_is() -> None:
    assert escape_unseen(HOSTILE) == (
        "k\\x1b]0;title\\x07\\x1b]52;c;YQ\\x07\\x9b2J\\x7f\\u202eend\\rover"
    )
    plain = "Ünïcode, 文字, \\ and 100 % of the “rest” 🙂"
    assert escape_unseen(plain) == plain
    assert escape_unseen("a\nb\tc") == "a\\nb\\tc" and escape_unseen("a\nb", lines=True) == "a\nb"
    assert escape_unseen("\udcff") == "\\udcff"
    assert json.loads(json_text({HOSTILE: plain})) == {HOSTILE: plain}
    assert json_text("\x7f\x9b") == '"\\u007f\\u009b"'


def test_text_is_printed_in_one_place() -> None:
    for path in CLI.glob("*.py"):
        if path.name != "console.py":
            assert not re.search(r"\bclick\.s?echo\(|(?<![\w.])print\(", path.read_text()), path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "word " * 9}]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 3000)
    return tmp_path / "a.jsonl"


def test_a_terminal_sees_how_much_is_done_and_the_time_left(records: Path, tmp_path: Path) -> None:
    seen = on_a_terminal(["estimate", str(records), "-o", str(tmp_path / "l")], "stderr")
    megabytes = records.stat().st_size / 1e6
    assert f" of {megabytes:,.1f} MB" in seen and "reading shards" in seen
    assert "3,000 of 3,000 records" in seen
    assert re.search(r"\d+:\d\d(:\d\d)? left|-:--:-- left", seen)


def test_nothing_is_shown_elsewhere_or_if_quiet(records: Path, tmp_path: Path) -> None:
    command = ["estimate", str(records), "-o", str(tmp_path / "l")]
    piped = subprocess.run(
        [sys.executable, "-m", "packidx_cli", *command], capture_output=True, text=True, check=True
    )
    for seen in (piped.stderr, on_a_terminal([*command, "--quiet"], "stderr")):
        assert not re.search("left|records|reading", seen)


def test_ctrl_c_is_blocked_while_processes_start() -> None:
    code = (
        "import signal; from multiprocessing.resource_tracker import ensure_running; "
        "from packidx.run.workers import _interrupts_held as held\n"
        "with held(): ensure_running(); print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "SIGINT" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("after", [1.5, 2.5, 4])
def test_ctrl_c(tmp_path: Path, after: float) -> None:
    turns = [{"role": "user", "content": "Hi " * 300}, {"role": "assistant", "content": "So."}]
    line = json.dumps({"messages": turns}) + "\n"
    for name, records in (("old", 100), ("many", 200_000)):
        (tmp_path / f"{name}.jsonl").write_text(line * records)
    lengths = tmp_path / "lengths"
    old = estimate_lengths(str(tmp_path / "old.jsonl"), lengths, workers=1)
    command = [sys.executable, "-m", "packidx_cli", "estimate", str(tmp_path / "many.jsonl")]
    process = subprocess.Popen(
        [*command, "-o", str(lengths), "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "packidx: stopped")
    assert json.loads((lengths / "manifest.json").read_text())["fingerprint"] == old.fingerprint
    for _ in range(100):  # its workers end, too
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("processes are left")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield " ".join((*path, name)), command


COMMANDS = dict(commands(cli))
GROUPED = {n: command for n, command in COMMANDS.items() if isinstance(command, cloup.Command)}
NEEDED = {  # what else a line needs to be one
    "plan": "lengths/ -o index/ --capacity 8192",
    "estimate": "data.jsonl -o lengths/",
    "precompute": "data.jsonl -o out/ --processor p/",
    "pack": "data.jsonl -o packs/",
    "trace": "index/",
    "sql": "index/",
    "verify": "index/",
}


@pytest.mark.parametrize("name", GROUPED)
def test_every_example_is_one_that_the_command_takes(name: str) -> None:
    command = GROUPED[name]
    for group in command.option_groups:
        example = str(group.help).removeprefix("for example: ")
        words = shlex.split(f"{NEEDED[name]} {example}")
        context = command.make_context(name, words, **cli.context_settings)
        given = {
            option
            for option in group.options
            if context.get_parameter_source(str(option.name))
            is click.core.ParameterSource.COMMANDLINE
        }
        assert given, f"{group.title}: {example} has none of its own options"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_shown_within_100_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    if name in GROUPED:
        for group in GROUPED[name].option_groups:
            assert f"{group.title}:\n" in shown
            assert str(group.help) in " ".join(shown.split())


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    environment = os.environ | {
        "_PACKIDX_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["packidx", *words]),
        "COMP_CWORD": str(len(words)),
    }
    # As the installed program does it: its name decides the variable's.
    code = (
        "import sys; sys.argv[0] = 'packidx'; from packidx_cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], ["plan"]),
        (["plan", "--on-long", "s"], ["split"]),
        (["plan", "--on-l"], ["--on-long"]),
        (["plan", "--strategy", "b"], ["bfd", "balanced"]),
        (["estimate", "--engine", ""], ["local", "ray"]),
        (["export", "w"], ["wds"]),
        (["pack", "--on-long", "tr"], ["truncate"]),
    ],
    ids=" ".join,
)
def test_the_shell_is_offered(words: list[str], offered: list[str]) -> None:
    assert completed(*words) == offered


@pytest.mark.parametrize("order", [["--version", "--verbose"], ["--verbose", "--version"]])
def test_the_environment(order: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(order) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert first == f"packidx {packidx.__version__}"
    assert shown["python"].startswith(platform.python_version())
    assert shown["pyarrow"] == version("pyarrow") and shown["flash-attn"] == "not installed"
    assert {"folder", "platform", "cores", "transformers"} <= shown.keys()
    assert not {"packidx", "pytest", "ruff"} & shown.keys()


WIDTH = 100


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan whose numbers are wide: half a million tokens, sources with long names, drops."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    number = 3000
    rows = {
        "length": rng.integers(5, 9000, number),
        "source": [f"a_source_with_a_long_name_{n % 4}" for n in range(number)],
        "image_tokens": rng.integers(0, 4, number),
        "num_images": rng.integers(0, 2, number),
        "method": ["heuristic"] * number,
    }
    pq.write_table(pa.table(rows), "l.parquet")
    assert main(["plan", "l.parquet", "-o", "i", "--capacity", "8192", "--max-images", "9"]) == 0
    return "i"


@pytest.mark.parametrize(
    "command",
    [
        "stats i",
        "stats i --verbose",
        "stats l.parquet",
        "log i",
        "verify i",
        "trace i --step 0",
        "trace i --sample-id 3",
        "diff i j",
        "plan l.parquet -o j --capacity 4096 --on-long truncate --holdout 0.1 --align 8",
    ],
)
def test_no_line_is_wider(
    command: str,
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if " j" in command and not command.startswith("plan"):
        assert main(["plan", "l.parquet", "-o", "j", "--capacity", "4096", "--seed", "3"]) == 0
    capsys.readouterr()
    main(command.split())
    wide = [
        line
        for line in capsys.readouterr().out.splitlines()
        if len(line) > WIDTH and not line.startswith(("try ", "index "))
    ]
    assert not wide
