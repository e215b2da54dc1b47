"""Memory that runs out is not a verdict on a record."""

from __future__ import annotations

from pathlib import Path

import pytest
from packidx_cli.main import main


def test_the_run_ends_where_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hungry_encoder.py").write_text(
        "def encode(record):\n"
        "    return {'input_ids': [1] * 5} if record['a'] else bytearray(1 << 60)\n"
    )
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 0}\n')
    command = ["estimate", "a.jsonl", "-o", "out", "--encode", "hungry_encoder:encode"]
    assert main([*command, "--workers", "1", "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "not enough memory" in line
    assert not (tmp_path / "out").exists()
