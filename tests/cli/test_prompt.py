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
from hypothesis import given
from hypothesis import strategies as st
from packidx_cli.asking import Asker, Limits
from packidx_cli.main import main
from packidx_cli.prompt.loop import Words, is_complete, prompt
from packidx_cli.prompt.session import COMMANDS, EXAMPLES, Session
from packidx_cli.prompt.statements import statements
from packidx_cli.query import as_short_table
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from packidx import plan_packs
from packidx.inspect.query import check, connect
from packidx.inspect.sql import Asked, asked

ENDLESS = "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c"
LIMITS = Limits(unlocked=False, timeout=60.0, memory=1 << 30)
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


# What a query ends in, and what only looks like it.

WHOLE = ["SELECT 1;", "SELECT ';' AS \";\" -- ;\n;", "SELECT $$;$$, $a$ ; $$ $a$;",
         "SELECT /* ; /* ; */ ; */ 1;", r"SELECT E'\';';", "SELECT 'it''s;';", ".tables",
         "SELECT date'2026-01-01';", ".mode csv"]  # fmt: skip


@given(st.lists(st.sampled_from(WHOLE)), st.lists(st.sampled_from(["", "\n", " ; ", "-- a;\n"])))
def test_queries_are_told_apart(listed: list[str], between: list[str]) -> None:
    gaps = [*between, *[""] * len(listed)]
    text = "".join(f"\n{gap}{query}\n" for gap, query in zip(gaps, listed, strict=False))
    assert statements(text) == ([*listed], "")


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT ';", 'SELECT ";', "SELECT $$ ;", "SELECT $a$ ; $$", "SELECT /* ; /* */ ;",
     "SELECT 1 -- ;", r"SELECT E'a\' ;"],
)  # fmt: skip
def test_what_has_no_end_goes_on(text: str) -> None:
    assert statements(text) == ([], text)
    assert statements(f"SELECT 2;\n{text}") == (["SELECT 2;"], text)
    assert statements(text, is_all=True) == ([text], "")
    assert not is_complete(text) and not is_complete(f"SELECT 2;\n{text}")


@pytest.mark.parametrize("text", ["", " ", "-- nothing", ".tables", "quit", "HELP", "SELECT 1;"])
def test_enter_ends_what_is_complete(text: str) -> None:
    assert is_complete(text)


# Commands and examples.


@pytest.mark.parametrize("table", ["index", "lengths"])
def test_every_example_is_answered(
    table: str, made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = asked(str(made / table), {})
    with Asker(LIMITS, quiet=True) as asker:
        session = Session(asker, index, "json")
        session.run(".examples")
        listed = capfd.readouterr().out
        session.run(".examples 2")
        out = capfd.readouterr().out
    query = session.examples[1].query
    assert out.startswith(query + "\n") and json.loads(out.removeprefix(query))
    for example in session.examples:
        assert example.question in listed and example.query in listed
        with index.views(example.query) as views:
            connection = connect(views, False, None)
            rows = connection.sql(check(connection, example.query)).fetchall()
        assert rows or re.search("pieces|left out|leave out", example.question), example
    assert len(session.examples) == (len(EXAMPLES) if table == "index" else 5)
    assert len(EXAMPLES) >= 12


def test_commands_say_what_there_is(
    made: Path, index: Asked, capfd: pytest.CaptureFixture[str]
) -> None:
    def says(*texts: str) -> str:
        capfd.readouterr()
        assert all(session.run(text) for text in texts)
        return capfd.readouterr().out

    with Asker(LIMITS, quiet=True) as asker:
        session = Session(asker, index, "table")
        assert index.index is not None
        listed = says(".tables")
        for view, table in (
            ("packs", "packs"),
            ("samples", "samples"),
            ("dropped", "dropped"),
            ("lengths", "lengths"),
            ("rejected", "rejected"),
            ("steps", "steps"),
        ):
            rows = index.index.to_arrow(table).num_rows
            assert re.search(rf"^ *{view} .* {rows}$", listed, re.M), view
        assert re.findall(r"^ (\w+) ", says(".schema sources"), re.M)[1:3] == [
            "name",
            "num_samples",
        ]
        assert says(".schema").count("steps ") == index.index.to_arrow("steps").num_columns
        assert all(command in says(".help") for command in COMMANDS)
        assert json.loads(says(".mode json", "SELECT 7 AS n;")) == [{"n": 7}]
        assert says(".mode csv", "SELECT 7 AS n;") == "n\n7\n"
        assert not session.run(".quit")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (".tabels", "there is no command .tabels: see .help"),
        (".schema pack", "there is no view 'pack': there are packs, samples"),
        (".schema x; COPY packs TO 'a'", "there is no view"),
        (".mode parquet", ".mode parquet: choose from table, csv, json"),
        (".examples 99", "give a number from 1 to"),
        (".quit now", ".quit takes nothing behind it, not 'now'"),
        ("COPY packs TO 'a.csv';", "is no SELECT but COPY, which is locked"),
        ("SELECT * FROM read_text('/etc/passwd');", "calls read_text(), which is locked"),
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
    given = f".mode csv\nSELECT 1 AS one;\n{text}\nSELECT 3 AS three;"
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["sql", str(made / "index")]) == 1
    out, err = capfd.readouterr()
    assert out == "one\n1\n" and says in err and err.count("\n") == 1


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
    assert "there are 2 queries: give one at a time" in capfd.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n-- nothing\n"))
    assert main(["sql", str(made / "index"), "--format", "csv"]) == 0
    assert "steps,micro_step,INTEGER\n" in capfd.readouterr().out


# Completion.


def offered(words: Words, text: str) -> list[str]:
    return [word.text for word in words.get_completions(Document(text), None)]  # type: ignore


def test_views_columns_words_and_commands_are_completed(index: Asked) -> None:
    words = Words(index.names)
    assert offered(words, "SELECT * FROM st") == ["steps"]
    assert offered(words, "SELECT * FROM sources WHERE num_dr") == ["num_dropped"]
    assert offered(words, "FROM dropped SELECT de") == ["detail", "desc", "describe"]
    assert offered(words, "FROM samples SELECT st") == ["start", "steps"]
    assert offered(words, "SELECT steps.mi") == ["steps.micro_step"]
    assert offered(words, "SEL") == ["SELECT"] and offered(words, "sel") == ["select"]
    assert offered(words, "SELECT quan") == ["quantile_cont("]
    assert offered(words, ".sch") == [".schema"] and offered(words, ".mode c") == ["csv"]
    assert offered(words, ".schema rej") == ["rejected"]
    assert offered(words, "SELECT ") == [] and offered(words, "SELECT nosuch") == []
    assert offered(Words(("lengths",)), "SELECT pa") == ["pair", "partition by"]


def test_every_completed_column_is_taken_as_it_is(
    index: Asked, capfd: pytest.CaptureFixture[str]
) -> None:
    with Asker(LIMITS, quiet=True) as asker:
        session = Session(asker, index, "json")
        for view, columns in Words(index.names).columns.items():
            if view in ("lengths", "rejected"):  # their files may lack some
                columns = [name for name in columns if name not in ("label_spans", "pair")]
            session.run(f"SELECT {', '.join(columns)} FROM {view} LIMIT 1;")
            rows = json.loads(capfd.readouterr().out)
            assert not rows or len(rows[0]) == len(columns)


# The prompt, first through prompt_toolkit's own pipe.


def typed(asked_index: Asked, text: str) -> None:
    with create_pipe_input() as keys, Asker(LIMITS, quiet=True) as asker:
        keys.send_text(text)
        prompt(asker, asked_index, "csv", input=keys, output=DummyOutput())


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
    shown = terminal.until("columns are not shown", ".mode csv or json.", "packidx>")
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
