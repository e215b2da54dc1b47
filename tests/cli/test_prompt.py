"""`packidx sql` without a query: a prompt on a terminal, queries from stdin elsewhere."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packidx_cli.commands.sql import Asker
from packidx_cli.main import main
from packidx_cli.prompt import completer, is_complete, prompt
from packidx_cli.show.rows import as_short_table
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from packidx import plan_packs
from packidx.inspect.sql import Asked, asked

ENDLESS = "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c"
PLENTY = 60.0  # seconds: an answer that never comes fails the test


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompt")
    with open(folder / "talks.jsonl", "w") as file:
        for number in range(40):
            turns = [{"role": "user", "content": "word " * (1 + number % 9)}]
            record = {"id": f"k{number}", "messages": turns}
            file.write(json.dumps(record | ({"image": "gone.png"} if number == 9 else {})) + "\n")
    lengths = folder / "lengths"
    assert main(["estimate", str(folder / "talks.jsonl"), "-o", str(lengths), "--workers=1"]) == 0
    options = {"margin": 0.0, "global_batch": 2, "micro_steps": 2}
    plan_packs(lengths, folder / "index", capacity=40, **options)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def index(made: Path) -> Asked:
    return asked(str(made / "index"), {})


@pytest.mark.parametrize("text", ["", " ", "quit", "EXIT", "SELECT 1;", "SELECT 1; SELECT\n2 ; "])
def test_enter_ends_what_is_complete(text: str) -> None:
    assert is_complete(text)
    assert not is_complete(f"{text} SELECT 1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("COPY packs TO 'a.csv';", "is no SELECT but COPY, which is locked"),
        ("SELECT * FROM read_text('/etc/passwd');", "Cannot access file"),
        ("SELECT lenght FROM packs;", 'Candidate bindings: "length"'),
    ],
)
def test_queries_from_stdin_are_locked_and_end_at_the_first_error(
    text: str,
    says: str,
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = f"SELECT ';' AS one; -- ;\n{text}\nSELECT 3 AS three;"
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["sql", str(made / "index"), "--format", "csv"]) == 1
    out, err = capfd.readouterr()
    assert out == "one\n;\n" and says in err and err.count("\n") == 1


def test_stdin_is_read_where_it_is_no_terminal(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "-- first\nSELECT count(*) > 0 AS n\nFROM packs; SELECT 2 AS n"
    for query in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main(["sql", str(made / "index"), *query, "--format", "csv"]) == 0
        assert capfd.readouterr().out == "n\nTrue\nn\n2\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["sql", str(made / "index"), "-o", str(tmp_path / "a.csv")]) == 1
    assert "the query holds 2 statements: give one at a time" in capfd.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n-- nothing\n"))
    assert main(["sql", str(made / "index"), "--format", "csv"]) == 0
    assert "steps,micro_step,INTEGER\n" in capfd.readouterr().out


def test_views_columns_and_words_are_completed(index: Asked) -> None:
    def offered(text: str) -> list[str]:
        found = completer(index.names).get_completions(Document(text), None)  # type: ignore
        return [word.text for word in found]

    assert offered("SELECT * FROM st") == ["steps", "start", "status", "step"]
    assert offered("SELECT * FROM sources WHERE num_dr") == ["num_dropped"]
    assert offered("SEL") == ["SELECT"] and offered("SELECT steps.mi") == ["micro_step"]
    assert offered("SELECT nosuch") == []


# The prompt, first through prompt_toolkit's own pipe.


def typed(asked_index: Asked, text: str) -> None:
    asker = Asker(asked_index, unlocked=False, timeout=PLENTY, memory=1 << 30, quiet=True)
    with create_pipe_input() as keys:
        keys.send_text(text)
        prompt(
            lambda text: asker.show(text, "csv", several=True),
            *(asked_index.names, asked_index.title),
            input=keys,
            output=DummyOutput(),
        )


def test_lines_are_typed_until_they_are_complete(
    index: Asked, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ["SELECT 1 + 1", "AS two", ";", "SELECT nosuch FROM packs;"]
    lines.append("SELECT 3 AS three; SELECT 4 AS four;")
    typed(index, "".join(f"{line}\r" for line in lines) + "\x04")
    out, err = capfd.readouterr()
    assert out.splitlines()[1:] == ["two", "2", "three", "3", "four", "4"]
    assert 'Referenced column "nosuch" not found' in err
    typed(index, "SELECT 5 AS five\x03SELECT 6 AS six;\rquit\rSELECT 7 AS seven;\r")
    assert capfd.readouterr().out.splitlines()[1:] == ["six", "6"]


def test_history_is_kept_for_its_owner_alone(
    index: Asked, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    typed(index, "SELECT 1 AS one;\r\x04")
    kept = cache / "sql_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.chmod(0o644)
    capfd.readouterr()
    typed(index, "\x1b[A\r\x04")  # the key up
    assert capfd.readouterr().out.splitlines()[1:] == ["one", "1"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.unlink()
    kept.mkdir()
    typed(index, "SELECT 2 AS two;\r\x04")
    out, err = capfd.readouterr()
    assert out.splitlines()[1:] == ["two", "2"] and "queries are not remembered" in err


# And on a real terminal.


class Terminal:
    """A `packidx` that runs on a terminal of 100 columns."""

    def __init__(self, *arguments: str) -> None:
        self.master, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm"}
        command = [sys.executable, "-m", "packidx_cli", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    def until(self, *texts: str) -> str:
        """What is shown until each of the texts is, in this order."""
        seen = ""
        end = time.monotonic() + PLENTY
        while not re.search(".*".join(map(re.escape, texts)), seen, re.DOTALL):
            assert time.monotonic() < end, f"{texts} not in {seen}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    new = os.read(self.master, 1 << 16).decode(errors="replace")
                except OSError:  # it has ended
                    assert not texts, f"{texts} not in {seen}"
                    break
                if "\x1b[6n" in new:  # where is the cursor?
                    os.write(self.master, b"\x1b[1;1R")
                seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", new)
        return seen

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ended(self) -> int:
        self.send("\x04")
        status = self.process.wait(PLENTY)
        os.close(self.master)
        return status


@pytest.fixture
def terminal(made: Path, cache: Path) -> Iterator[Terminal]:
    terminal = Terminal("sql", str(made / "index"))
    yield terminal
    if terminal.process.poll() is None:
        os.killpg(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()


def test_a_query_on_a_terminal_is_stopped_and_the_prompt_stays(terminal: Terminal) -> None:
    assert "packs of 40 tokens" in terminal.until("packidx>")
    terminal.send(f"{ENDLESS};\r")
    terminal.until("running the query")
    terminal.send("\x03")
    terminal.until("stopped", "packidx>")
    terminal.send("SELECT 'still ' || 'here' AS said;\r")
    terminal.until("still here", "packidx>")
    terminal.send("SELECT 1 + 1\r")
    terminal.until("...>")
    terminal.send("AS two, * FROM packs;\r")
    shown = terminal.until("columns are not shown", "--format csv or json.", "packidx>")
    assert "vision_cost" in shown and max(map(len, shown.splitlines())) <= 100
    assert terminal.ended() == 0


def test_a_wide_table_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    names = [f"column_{number}" for number in range(20)]
    rows = [tuple(range(20))] * 7
    shown = as_short_table(names, rows, most=5).splitlines()
    assert max(map(len, shown)) <= 100 and sum(line.strip().startswith("0") for line in shown) == 5
    told = " ".join(" ".join(shown[7:]).split())
    assert "these are the first 5 rows; 11 columns are not shown: column_9, column_10" in told
    long = ["a", "b" * 90, "名" * 90, "d\nd"]
    shown = as_short_table(["a", "b", "c", "d"], [(*long,)], most=5).splitlines()
    assert "long values are cut" in shown[-1] + shown[-2]
    assert "b" * 39 + "…" in shown[2] and "名" * 40 not in "".join(shown)
    assert as_short_table(["a", "b"], [("b" * 150, 1)], most=5).count("b") == 151  # goes on below
    assert "…" not in as_short_table(["a"], [(1,)] * 5, most=5)
