"""What commands print for people fits 100 columns, on pipes too, but for what is copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

WIDTH = 100


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan whose numbers are wide: half a million tokens, sources with long names, drops."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    number = 3000
    rows = {
        "length": rng.integers(5, 9000, number),
        "source": [f"a_source_with_a_long_name_{n % 4}" for n in range(number)],
        "image_tokens": rng.integers(0, 4, number),
        "num_images": rng.integers(0, 2, number),
        "method": ["heuristic"] * number,
    }
    pq.write_table(pa.table(rows), "l.parquet")
    assert main(["plan", "l.parquet", "-o", "i", "--capacity", "8192", "--max-images", "9"]) == 0
    return "i"


@pytest.mark.parametrize(
    "command",
    [
        "stats i",
        "stats i --verbose",
        "stats l.parquet",
        "log i",
        "verify i",
        "trace i --step 0",
        "trace i --sample-id 3",
        "diff i j",
        "plan l.parquet -o j --capacity 4096 --on-long truncate --holdout 0.1 --align 8",
    ],
)
@pytest.mark.parametrize("columns", [None, str(WIDTH)])
def test_no_line_is_wider(
    command: str,
    columns: str | None,
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    if " j" in command and not command.startswith("plan"):
        assert main(["plan", "l.parquet", "-o", "j", "--capacity", "4096", "--seed", "3"]) == 0
    capsys.readouterr()
    main(command.split())
    wide = [
        line
        for line in capsys.readouterr().out.splitlines()
        if len(line) > WIDTH and not line.startswith(("try ", "index "))
    ]
    assert not wide
