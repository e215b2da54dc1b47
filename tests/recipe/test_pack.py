"""What `packidx pack` writes: in a bucket, by Ray, when it is killed on the way, and the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import URL, object_store
from packidx_cli.main import main

from packidx import open_index
from packidx.io import storage
from packidx.recipe.recipe import recipe_of
from packidx.recipe.run import PackSummary, pack_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two sources of text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("chats", "more"):
        with open(tmp_path / "data" / f"{name}.jsonl", "w") as file:
            for number in range(60):
                turns = [
                    {"role": "user", "content": f"What is {name} {number}?"},
                    {"role": "assistant", "content": f"A number. {'Indeed. ' * (number % 30)}"},
                ]
                file.write(json.dumps({"messages": turns, "id": f"{name}-{number}"}) + "\n")
    return tmp_path


def recipe(processors: Path, **plan: Any) -> str:
    """Written to ``recipe.yaml``; its text."""
    text = {
        "sources": {"chats": "data/chats.jsonl", "more": "data/more.jsonl"},
        "estimate": {"processor": str(processors / "qwen2.5-vl")},
        "plan": {"capacity": 512, **plan},
    }
    Path("recipe.yaml").write_text(json.dumps(text))
    return json.dumps(text)


def run(processors: Path, output: str = "packs", **options: Any) -> PackSummary:
    made = recipe_of(recipe(processors), "recipe.yaml")
    return pack_recipe(made, output, workers=1, **options)


def packed(json_text: str) -> tuple[bool, str, dict[str, Any]]:
    """Of what ``--json`` prints: whether nothing changed, the index, and all of it."""
    told = json.loads(json_text)
    return told["unchanged"], told["index"], told


@pytest.mark.slow
def test_a_bucket_holds_the_plan_of_a_folder(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = run(processors)
    with object_store(folder / "cache"):
        command = ["pack", "recipe.yaml", "-o", f"{URL}/packs", "--quiet", "--json"]
        assert main(command) == 0
        unchanged, index, told = packed(capsys.readouterr().out)
        assert (unchanged, told["num_sampled"], told["report"]) == (False, 16, None)
        assert index.rpartition("@")[2] == local.index.rpartition("@")[2]
        assert open_index(index).snapshot.recipe == recipe(processors)
        assert main(command) == 0
        assert packed(capsys.readouterr().out)[:2] == (True, index)
        assert main(["pack", "recipe.yaml", "-o", f"{URL}/packs", "--quiet"]) == 0
        assert "nothing changed" in capsys.readouterr().out
        storage.remove(f"{URL}/packs/pack.json")
        assert main(command) == 0
        assert packed(capsys.readouterr().out)[:2] == (False, index)
        # Sources without a recipe leave one there, and know it again.
        words = ["--processor", str(processors / "qwen2.5-vl"), "--quiet", "-o", f"{URL}/own"]
        assert main(["pack", "data/chats.jsonl", "--capacity", "512", *words]) == 0
        assert main(["pack", "data/chats.jsonl", "--capacity", "256", *words]) == 0
        assert b"capacity: 256" in storage.read(f"{URL}/own/recipe.yaml")
        capsys.readouterr()
        assert main(["pack", f"{URL}/own/recipe.yaml", "--quiet", "--json"]) == 0
        assert packed(capsys.readouterr().out)[0]


@pytest.mark.slow
def test_what_is_called_unchanged_was_looked_at(
    folder: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(named: str, folder: str, doing: Any) -> tuple[str, None]:
        Path(folder, "report.html").write_text(f"<html>{named}")
        return f"{folder}/report.html", None

    monkeypatch.setattr("packidx.recipe.run.reported", drawn)
    pq.write_table(pa.table({"key": ["chats-1"]}), "out.parquet")

    def again(cost: str = "qwen2.5-vl-7b") -> PackSummary:
        text = recipe(processors, exclude="out.parquet", cost=cost)
        return pack_recipe(recipe_of(text, "recipe.yaml"), "packs", workers=1, keep_recipe=True)

    first = again()
    ident = open_index(first.index).id
    snapshot = Path("packs/index/snapshots", ident)

    def edit(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes(9))

    changes: dict[str, Callable[[], Any]] = {
        "the snapshot is deleted": lambda: shutil.rmtree(snapshot),
        "its manifest is deleted": lambda: (snapshot / "manifest.json").unlink(),
        "samples are emptied": lambda: next(snapshot.glob("samples-*")).write_bytes(b""),
        "packs have other bytes": lambda: edit(next(snapshot.glob("packs-*"))),
        "the report is another file": lambda: Path("packs/report.html").write_text("<html>"),
        "the report is gone": lambda: Path("packs/report.html").unlink(),
        "the recipe is gone": lambda: Path("packs/recipe.yaml").unlink(),
        "the lengths have other bytes": lambda: edit(next(Path("packs/lengths").glob("part-*"))),
    }
    for what, change in changes.items():
        assert again().unchanged, what
        change()
        made = again()
        assert not made.unchanged and made.index == first.index, what
        assert all(check.ok for check in made.checks), what
    pq.write_table(pa.table({"key": ["chats-2"]}), "out.parquet")
    assert not again().unchanged and again().unchanged
    Path("packs/recipe.yaml").unlink()
    assert not again("qwen2.5-vl-7b,vit_linear=0").unchanged
