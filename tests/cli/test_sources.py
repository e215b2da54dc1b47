"""Sources as users type them, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packidx_cli.main import main

from packidx import estimate_lengths

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


def test_a_path_with_a_typo_is_a_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("packidx.records.sources.hub.downloaded", lambda *_: pytest.fail("asked"))
    status, _, told = estimate(tmp_path, capsys, "data/coprus")
    assert status == 1
    assert "data/coprus: no such file" in told


@pytest.mark.parametrize("stated", ["images=photos", "system=rules"])
def test_a_stated_column_that_no_record_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stated: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD | {"images": []}) + "\n")
    status, _, told = estimate(tmp_path, capsys, str(tmp_path / "a.jsonl"), "--column", stated)
    use, column = stated.split("=")
    said = f"no record of a has a column {column!r}, which is stated to hold its {use}: they have"
    assert status == 1
    assert f"{said} images, messages" in told
    assert not (tmp_path / "out").exists()


def test_many_rejected_records_end_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text((json.dumps(GOOD) + "\n") * 80 + "{\n" * 20)
    assert estimate(tmp_path, capsys, str(tmp_path / "a.jsonl"))[0] == 1
    assert estimate(tmp_path, capsys, str(tmp_path / "a.jsonl"), "--max-rejected", "0.2")[0] == 0


def test_a_path_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD) + "\n")
    for sources in (tmp_path / "a.jsonl", [tmp_path / "a.jsonl"]):
        assert estimate_lengths(sources, tmp_path / "out", workers=1).num_samples == 1
