"""A dry run as it is shown: a table with a line per capacity, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from manifests import write_lengths
from packidx_cli.commands.plan import show

from packidx.plan import PlanOptions
from packidx.plan.preview import PreviewRow, preview

Write = Callable[..., str]
LENGTHS = np.random.default_rng(3).lognormal(4, 1, 2000).astype(int).tolist()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_lengths, tmp_path)


def shown(rows: list[PreviewRow], as_json: bool, notes: list[str]) -> tuple[str, str]:
    @click.command()
    def command() -> None:
        show(rows, as_json, notes)

    result = CliRunner().invoke(command, catch_exceptions=False)
    return result.stdout, result.stderr


def test_the_table_has_a_line_per_capacity(write: Write) -> None:
    uri = write(length=[*LENGTHS, None])
    options = PlanOptions(1, global_batch=8, on_long="error")
    rows = preview(uri, [64, 100_000], options)
    stdout, stderr = shown(rows, False, ["--mix"])
    head, line, small, large, *legend = stdout.splitlines()
    assert head.split()[:5] == ["capacity", "packs", "fill", "gap", "steps"]
    assert set(line.strip()) == {"─"}
    assert small.split()[:2] == ["64", f"{rows[0].num_packs:,}"]
    assert f"{rows[0].num_dropped:,} {rows[0].dropped_tokens:,}".split() == small.split()[8:10]
    assert large.split()[:2] == ["100,000", f"{rows[1].num_packs:,}"]
    text = "\n".join(legend)
    assert "with --on-long error no plan is made at 64\n" in text + "\n"
    assert rows[0].num_unusable == 1
    assert "unusable: 1 row is rejected or has no length" in text
    assert stderr == "note: a dry run does not look at --mix\n"


def test_the_table_tells_what_is_cut_and_planned(write: Write) -> None:
    uri = write(length=[30, 80], image_tokens=[0, 50])
    rows = preview(uri, [64], PlanOptions(1, on_long="split", margin=0.25))
    stdout, stderr = shown(rows, False, [])
    assert "1 cut" in stdout and not stderr
    assert "margin: packs of at most 48 tokens are planned" in stdout


def test_json_has_every_field(write: Write) -> None:
    rows = preview(write(length=LENGTHS), [64, 128])
    stdout, _ = shown(rows, True, [])
    listed = json.loads(stdout)
    assert [list(row) for row in listed] == [[field.name for field in fields(PreviewRow)]] * 2
    assert [row["num_packs"] for row in listed] == [row.num_packs for row in rows]
