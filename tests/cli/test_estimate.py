"""`packidx estimate`: results on stdout, warnings on stderr, errors in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from packidx_cli.main import main

from packidx.inspect.facts import verified_facts

GOOD = '{"messages": [{"role": "user", "content": "hello there"}]}\n'


@pytest.fixture
def shard(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_text(GOOD + '{"cut\n' + GOOD)
    return str(tmp_path / "a.jsonl")


def test_json_is_one_object(
    shard: str, tmp_path: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["estimate", f"mine={shard}", "-o", str(tmp_path / "out"), "--json", "--quiet"]
    command += ["--processor", str(processors / "qwen2.5-vl"), "--workers", "1"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["num_samples"], result["rejected"]) == (3, {"bad_json": 1})
    assert (result["methods"], result["existed"]) == ({"exact": 2}, False)
    assert err.splitlines() == [f"warning: {text}" for text in result["warnings"]]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["existed"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl", "-o", "out"], "no such file"),
        (["a.jsonl", "-o", "a.jsonl"], "is not a folder"),
        (["a.jsonl", "-o", "."], "holds a.jsonl, which is of no lengths table"),
        (["a.jsonl", "-o", "out", "--media-root", "none"], "not a folder"),
    ],
)
def test_errors_are_one_sentence(
    shard: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["estimate", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_how_many_lengths_were_computed_and_built() -> None:
    nothing = {"with": None, "reason": "torch is not installed"}
    for methods, what in (({"exact": 3}, "by the family's rules"), ({"heuristic": 3}, "by guess")):
        said = f"torch is not installed; lengths computed {what}"
        assert verified_facts(nothing, methods) == {"not verified": said}
    assert verified_facts(None, {"exact": 3}) == {}
    some = {"with": "transformers 5", "computed": ["text", "image"]}
    assert verified_facts(some, {"exact": 1200}) == {
        "verified": "1,200 lengths computed (2 kinds compared with transformers 5)"
    }
    some |= {"built": {"image, tools": "a record has 2 tokens"}, "rare": {"video": None}}
    assert verified_facts(some | {"num_built": 7}, {"exact": 1200}) == {
        "verified": "1,193 lengths computed (4 kinds compared with transformers 5), 7 built"
        " (image, tools: a record has 2 tokens)"
    }


INTRUDES = """
from pathlib import Path
def change(record, rng):
    for name in ("later.txt", "notes/later.txt", "part-00000.parquet"):
        path = Path("out", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    return record
"""


def test_files_of_others_in_the_output_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put there before a run, or while it lasts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "intrudes.py").write_text(INTRUDES)
    out, shard = tmp_path / "out", tmp_path / "a.jsonl"
    command = ["estimate", "a.jsonl", "-o", "out", "--workers", "1", "--quiet"]
    for number in range(3):
        shard.write_text(GOOD * (number + 1))
        assert main(command if number == 1 else [*command, "--transform", "intrudes:change"]) == 0
        mine = {path: path.read_text() for path in out.rglob("*") if path.suffix == ".txt"}
        assert set(mine.values()) == {"mine"} and len(mine) == 2 + (number > 0)
        assert (out / "part-00000.parquet").read_text() == "mine"
        (out / "before.txt").write_text("mine")
        stated = json.loads((out / "manifest.json").read_text())
        assert stated["num_samples"] == number + 1
        assert len(list(out.glob("part-*-*"))) == len(stated["files"]) == 1


def test_what_is_reused_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in "abc":
        (data / f"{name}.jsonl").write_text(GOOD.replace("there", name) * 3)
    command = ["estimate", str(data), "-o", str(out), "--quiet", "--workers", "1"]

    def lines() -> dict[str, str]:
        assert main(command) == 0
        said, warned = capsys.readouterr()
        said = re.sub(r"\n {6,}(?=\S)", " ", said)  # lines that go on
        pairs = [line.split("  ", 1) for line in said.splitlines() if "  " in line.strip()]
        return {"err": warned} | {name.strip(): text.strip() for name, text in pairs}

    assert "reused" not in lines()
    with (data / "b.jsonl").open("a") as file:
        file.write(GOOD)
    (data / "c.jsonl").unlink()
    said = lines()
    assert said["reused"] == "3 samples of 1 shard"
    assert said["counted"] == "4 samples of 1 shard: b.jsonl"
    next(out.glob("part-00000*")).write_bytes(b"")
    (data / "e.jsonl").write_text(GOOD)
    said = lines()
    assert said["reused"] == "0 samples of 0 shards"
    assert "parquet has 0 bytes" in said["err"]
    command.append("--json")
    (data / "e.jsonl").unlink()
    assert main(command) == 0
    taken = json.loads(capsys.readouterr().out)["reused"]
    assert (taken["num_samples"], taken["num_counted"]) == (7, 0)
    assert taken["counted"] == []
    command[-1] = "--fresh"
    assert "reused" not in lines()
    (out / "manifest.json").write_text("{}")
    command.pop()
    assert main(command) == 1, "a folder that may be anybody's"
