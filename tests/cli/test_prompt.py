"""`packidx sql` without a query: a prompt on a terminal, queries from stdin elsewhere."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest
from packidx_cli.commands.sql import Asker
from packidx_cli.main import main
from packidx_cli.prompt import prompt
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from packidx import plan_packs
from packidx.inspect.sql import Asked, asked

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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("COPY packs TO 'a.csv';", "is no SELECT but COPY, which is locked"),
        ("SELECT * FROM read_text('/etc/passwd');", "reads read_text, which is locked"),
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
