"""`packidx sql`: its views, its locks and its prompt."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packidx_cli.main import main

from packidx import open_index, plan_packs
from packidx.errors import FormatError, NotFoundInIndex, SourceError
from packidx.format.step_log import STEP_LOG, part_name
from packidx.index import Index
from packidx.index.frames import STEPS
from packidx.inspect.sql import open_target
from packidx.torch import PackSampler

PLANS: dict[str, dict[str, Any]] = {
    "steps": {"global_batch": 6, "micro_steps": 3},
    "mix": {"global_batch": 4, "micro_steps": 2, "mix": ("a=0.5", "b=2")},
    "random": {"schedule": "random", "global_batch": 4, "micro_steps": 2},
    "unknown": {"schedule": "random"},
    "windows": {"global_batch": 4, "micro_steps": 4, "window": 1},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counted records, of which two are rejected, and a plan of each kind."""
    folder = tmp_path_factory.mktemp("views")
    for name in "ab":
        turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": ""}]
        with open(folder / f"{name}.jsonl", "w") as file:
            for number in range(60):
                turns[1]["content"] = "word ä " * (1 + number % 17)
                record: dict[str, Any] = {"id": f"{name}-{number}", "messages": turns}
                file.write(json.dumps(record | ({"image": "gone.png"} if number == 9 else {})))
                file.write("\n")
    sources = [f"{name}={folder}/{name}.jsonl" for name in "ab"]
    assert main(["estimate", *sources, "-o", str(folder / "lengths"), "--workers", "1"]) == 0
    for name, options in PLANS.items():
        plan_packs(folder / "lengths", folder / name, capacity=128, margin=0.0, **options)
    return folder


def ask(capfd: pytest.CaptureFixture[str], *args: object, status: int = 0) -> Any:
    capfd.readouterr()
    assert main(["sql", *map(str, args), "--format", "json"]) == status
    out, err = capfd.readouterr()
    return err if status else json.loads(out)


def told(index: Index, **options: Any) -> list[dict[str, Any]]:
    connection = index.duckdb(**options)
    connection.execute("FROM steps")
    names = [column[0] for column in connection.description or ()]
    return [dict(zip(names, row, strict=True)) for row in connection.fetchall()]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(PLANS)),
    st.integers(0, 2**40),
    st.integers(0, 9),
    st.sampled_from([(2, 1), (2, 2), (3, 1), (4, 2), (6, 3)]),
)
def test_steps_are_what_the_sampler_trains_on(
    made: Path, plan: str, seed: int, epoch: int, dealt: tuple[int, int]
) -> None:
    index, (global_batch, world_size) = open_index(made / plan), dealt
    options = {"seed": seed, "epoch": epoch, "global_batch": global_batch}
    rows = told(index, **options, world_size=world_size)
    assert [row["position"] for row in rows] == [*range(len(rows))]
    assert {row["epoch"] for row in rows} == {epoch}
    first = PackSampler(index, world_size=world_size, **options)
    for step in range(first.num_steps):
        mine = [row["pack_id"] for row in rows if row["step"] == step]
        assert mine == first.packs_of_step(step)
    assert [row["pack_id"] for row in rows if row["step"] is None] == first.left_out
    assert all((row["step"] is None) == (row["micro_step"] is None) for row in rows)
    for rank in range(world_size):
        read = [*PackSampler(index, rank=rank, world_size=world_size, **options)]
        turns = [(row["step"], row["micro_step"]) for row in rows if row["pack_id"] in read]
        per_step = global_batch // world_size
        assert turns == [divmod(at, per_step) for at in range(len(read))]


@pytest.mark.parametrize("plan", ["mix", "windows"])
def test_sql_and_python_have_the_same_rows(
    plan: str, made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = open_index(made / plan)
    connection = index.duckdb()
    for view in ("packs", "samples", "dropped"):
        rows = index.to_arrow(view).to_pylist()
        assert ask(capfd, index.path, f"FROM {view}") == json.loads(json.dumps(rows)), view
        asked = connection.sql(f"FROM {view}")
        assert asked.columns == index.to_arrow(view).column_names
        assert asked.fetchall() == [tuple(row.values()) for row in rows], view
        assert (len(rows) > 0) == (view != "dropped" or index.snapshot.result.num_dropped > 0)
    assert connection.sql("FROM steps").columns == STEPS.names
    parts = sorted((made / "lengths").glob("*.parquet"))
    lengths = [tuple(row.values()) for part in parts for row in pq.read_table(part).to_pylist()]
    assert connection.sql("FROM lengths").fetchall() == lengths


def test_sources_are_the_manifests(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    index = open_index(made / "mix")
    rows = ask(capfd, index.path, "FROM sources")
    assert [(row["name"], row["weight"]) for row in rows] == [("a", 0.5), ("b", 2.0)]
    for row, source in zip(rows, index.snapshot.sources, strict=True):
        assert row["num_dropped"] == source.num_dropped > 0
        assert (row["num_samples"], row["num_rejected"], row["num_tokens"]) == (
            60, 1, source.num_tokens
        )  # fmt: skip
    assert [row["weight"] for row in ask(capfd, made / "steps", "FROM sources")] == [1.0, 1.0]
    rows = ask(capfd, made / "lengths", "FROM sources")
    assert [(row["name"], row["weight"], row["num_rejected"]) for row in rows] == [
        ("a", None, 1), ("b", None, 1)
    ]  # fmt: skip


def test_what_is_absent_is_said(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"length": [5, 6], "key": ["a", "b"]}), tmp_path / "bare.parquet")
    bare = tmp_path / "bare.parquet"
    assert len(ask(capfd, bare, "FROM lengths")) == 2
    told = ask(capfd, bare, "FROM sources", status=1)
    assert "there is no view sources" in told and "bare Parquet" in told
    told = ask(capfd, bare, "FROM rejected", status=1)
    assert "there is no view rejected: the lengths have no column status" in told
    plan_packs(bare, tmp_path / "index", capacity=16)
    assert len(ask(capfd, tmp_path / "index", "FROM steps")) == 1
    told = ask(capfd, tmp_path / "index", "FROM rejected", status=1)
    assert "the lengths have no column status" in told
    bare.unlink()
    for view in ("lengths", "rejected"):
        told = ask(capfd, tmp_path / "index", f"FROM {view}", status=1)
        assert f"there is no view {view}: {bare} does not exist" in told
        assert "--root OLD=NEW" in told
    for view in ("packs", "steps"):
        told = ask(capfd, made / "lengths", f"FROM {view}", status=1)
        assert f"name {view} does not exist" in told


POISONED = {7, 2_000, 4_007}
PAGE = Path(__file__).parents[2] / "docs" / "inspecting.md"


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Path]:
    """A run whose losses fall. One source's are ten times the other's; three samples stand out."""
    folder, random = tmp_path_factory.mktemp("logged"), np.random.default_rng(0)
    sources = ["easy" if number % 4 else "hard" for number in range(6_000)]
    columns = {"length": random.integers(5, 60, 6_000), "source": sources}
    pq.write_table(pa.table(columns), folder / "lengths.parquet")
    plan_packs(folder / "lengths.parquet", folder / "index", capacity=256, global_batch=8)
    index = open_index(folder / "index")
    query = "SELECT step, pack_id, samples.position, sample_id, source FROM steps JOIN samples"
    connection = index.duckdb()  # one that is forgotten is closed
    found = connection.sql(f"{query} USING (pack_id) WHERE step IS NOT NULL").fetchall()
    by_step: dict[int, list[dict[str, Any]]] = {}
    for step, pack, position, ident, source in found:
        loss = (10.0 if source == "hard" else 1.0) * (0.2 + np.exp(-step / 20))
        loss *= 1 + 0.1 * random.standard_normal() + 8 * (ident in POISONED)
        row = {"pack_id": pack, "position": position, "sample_id": ident}
        by_step.setdefault(step, []).append(row | {"label_tokens": 10, "loss": 10 * loss})
    same = {"snapshot_id": index.id, "session": 1, "epoch": 0, "rank": 0, "world_size": 1}
    rows = [{**same, "step": step, "samples": samples} for step, samples in by_step.items()]
    (folder / "log").mkdir()
    table = pa.Table.from_pylist(rows, STEP_LOG)
    pq.write_table(table, folder / "log" / part_name(1, 0, 0))
    return index, folder / "log"


def test_the_documented_query_finds_the_samples_that_stand_out(
    logged: tuple[Index, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    index, log = logged
    asked = re.search(r'--log runs/log "(SELECT DISTINCT .*?)"', PAGE.read_text())
    assert asked is not None
    found = ask(capfd, index.path, asked[1], "--log", log)
    assert {row["sample_id"] for row in found} >= POISONED and len(found) < 10


def test_a_log_of_something_else_is_refused(logged: tuple[Index, Path], tmp_path: Path) -> None:
    index, log = logged
    plan_packs(Path(index.path).parent / "lengths.parquet", tmp_path / "other", capacity=512)
    with pytest.raises(SourceError, match=f"it is of @{index.id[:12]}, ask that"):
        open_target(str(tmp_path / "other"), {}, str(log))
    with pytest.raises(NotFoundInIndex):
        open_target(str(Path(index.path).parent / "lengths.parquet"), {}, str(log))
    (tmp_path / part_name(1, 0, 0)).write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="is damaged, or not part of a log"):
        open_target(index.path, {}, str(tmp_path))


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
def hostile_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    pq.write_table(pa.table({"length": [5, 6, 7, 8, 99]}), folder / "lengths.parquet")
    (folder / "secret.csv").write_text("word\nhidden\n")
    command = ["plan", str(folder / "lengths.parquet"), "-o", str(folder / "index")]
    assert main([*command, "--capacity", "16"]) == 0
    return folder


@pytest.fixture
def around(
    hostile_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Path]]:
    """Folders that a query must leave as they are; one of them is home, one the current one."""
    for name in ("home", "here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    yield [tmp_path, hostile_made]


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
    hostile_made: Path,
    around: list[Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = listing(around)
    query = query.replace("LENGTHS", str(hostile_made / "lengths.parquet"))
    query = query.replace("SECRET'", str(hostile_made / "secret.csv") + "'")
    monkeypatch.setattr("packidx.inspect.sql.MEMORY_LIMIT", "300MB")
    limits = ["--timeout", "1" if "seconds" in says else "30"]
    if not query:
        query = "\n-- nothing\n"
    begun = time.monotonic()
    status = main(["sql", str(hostile_made / "index"), query, *limits])
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
    query: str,
    value: int,
    hostile_made: Path,
    around: list[Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["sql", str(hostile_made / "index"), query, "--format", "json"]) == 0
    [row] = json.loads(capfd.readouterr().out)
    assert row["n"] == value


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_columns_are_listed_where_there_is_no_terminal(
    prompted: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1"))
    assert main(["sql", str(prompted / "index"), "--format", "csv"]) == 0
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
    prompted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["SELECT 1 + 1", "AS two", ";", "SELECT nosuch FROM packs;", ""]
    lines += ["SELECT 3 AS three; SELECT 4 AS four;", "SELECT 4 AS four;", "^D"]
    typed(str(prompted / "index"), lines, monkeypatch)
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["two", "2", "four", "4"]
    assert "the query holds 2 statements: give one at a time" in err
    assert 'Referenced column "nosuch" not found' in err
    lines = ["SELECT 5 AS five", "^C", "SELECT 6 AS six;", "quit", "SELECT 7 AS seven;"]
    typed(str(prompted / "index"), lines, monkeypatch)
    assert capsys.readouterr().out.splitlines()[1:] == ["", "six", "6"]
    typed(str(prompted / "index"), [".tables", ".table", ".schema", "exit"], monkeypatch)
    _, tables, known, *schema = capsys.readouterr().out.splitlines()
    assert {"packs", "samples", "steps"} <= set(tables.split()) and ".schema" in known
    assert "samples,length,INTEGER" in schema
