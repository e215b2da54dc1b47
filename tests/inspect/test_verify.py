"""A plan against its data: what has changed since is found and named."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import file_of, refresh
from packidx_cli.main import main

from packidx import estimate_lengths, open_index, plan_packs
from packidx.index import Index
from packidx.inspect.verify import verify_index


def encode(record: Mapping[str, Any]) -> dict[str, list[int]]:
    """As long as the estimate without a processor: a third of the characters."""
    characters = sum(len(turn["content"]) for turn in record["messages"])
    return {"input_ids": [0] * (characters // 3)}


@pytest.fixture
def planned(tmp_path: Path) -> Index:
    with open(tmp_path / "talk.jsonl", "w") as file:
        for number in range(50):
            turns = [("user", "why? " * (number + 1)), ("assistant", "because. ")]
            messages = [{"role": role, "content": text} for role, text in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    estimate_lengths(str(tmp_path / "talk.jsonl"), tmp_path / "lengths", workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=100, margin=0)
    return open_index(tmp_path / "index")


def failed(index: Index, **options: Any) -> dict[str, str]:
    return {check.name: check.detail for check in verify_index(index, **options) if not check.ok}


def test_untouched_data_passes(planned: Index, tmp_path: Path) -> None:
    checks = list(verify_index(planned, encoder=encode, num_sampled=50))
    assert [check for check in checks if not check.ok] == []
    assert [check.name for check in checks[-3:]] == ["shards", "encoder", "samples"]
    seen = {check.name: check.numbers for check in checks}
    lines = (tmp_path / "talk.jsonl").read_text().splitlines()
    tokens = sum(len(encode(json.loads(line))["input_ids"]) for line in lines)
    files = [Path(file.path) for file in planned.files()]
    assert seen["files"] == {
        "files": len(files),
        "bytes_hashed": sum(path.stat().st_size for path in files),
        "rows": sum(pq.read_table(path).num_rows for path in files),
    }
    assert seen["id"] == {"rows_hashed": planned.num_packs + 50, "windows": 1}
    assert seen["shards"] == {
        "shards": 1,
        "bytes_hashed": (tmp_path / "talk.jsonl").stat().st_size,
    }
    rest = "0 failed, 0 different, 0 pieces"
    assert checks[-1].detail == f"50 samples encoded, {tokens:,} tokens compared, {rest}"
    assert not next(check for check in checks if check.name == "encoder").checked


def test_moved_data_is_found_with_roots(planned: Index, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "talk.jsonl", tmp_path / "new" / "talk.jsonl")
    assert "--root" in failed(planned)["shards"]
    moved = open_index(planned, {str(tmp_path): str(tmp_path / "new")})
    assert failed(moved, encoder=encode, num_sampled=50) == {}


NO_TORCH = """
import sys
import tarfile
sys.modules["torch"] = None
from packidx_cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_a_package_that_encoding_needs_there_is_no_verdict(
    tmp_path: Path, processors: Path
) -> None:
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    processor = str(processors / "qwen3-vl")
    lengths, index = tmp_path / "lengths", tmp_path / "index"
    estimate_lengths(str(tmp_path / "talk.jsonl"), lengths, processor=processor, workers=1)
    plan_packs(lengths, index, capacity=100)
    command = ["verify", str(index), "--processor", processor, "--sample", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_TORCH, *command], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "not checked: building tensors needs torch" in " ".join(done.stdout.split())
    assert done.stderr.count("\n") == 1 and 'pip install "packidx[' in done.stderr


# -- broken on purpose -----------------------------------------------------------------------------


def with_value(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    at = table.column_names.index(column)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema[at].type))


def rewrite(
    name: str, change: Callable[[pa.Table], pa.Table], rows: bool = True
) -> Callable[[Index], None]:
    """A table written anew, the manifest signed for it: no checksum shows it."""

    def damage(index: Index) -> None:
        path = file_of(index, name)
        pq.write_table(change(pq.read_table(path)), path)
        refresh(index, rows)

    return damage


def flipped(index: Index) -> None:
    path = file_of(index, "samples")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def shorter(index: Index) -> None:
    path = file_of(index, "packs")
    path.write_bytes(path.read_bytes()[:-7])


OTHER_ID = r"1 window: their id is \w{12}…, not \w{12}…"
BROKEN: list[tuple[Callable[[Index], None], str, str]] = [
    (flipped, "files", r"samples-00000.parquet has SHA-256 \w{12}…, the manifest says \w{12}…"),
    (shorter, "files", r"packs-00000.parquet has [\d,]+ bytes, the manifest says [\d,]+"),
    (
        rewrite("samples", lambda table: table.slice(0, 49), rows=False),
        "files",
        "samples-00000.parquet has 49 rows, the manifest says 50",
    ),
    (rewrite("samples", lambda table: with_value(table, "length", 3, 77)), "id", OTHER_ID),
    (rewrite("samples", lambda table: table.take([1, 0, *range(2, 50)])), "id", OTHER_ID),
    (rewrite("packs", lambda table: with_value(table, "num_samples", 1, 1)), "id", OTHER_ID),
    (rewrite("samples", lambda table: table.drop_columns(["length"])), "id", "samples-00000"),
]


@pytest.mark.parametrize(("damage", "name", "told"), BROKEN)
def test_what_is_broken_is_told_with_both_values(
    planned: Index, damage: Callable[[Index], None], name: str, told: str
) -> None:
    damage(planned)
    assert re.search(told, failed(open_index(planned.path))[name])


def test_a_broken_index_is_not_read_any_further(planned: Index) -> None:
    flipped(planned)
    checks = {check.name: check for check in verify_index(planned, encoder=encode, num_sampled=5)}
    assert [check.name for check in checks.values() if not check.ok] == ["files"]
    unchecked = [check.name for check in checks.values() if not check.checked]
    assert unchecked == ["id", "encoder", "samples"]


def test_samples_that_differ_are_told_with_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three sources one is longer than planned, and one cannot be built in part."""
    monkeypatch.chdir(tmp_path)
    for name, number in (("a", 6), ("b", 4), ("c", 5)):
        records = [{"messages": [{"role": "user", "content": "x" * 30}]}] * number
        lines = (
            json.dumps({"id": f"{name}{at}\x1b[2J", **one}) + "\n" for at, one in enumerate(records)
        )
        Path(f"{name}.jsonl").write_text("".join(lines))
    Path("own_encoder.py").write_text(
        "def encode(record):\n"
        "    number = int(record['id'][1])\n"
        "    if record['id'][0] == 'c' and number > 2:\n"
        "        raise ValueError('no such day')\n"
        "    more = number if record['id'][0] == 'b' else 0\n"
        "    return {'input_ids': [0] * (10 + more)}\n"
    )
    estimate_lengths(["a.jsonl", "b.jsonl", "c.jsonl"], "lengths", workers=1)
    plan_packs("lengths", "index", capacity=40, margin=0)
    command = ["verify", "index", "--encode", "own_encoder:encode", "--sample", "99"]
    assert main([*command, "--json"]) == 3
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["samples"]["numbers"] == {
        "samples_encoded": 13,
        "tokens_compared": 60 + 46 + 30,
        "failed": 2,
        "different": 3,
        "pieces": 0,
    }
    assert "3 of 4 of b, 2 of 5 of c" in checks["samples"]["detail"]
    assert main(command) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "\x1b" not in out and "(b3\\x1b[2J) of b has 13 tokens, planned were 10" in out
    assert "of c: cannot be encoded: ValueError: no such day" in out


def test_pieces_are_compared_by_their_ends(tmp_path: Path) -> None:
    with open(tmp_path / "talk.jsonl", "w") as file:
        for length in (60, 900):
            message = {"role": "user", "content": "x" * length}
            file.write(json.dumps({"messages": [message]}) + "\n")
    estimate_lengths(str(tmp_path / "talk.jsonl"), tmp_path / "lengths", workers=1)
    options: dict[str, Any] = {"capacity": 100, "on_long": "split", "margin": 0}
    plan_packs(tmp_path / "lengths", tmp_path / "index", **options)
    index = open_index(tmp_path / "index")
    *_, found = verify_index(index, encoder=encode, num_sampled=9)
    assert found.ok and found.numbers["pieces"] == 3 and found.numbers["samples_encoded"] == 4

    def cut(record: Mapping[str, Any]) -> dict[str, list[int]]:
        return {"input_ids": encode(record)["input_ids"][:250]}

    *_, found = verify_index(index, encoder=cut, num_sampled=9)
    assert "has 250 tokens, planned were at least 300" in found.detail
    assert found.numbers["different"] == 1
