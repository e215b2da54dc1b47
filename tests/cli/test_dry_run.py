"""`packidx plan --dry-run`: what a plan would be, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packidx_cli.main import main
from small_packs import record, write_lengths

from packidx import plan_packs


@pytest.fixture
def lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_lengths(tmp_path, {"a": [record(n, [20 + 7 * (n % 11)]) for n in range(60)]})


@pytest.mark.parametrize(
    "more",
    [
        ["--window", "20", "--mix", "a=1.5"],
        ["--on-long", "truncate", "--group-by", "media_type", "--workers", "2", "--window", "1"],
        ["--holdout", "0.2", "--schedule", "random", "--max-samples", "3", "--on-long", "split"],
    ],
)
def test_it_is_the_plan_that_is_written(
    more: list[str], lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", str(lengths), "--capacity", "64", "--quiet", "--json", *more]
    before = sorted(tmp_path.rglob("*"))
    assert main([*command, "--dry-run"]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    [row] = json.loads(capsys.readouterr().out)
    assert main([*command, "-o", str(tmp_path / "i")]) == 0
    assert row == {"capacity": 64, **json.loads(capsys.readouterr().out)["result"]}


def test_a_stream_says_its_packs_before_it_begins(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--lanes", "2", "--window", "10", "--quiet"]
    assert main(["plan", str(lengths), "--dry-run", "--capacity", "128", *words]) == 0
    planned = plan_packs(lengths, tmp_path / "i", capacity=128, lanes=2, window=10)
    shown = capsys.readouterr().out
    assert f"packs        {planned.snapshot.result.num_packs} of 128 tokens" in shown


def test_several_capacities_are_a_table(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(lengths), "--dry-run", "--capacity", "64, 128", "--quiet"]) == 0
    head, *_, last = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["capacity", "packs", "fill", "gap"]
    assert last.split()[0] == "128"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--capacity", "64,128", "-o", "i"], "several are for --dry-run"),
        (["--capacity", "6x", "-o", "i"], "is not an integer"),
        (["--dry-run"], "4096,8192"),
        (
            ["--dry-run", "--capacity", "64", "--continue", "s.json", "-o", "i"],
            "cannot be combined",
        ),
    ],
)
def test_what_does_not_go(
    words: list[str], said: str, lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(lengths), *words]) == 2
    assert said in capsys.readouterr().err
