"""The command line as users and programs meet it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import cli, main
from small_packs import record, write_lengths

from packidx import plan_packs
from packidx.plan.options import TYPES


@pytest.fixture
def index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    pq.write_table(pa.table({"length": [5, 6, 7, 8, 99]}), tmp_path / "lengths.parquet")
    index = str(tmp_path / "index")
    assert main(["plan", str(tmp_path / "lengths.parquet"), "-o", index, "--capacity", "16"]) == 0
    capsys.readouterr()
    return index


def facts_of(printed: str) -> dict[str, str]:
    """Return what a command says of each name, with lines that go on joined."""
    printed = re.sub(r"\n {3,}", " ", printed)
    return dict(re.findall(r"^(\S+(?: \S+)*)  +(\S.*)$", printed, re.M))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(list(args))
    out, err = capsys.readouterr()
    return status, out, err


def test_plan_prints_what_users_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"length": [5, 6, 7, 8, 99, 4], "source": [*"aaaaab"]}
    pq.write_table(pa.table(rows), tmp_path / "l.parquet")
    command = ["plan", str(tmp_path / "l.parquet"), "-o", str(tmp_path / "i"), "--capacity", "16"]
    command += ["--mix", "b=0"]
    status, out, err = run(capsys, *command)
    assert (status, err) == (0, "warning: 79.2 % of the tokens to be packed are in no pack\n")
    said = facts_of(out)
    for name, words in {
        "mix": "b × 0 per epoch",
        "samples": "6 in, 4 packed",
        "tokens": "26",
        "packs": "2 of 16 tokens",
        "fill": "81.250 %",
        "lower bound": "2 packs",
    }.items():
        assert said[name].startswith(words), name
    # Each sample's tokens once, whatever the epochs; what was left out by choice is not a loss.
    assert (
        said["lost"]
        == "99 tokens, 79.2 % of the 125 to be packed, each sample counted once (1 too_long)"
    )
    assert said["left out"] == "1 mix"
    line = next(line for line in out.splitlines() if "packidx sql" in line)
    assert f'packidx sql {tmp_path / "i"} "SELECT' in line  # unbroken, to be copied
    assert "exists already" in run(capsys, *command)[1]
    [_, out, _] = run(capsys, *command, "--json")
    assert json.loads(out)["existed"] is True
    again = facts_of(run(capsys, "stats", str(tmp_path / "i"))[1])
    assert (again["lost"], again["left out"]) == (said["lost"], said["left out"])
    told = json.loads(run(capsys, "stats", str(tmp_path / "i"), "--json")[1])
    assert told["result"]["lost_percent"] == 100 * 99 / 125


def test_log_says_order_and_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what a snapshot's packs were made: the schedule, the steps, and what it goes on from."""
    lengths, index = str(tmp_path / "l.parquet"), str(tmp_path / "i")
    pq.write_table(pa.table({"length": [8] * 64}), lengths)
    plan = ["plan", lengths, "-o", index, "--capacity", "16", "--json"]
    usual = json.loads(run(capsys, *plan)[1])["snapshot_id"]
    first = json.loads(
        run(capsys, *plan, "--global-batch", "8", "--schedule", "random", "--align", "2")[1]
    )["snapshot_id"]
    state = tmp_path / "state.json"
    at = {"seed": 0, "epoch": 0, "global_batch": 8, "position": 8}
    state.write_text(json.dumps({"version": 1, "snapshot_id": first, **at}))
    status, out, err = run(capsys, "plan", "--continue", str(state), "-o", index, "--json")
    assert status == 0, err
    rest = json.loads(out)["snapshot_id"]
    said = {line.split()[0]: line for line in run(capsys, "log", index)[1].splitlines()}
    asked = "--align 2 --schedule random --global-batch 8"
    assert asked in said[first[:12]] and "--continue" not in said[first[:12]]
    assert said[rest[:12]].endswith(f"{asked} --continue @{first[:12]} after 8 packs")
    assert "--" not in said[usual[:12]]
    status, out, err = run(capsys, *plan[:-1], "--global-batch", "36")
    assert "warning: an epoch has 32 packs, fewer than the 36 of one step" in err
    assert status == 0 and "options" not in facts_of(out)  # of micro-steps nobody said a word


def test_sql_names_the_option_of_a_log(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "sql", index, "FROM losses")
    assert status == 1 and "there is no view losses: name the run's log with --log DIR" in err


def test_sql_formats_agree(index: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = (
        "SELECT pack_id, sum(length) AS tokens, count(*) AS n FROM samples GROUP BY 1 ORDER BY 1"
    )
    status, out, _ = run(capsys, "sql", index, query, "--format", "json")
    want = json.loads(out)
    assert status == 0
    assert sorted(row["tokens"] for row in want) == [13, 13]  # balanced: 8 + 5, 7 + 6
    text = run(capsys, "sql", index, query, "--format", "csv")[1]
    rows = [{k: int(v) for k, v in row.items()} for row in csv.DictReader(io.StringIO(text))]
    assert rows == want
    for name in ("o.json", "o.csv", "o.parquet"):
        assert run(capsys, "sql", index, query, "-o", str(tmp_path / name))[:2] == (0, "")
    assert json.loads((tmp_path / "o.json").read_text()) == want
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == want
    assert run(capsys, "sql", index, query)[1] == text
    table = run(capsys, "sql", index, query, "--format", "table")[1].splitlines()
    assert table[1].replace("│", " ").split() == ["pack_id", "tokens", "n"]
    assert sum(line.count("13") for line in table) == 2


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["plan", "LENGTHS", "-o", "OUT", "--capacity", "0"], 1, "capacity"),
        (["plan", "LENGTHS", "-o", "OUT", "--capacity", "many"], 2, "capacity"),
        (["plan", "LENGTHS", "-o", "OUT"], 2, "capacity"),
        (["plan", "nowhere", "-o", "OUT", "--capacity", "9"], 1, "does not exist"),
        (["plan", "FOLDER", "-o", "OUT", "--capacity", "9"], 1, "not a lengths table"),
        (["plan", "LENGTHS", "-o", "OUT", "--capacity", "9", "--margin", "2"], 1, "margin"),
        (["stats", "nowhere"], 1, "does not exist"),
        (["stats", "FOLDER"], 1, "not a pack index"),
        (["stats", "INDEX@0000"], 1, "no snapshot '0000'"),
        (["sql", "INDEX", "SELECT nonsense"], 1, "nonsense"),
        (["sql", "INDEX", "SELECT 1", "--root", "x"], 1, "OLD=NEW"),
        (["export", "energon", "INDEX", "-o", "out", "--energon-root", "x"], 1, "write OLD=NEW"),
        (["verify", "INDEX", "--root", "a=b", "--root", "a=c"], 1, "--root a is given twice"),
        (["verify", "INDEX", "--sample", "3"], 1, "--processor"),
        (["plann"], 2, "No such command 'plann'."),
        (["plan", "LENGTHS", "--capacty", "8"], 2, "--capacity"),
        (["plan", "LENGTHS", "-o", "OUT", "--capacity", "8", "--on-long", "splt"], 1, "split"),
        (["estimate", "LENGTHS", "-o", "OUT", "--column", "id"], 1, "write NAME=FIELD"),
        (["estimate", "LENGTHS", "-o", "OUT", "--column", "msgs=x"], 1, "no column 'msgs'"),
        (["estimate", "LENGTHS", "-o", "OUT", "--delimiter", ";;"], 1, "is for csv and tsv files"),
        (["estimate", "a", "-o", "b", "--engine", "lcal"], 2, "'local', 'ray'"),
        (["estimate", "a", "-o", "b", "--show", "1"], 2, "--show needs what makes the tokens"),
    ],
)
def test_mistakes_get_one_sentence_and_no_traceback(
    index: str,
    tmp_path: Path,
    args: list[str],
    status: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder").mkdir()
    places = {
        "LENGTHS": str(tmp_path / "lengths.parquet"),
        "FOLDER": str(tmp_path / "folder"),
        "OUT": str(tmp_path / "out"),
        "INDEX": index,
    }
    for name, place in places.items():
        args = [arg.replace(name, place) for arg in args]
    found, out, err = run(capsys, *args)
    assert (found, out) == (status, "")
    assert says in err and "Traceback" not in err
    if status == 1:
        assert err.startswith("packidx: ") and err.count("\n") == 1


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh process after `code`."""
    script = f"import sys\n{code}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = loaded_by(f"from packidx_cli.main import main; main({words})")
    assert "click" in loaded
    heavy = {"torch", "transformers", "polars", "duckdb", "ray", "numpy", "pyarrow", "rich"}
    assert loaded & heavy == set()


def test_import_packidx_is_light_and_names_resolve() -> None:
    loaded = loaded_by("import packidx; dir(packidx)")
    assert loaded & {"numpy", "pyarrow", "polars", "torch", "duckdb", "transformers"} == set()
    import packidx

    assert len(packidx.__all__) <= 12
    for name in packidx.__all__:
        assert getattr(packidx, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = packidx.nothing_like_it


def test_a_recipes_section_has_what_the_command_line_has() -> None:
    assert isinstance(cli, click.Group)
    flags = [parameter.name for parameter in cli.get_command(click.Context(cli), "plan").params]
    assert {name for name in flags if name in TYPES} == set(TYPES)


def test_a_bad_snapshot_does_not_hide_the_others(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(index) / "snapshots" / f"{'0' * 32}.json"
    other.write_text("[" * 100_000)
    status, out, err = run(capsys, "log", index, "--json")
    assert status == 0 and len(json.loads(out)) == 1
    assert err.count("\n") == 1 and str(other) in err
    (Path(index) / "HEAD").write_bytes(b"\xff\xfe")
    assert run(capsys, "stats", index)[0] == 1


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
    row = json.loads(capsys.readouterr().out)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--capacity", "64,128", "--dry-run"], "is not a valid integer"),
        (["--capacity", "64"], "--output"),
        (["--dry-run"], "--capacity"),
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


NAMES = ("a*b", "d[1]", "q?", "{x,y}", "it's", "%41", "back\\slash", "~", "length=3", "c#d", "ü")


def lengths_at(path: Path, values: list[int]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        pq.write_table(pa.table({"length": values}), file)
    return str(path)


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, int]]:
    capsys.readouterr()
    status = main(["sql", *args, "--format", "json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    found: list[dict[str, int]] = json.loads(out)
    return found


def summed(capsys: pytest.CaptureFixture[str], index: str, view: str = "lengths") -> list[int]:
    query = f"SELECT count(*) AS n, sum(length)::BIGINT AS tokens FROM {view}"
    return [value for row in rows(capsys, index, query) for value in row.values()]


def plan_at(path: str, index: Path) -> str:
    assert main(["plan", path, "-o", str(index), "--capacity", "16"]) == 0
    return str(index)


@pytest.mark.parametrize("name", NAMES)
def test_an_index_is_read_from_a_folder_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named in full, and from where it lies."""
    monkeypatch.chdir(tmp_path)
    index = plan_at(lengths_at(Path(name, "l.parquet"), [5, 6, 7, 8]), Path(name, "i"))
    assert summed(capsys, index) == [4, 26]
    assert summed(capsys, str(tmp_path / index), "samples") == [4, 26]


def test_a_pattern_that_was_planned_stays_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths_at(tmp_path / "d[1]" / "a.parquet", [5, 6])
    lengths_at(tmp_path / "d[1]" / "b.parquet", [7])
    lengths_at(tmp_path / "d1" / "c.parquet", [8])
    index = plan_at(f"{tmp_path}/d[1]/*.parquet", tmp_path / "i")
    assert summed(capsys, index) == [3, 18]
    assert summed(capsys, index, "samples") == [3, 18]
    shutil.rmtree(tmp_path / "d[1]")
    assert summed(capsys, index) == [1, 8]  # the pattern's own meaning, where nothing has its name
