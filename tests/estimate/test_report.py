"""What `packidx estimate` says at its end: rejected records by source, and data without labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import estimate_lengths
from packidx.errors import OptionError, SourceError

ASKED = {"role": "user", "content": "hello there"}
SAID = {"role": "assistant", "content": "good day"}
GOOD = json.dumps({"messages": [ASKED, SAID]})
ONLY_ASKED = json.dumps({"messages": [ASKED]})
CUT = '{"cut'


def shard(folder: Path, name: str, *lines: str) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"{name}={path}"


@pytest.fixture
def mixed(tmp_path: Path) -> list[str]:
    """150 good records; 98 good ones and 2 bad; 3 good and 1 bad."""
    tmp_path.joinpath("data").mkdir()
    folder = tmp_path / "data"
    return [
        shard(folder, "clean", *[GOOD] * 150),
        shard(folder, "dirty", *[GOOD] * 40, CUT, *[GOOD] * 58, '{"a": 1}'),
        shard(folder, "small", *[GOOD] * 199, CUT),
    ]


def estimate(*arguments: str, output: Path) -> int:
    result = main(["estimate", *arguments, "-o", str(output), "--quiet", "--workers", "1"])
    assert isinstance(result, int)
    return result


def test_the_end_is_a_table_of_sources_with_reasons_and_an_example_each(
    mixed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*mixed, output=tmp_path / "out") == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["clean", "150", "0"] in lines
    assert ["samples", "450", "(447", "heuristic)"] in lines
    assert any(
        line[:6] == ["rejected", "3", "(2", "bad_json,", "1", "no_messages):"] for line in lines
    )
    (dirty,) = [number for number, line in enumerate(lines) if line[:1] == ["dirty"]]
    assert lines[dirty][1:3] == ["98", "2"]
    told = {line[1]: line for line in lines[dirty + 1 : dirty + 3]}
    assert (told["bad_json"][0], told["no_messages"][0]) == ("1", "1")
    assert told["bad_json"][2] == "dirty.jsonl#40:"
    assert told["no_messages"][2] == "dirty.jsonl#99:"
    rows = pq.read_table(next((tmp_path / "out").glob("part-00000*"))).to_pylist()
    details = {row["reason"]: row["detail"] for row in rows if row["source"] == "dirty"}
    assert " ".join(told["no_messages"][3:]) == " ".join(details["no_messages"].split())
    assert "2 of 100 records of dirty are rejected (2.0 %)" in err
    assert "no processor is named" in err
    assert "no label" not in out + err, "whether there are any is unknown"
    assert "small" not in err, "half a percent is not a warning"


def test_json_has_the_sources_and_the_warnings(
    mixed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*mixed, "--json", output=tmp_path / "out") == 0
    result = json.loads(capsys.readouterr().out)
    assert [
        (one["name"], one["num_samples"], one["num_rejected"], one["rejected"])
        for one in result["sources"]
    ] == [
        ("clean", 150, 0, {}),
        ("dirty", 100, 2, {"bad_json": 1, "no_messages": 1}),
        ("small", 200, 1, {"bad_json": 1}),
    ]
    assert any("2 of 100 records of dirty" in text for text in result["warnings"])
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert [one["rejected"] for one in manifest["sources"]] == [
        {},
        {"bad_json": 1, "no_messages": 1},
        {"bad_json": 1},
    ]


def test_a_source_of_which_nothing_is_left_ends_with_1_and_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [shard(tmp_path, "good", GOOD, GOOD), shard(tmp_path, "lost", CUT, CUT)]
    sources.append(shard(tmp_path, "empty"))
    out = tmp_path / "out"
    assert estimate(*sources, output=out) == 1
    printed, err = capsys.readouterr()
    assert ["2", "bad_json", "lost.jsonl#0:"] in [line.split()[:3] for line in printed.splitlines()]
    last = err.splitlines()[-1]
    assert "all 2 records of lost are rejected" in last
    assert "--max-rejected" in last
    assert "empty" not in last
    assert json.loads((out / "manifest.json").read_bytes())["num_rejected"] == 2
    assert estimate(*sources, "--max-rejected", "1", output=out) == 0
    assert "all 2 records of lost are rejected" in capsys.readouterr().err, "a warning, still"


@pytest.mark.parametrize(
    ("limit", "code"), [("0.02", 0), ("2%", 0), ("0.0199", 1), ("1.9 %", 1), ("1/50", 0), ("0", 1)]
)
def test_max_rejected_is_a_share_of_each_source(
    mixed: list[str], tmp_path: Path, limit: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*mixed, "--max-rejected", limit, output=tmp_path / "out") == code
    assert (tmp_path / "out" / "manifest.json").exists()
    assert ("above --max-rejected" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize("limit", ["-0.1", "1.1", "101%", "many", ""])
def test_a_limit_that_is_no_share_is_refused_before_the_work(
    mixed: list[str], tmp_path: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert estimate(*mixed, "--max-rejected", limit, output=tmp_path / "out") == 1
    assert "a share" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_python_raises_above_the_limit_and_reports_without_one(
    mixed: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SourceError, match="2 of 100 records of dirty are rejected"):
        estimate_lengths(mixed, out, workers=1, max_rejected=0.01)
    summary = estimate_lengths(mixed, out, workers=1)
    assert summary.existed, "the table was written all the same"
    assert [one["num_rejected"] for one in summary.sources] == [0, 2, 1]
    with pytest.raises(OptionError, match="a share"):
        estimate_lengths(mixed, out, workers=1, max_rejected=2)


LABELLED = "source asked has no label token in any of its 2 samples"


@pytest.fixture
def unlabelled(tmp_path: Path) -> list[str]:
    return [
        shard(tmp_path, "asked", ONLY_ASKED, ONLY_ASKED),
        shard(tmp_path, "talk", *[GOOD] * 20),
    ]


def test_a_source_without_label_tokens_is_a_warning_everywhere(
    unlabelled: list[str], tmp_path: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths, index = tmp_path / "lengths", str(tmp_path / "index")
    processor = ["--processor", str(processors / "qwen2.5-vl")]
    assert estimate(*unlabelled, *processor, output=lengths) == 0
    assert LABELLED in capsys.readouterr().err
    assert estimate(*unlabelled, *processor, "--json", output=lengths) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["num_label_tokens"] for one in told["sources"]][0] == 0
    assert any(LABELLED in text for text in told["warnings"])
    plan = ["plan", str(lengths), "-o", index, "--capacity", "64", "--group-by", "source"]
    assert main(plan) == 0
    err = capsys.readouterr().err
    assert LABELLED in err
    assert "1 of " in err and "packs have no label token" in err
    assert "source talk" not in err
    assert main([*plan, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["result"]["num_packs_without_labels"] == 1
    assert any(LABELLED in text for text in made["warnings"])
    assert main(["stats", index]) == 0
    out, err = capsys.readouterr()
    assert "source asked has no label token" in out and LABELLED in err
    assert main(["stats", index, "--json"]) == 0
    assert any(LABELLED in text for text in json.loads(capsys.readouterr().out)["warnings"])
