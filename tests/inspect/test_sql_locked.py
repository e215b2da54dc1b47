"""`packidx sql` shows a query its views, and nothing else; `--unlocked` lets it do the rest."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

# A query, and what its refusal says; releases of DuckDB that see it sooner say it otherwise: a|b.
HOSTILE = [
    # other statements than one SELECT
    ("COPY packs TO 'out.parquet'", "COPY"),
    ("EXPLAIN ANALYZE COPY (SELECT 1 AS length) TO 'LENGTHS' (FORMAT parquet)", "EXPLAIN"),
    ("SELECT 1; COPY packs TO 'LENGTHS'", "2 statements"),
    ("PIVOT packs ON pack_id USING count(*)", "ON column IN ('a', 'b')"),
    ("ATTACH 'out.db' AS other", "ATTACH"),
    ("WITH made AS (INSERT INTO packs VALUES (1) RETURNING 1) FROM made", "INSERT|SELECT|table"),
    ("SET enable_external_access = true", "SET"),
    ("PRAGMA memory_limit = '1TB'", "only SELECT"),
    ("INSTALL httpfs", "only SELECT"),
    ("", "0 statements"),
    # files, stores, and what is in this process
    ("SELECT * FROM read_text('/etc/passwd')", "Cannot access file|disabled"),
    ("SELECT * FROM read_blob('SECRET')", "Cannot access file|disabled"),
    ("SELECT (SELECT count(*) FROM glob('*'))", "Cannot access|disabled"),
    ("FROM 's3://bucket/x.parquet'", "Cannot access file"),
    ("FROM query('SELECT * FROM read_text(''/etc/passwd'')')", "Cannot access file|disabled"),
    ("SELECT getenv('HOME')", "getenv"),
    ("SELECT * FROM connection", "connection"),
    # without end: in time, in memory, in rows, in depth
    ("SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c, packs", "seconds"),
    ("SELECT count(DISTINCT hash(range)) FROM range(1000000000)", "300MB"),
    ("SELECT *, hash(range) FROM range(1000000000)", "300MB|seconds"),
    ("FROM " + "(FROM " * 3000 + "range(1)" + ")" * 3000, "depth|deeply"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    pq.write_table(pa.table({"length": [5, 6, 7, 8, 99]}), folder / "lengths.parquet")
    (folder / "secret.csv").write_text("word\nhidden\n")
    command = ["plan", str(folder / "lengths.parquet"), "-o", str(folder / "index")]
    assert main([*command, "--capacity", "16"]) == 0
    return folder


@pytest.fixture
def around(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Folders that a query must leave as they are; one of them is home, one the current one."""
    for name in ("home", "here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    yield [tmp_path, made]


def listing(folders: list[Path]) -> dict[str, str]:
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = hashlib.sha256(content).hexdigest()
    return found


@pytest.mark.parametrize(("query", "says"), HOSTILE)
def test_a_hostile_query_ends_in_a_sentence_and_changes_nothing(
    query: str,
    says: str,
    made: Path,
    around: list[Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = listing(around)
    query = query.replace("LENGTHS", str(made / "lengths.parquet"))
    query = query.replace("SECRET'", str(made / "secret.csv") + "'")
    monkeypatch.setattr("packidx.inspect.sql.MEMORY_LIMIT", "300MB")
    limits = ["--timeout", "1" if "seconds" in says else "30"]
    if not query:
        query = "\n-- nothing\n"
    begun = time.monotonic()
    status = main(["sql", str(made / "index"), query, *limits])
    out, err = capfd.readouterr()
    assert (status, out) == (1, ""), err
    assert err.startswith("packidx: the query ") and err.count("\n") == 1
    assert any(words in err for words in says.split("|"))
    assert "Traceback" not in err and "hidden" not in err
    assert listing(around) == before
    assert time.monotonic() - begun < 45


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("\n-- a comment\nSELECT count(*) AS n FROM packs", 2),
        ("WITH a AS (SELECT 1 AS n), b AS (FROM A) SELECT n FROM b", 1),
        ("SELECT count(*) AS n FROM Packs p JOIN main.SAMPLES s USING (pack_id)", 4),
        ("SELECT count(*) AS n FROM information_schema.tables WHERE table_schema = 'main'", 6),
        ("SELECT count(*) AS n FROM (DESCRIBE dropped)", 6),
        ("SELECT sum(n) AS n FROM (PIVOT samples ON position IN (0 AS n, 1) USING count(*))", 2),
        ("SELECT 2 AS n; -- import of a pragma", 2),
        ("SELECT 'nan'::DOUBLE AS n", None),
    ],
)  # fmt: skip
def test_a_question_to_the_views_is_answered(
    query: str, value: int, made: Path, around: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", str(made / "index"), query, "--format", "json"]) == 0
    [row] = json.loads(capfd.readouterr().out)
    assert row["n"] == value
