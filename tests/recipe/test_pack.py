"""What `packidx pack` writes: in a bucket, by Ray, when it is killed on the way, and the report."""

from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from absent import without
from dying import dying
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
def test_ray_writes_the_same_plan(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    local = run(processors)
    recipe(processors)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level=logging.CRITICAL,
    )  # fmt: skip
    try:
        command = ["pack", "recipe.yaml", "-o", "by-ray", "--engine", "ray", "--quiet", "--json"]
        assert main(command) == 0
        unchanged, index, _ = packed(capsys.readouterr().out)
        assert not unchanged
        assert index.rpartition("@")[2] == local.index.rpartition("@")[2]
        assert main(command) == 0
        assert packed(capsys.readouterr().out)[:2] == (True, index)
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_end(folder: Path, processors: Path) -> None:
    whole = run(processors, "whole").index.rpartition("@")[2]
    output = str(folder / "packs")
    arguments = ["pack", "recipe.yaml", "-o", output, "--quiet", "--workers", "1"]
    script = dying("import packidx.plan.api, packidx.inspect.report, packidx.inspect.verify\n")
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    killed, left = 0, 0
    draw = random.Random(7)
    with process:
        while True:
            process.stdin.write(json.dumps([left, output, arguments]) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            if status == 0:
                break
            assert status == -9
            killed += 1
            left += draw.randint(1, 3)
        process.stdin.close()
    assert killed >= 5
    again = run(processors, output)
    assert again.unchanged and again.index.rpartition("@")[2] == whole


@pytest.mark.slow
def test_a_report_is_drawn_and_drawn_again_where_it_is_gone(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vl_convert")
    recipe(processors)
    command = ["pack", "recipe.yaml", "-o", "packs", "--quiet", "--workers", "1"]
    assert main(command) == 0
    assert "report    packs/report.html\n" in capsys.readouterr().out
    page = Path("packs/report.html")
    first = page.read_bytes()
    assert b"<html" in first
    written = page.stat().st_mtime_ns
    assert main(command) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert page.stat().st_mtime_ns == written
    page.unlink()
    assert main([*command, "--json"]) == 0
    assert packed(capsys.readouterr().out)[2]["report"] == "packs/report.html"
    assert page.read_bytes() == first


@pytest.mark.slow
def test_without_the_extra_a_run_says_what_to_install(folder: Path, processors: Path) -> None:
    recipe(processors)
    program = (
        f"{without('vl-convert-python', 'vl_convert')}\nfrom packidx_cli.main import run\nrun()"
    )
    command = [sys.executable, "-c", program, "pack", "recipe.yaml", "-o", "packs", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'report    none: run pip install "packidx[report]"\n' in done.stdout
    assert not Path("packs/report.html").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("nothing changed")
    if not run(processors).unchanged:  # with the extra, what is missing is made
        assert Path("packs/report.html").exists()


@pytest.mark.slow
def test_what_is_called_unchanged_was_looked_at(
    folder: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(named: str, folder: str, doing: Any) -> tuple[str, None]:
        Path(folder, "report.html").write_text(f"<html>{named}")
        return f"{folder}/report.html", None

    monkeypatch.setattr("packidx.recipe.run.reported", drawn)
    pq.write_table(pa.table({"key": ["chats-1"]}), "out.parquet")
    Path("model").mkdir()
    config = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    config |= {"num_attention_heads": 4, "vocab_size": 100}
    Path("model/config.json").write_text(json.dumps(config))

    def again(cost: str = "model") -> PackSummary:
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
    for _ in range(2):
        again("model,vit_linear=0")
    assert again("model,vit_linear=0").unchanged
    Path("model/config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    assert not again("model,vit_linear=0").unchanged
