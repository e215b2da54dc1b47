"""`packidx sql` without a query: a prompt on a terminal, queries from stdin elsewhere."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from packidx_cli.main import main

from packidx import plan_packs


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


def test_queries_from_stdin_are_locked_and_end_at_the_first_error(
    made: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = "SELECT ';' AS one; -- ;\nCOPY packs TO 'a.csv';\nSELECT 3 AS three;"
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["sql", str(made / "index"), "--format", "csv"]) == 1
    out, err = capfd.readouterr()
    assert out == "one\n;\n" and err.count("\n") == 1
    assert "is a COPY statement, and only SELECT is allowed" in err


def test_stdin_is_read_where_it_is_no_terminal(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "-- first\nSELECT count(*) > 0 AS n\nFROM packs; SELECT 2 AS n"
    for query in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main(["sql", str(made / "index"), *query, "--format", "csv"]) == 0
        assert capfd.readouterr().out == "n\ntrue\nn\n2\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["sql", str(made / "index"), "-o", str(tmp_path / "a.csv")]) == 1
    assert "the query holds 2 statements: give one at a time" in capfd.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n-- nothing\n"))
    assert main(["sql", str(made / "index"), "--format", "csv"]) == 0
    assert "steps,micro_step,INTEGER\n" in capfd.readouterr().out


def typed(index: str, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on a terminal on which `lines` are typed, ^C and ^D among them."""
    left = iter(lines)

    def read(shown: str = "") -> str:
        line = next(left)
        if line in ("^C", "^D"):
            raise KeyboardInterrupt if line == "^C" else EOFError
        return line

    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", read)
    assert main(["sql", index, "--format", "csv"]) == 0


def test_lines_are_typed_until_they_are_complete(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["SELECT 1 + 1", "AS two", ";", "SELECT nosuch FROM packs;", ""]
    lines += ["SELECT 3 AS three; SELECT 4 AS four;", "^D"]
    typed(str(made / "index"), lines, monkeypatch)
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["two", "2", "three", "3", "four", "4"]
    assert 'Referenced column "nosuch" not found' in err
    lines = ["SELECT 5 AS five", "^C", "SELECT 6 AS six;", "quit", "SELECT 7 AS seven;"]
    typed(str(made / "index"), lines, monkeypatch)
    assert capsys.readouterr().out.splitlines()[1:] == ["", "six", "6"]
    typed(str(made / "index"), [".tables", ".table", ".schema", "exit"], monkeypatch)
    _, tables, known, *schema = capsys.readouterr().out.splitlines()
    assert {"packs", "samples", "steps"} <= set(tables.split()) and ".schema" in known
    assert "samples,length,INTEGER" in schema
