"""What data holds is shown, and is never a command to the terminal that shows it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from packidx_cli.show.console import json_text, visible

from packidx import plan_packs

# A title, the clipboard, C1's CSI, DEL, text turned around, the start of the line.
HOSTILE = "k\x1b]0;title\x07\x1b]52;c;YQ\x07\x9b2J\x7f\u202eend\rover"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
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
    seen = on_a_terminal(asked).decode().replace("\r\n", "\n")
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


def test_csv_is_data_for_programs_and_text_for_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that reads CSV knows of no escapes: what it reads must be the value."""
    pq.write_table(pa.table({"length": [1], "key": [HOSTILE]}), tmp_path / "l.parquet")
    query = ["sql", str(tmp_path / "l.parquet"), "SELECT key FROM lengths", "--format", "csv"]
    assert main(query) == 0
    assert HOSTILE in capfd.readouterr().out
    seen = on_a_terminal(query)
    first, text = seen.decode().split(maxsplit=1)
    value = "".join(text.strip().strip('"').split("\r\n"))  # DuckDB quotes ends of lines
    assert first == "key" and value == visible(HOSTILE.replace("\r", ""))


def test_a_recipe_in_anothers_plan_is_text_for_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"length": [1]}), tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=9, recipe=f"# {HOSTILE}")
    query = ["pack", "--from", str(tmp_path / "i")]
    assert main(query) == 0
    assert HOSTILE in capfd.readouterr().out
    assert on_a_terminal(query).decode().splitlines() == [f"# {visible(HOSTILE)}"]


def on_a_terminal(query: list[str], stderr: bool = False) -> bytes:
    """What a command writes on its terminal: stdout, and stderr too if asked for."""
    ours, theirs = pty.openpty()
    more = {"stderr": theirs} if stderr else {}
    environment = os.environ | {"TERM": "xterm"}
    command = [sys.executable, "-m", "packidx_cli", *query]
    process = subprocess.Popen(command, stdout=theirs, env=environment, **more)
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:
            break
        if not block:
            break
        seen += block
    os.close(ours)
    assert process.wait() == 0
    return seen


def test_what_is_escaped_can_be_read_and_nothing_else_is() -> None:
    assert visible(HOSTILE) == (
        "k\\x1b]0;title\\x07\\x1b]52;c;YQ\\x07\\x9b2J\\x7f\\u202eend\\rover"
    )
    plain = "Ünïcode, 文字, \\ and 100 % of the “rest” 🙂"
    assert visible(plain) == plain
    assert visible("a\nb\tc") == "a\\nb\\tc" and visible("a\nb", lines=True) == "a\nb"
    assert visible("\udcff") == "\\udcff"
    assert json.loads(json_text({HOSTILE: plain})) == {HOSTILE: plain}
    assert json_text("\x7f\x9b") == '"\\u007f\\u009b"'


def test_text_is_printed_in_one_place() -> None:
    for path in CLI.glob("*.py"):
        if path.name != "console.py":
            assert not re.search(r"\bclick\.s?echo\(|(?<![\w.])print\(", path.read_text()), path
