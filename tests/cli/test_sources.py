"""Sources as users type them, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packidx_cli.main import main

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]}


def estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, summary and errors of `packidx estimate`."""
    command = ["estimate", *arguments, "-o", str(tmp_path / "out"), "--json", "--quiet"]
    status = main([*command, "--workers", "1"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def test_a_minified_configuration_in_a_folder_is_no_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps(GOOD) + "\n")
    (tmp_path / "data" / "info.json").write_text('{"name": "a", "splits": [{"name": "train"}]}')
    status, summary, _ = estimate(tmp_path, capsys, str(tmp_path / "data"))
    assert (status, summary["num_samples"]) == (0, 1)


def test_numbers_that_json_has_not_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = GOOD | {"score": float("nan"), "low": -float("inf"), "high": float("inf")}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    status, summary, _ = estimate(tmp_path, capsys, str(tmp_path / "a.jsonl"))
    assert (status, summary["num_samples"], summary["rejected"]) == (0, 1, {})
