"""`packidx pack`: one recipe, one command; a second run that has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from object_store import URL, object_store
from packidx_cli.main import main
from PIL import Image

import packidx
from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import OptionError
from packidx.recipe import PackSummary, pack_recipe, recipe_of


def turns(number: int, image: str | None = None) -> dict[str, Any]:
    asked: list[dict[str, str]] = [{"type": "text", "text": f"What is {number}?"}]
    if image is not None:
        asked.insert(0, {"type": "image", "image": image})
    answer = {"role": "assistant", "content": f"A number. {'Indeed. ' * (number % 30)}"}
    return {"messages": [{"role": "user", "content": asked}, answer]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two sources."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    Image.new("RGB", (200, 90)).save(tmp_path / "data" / "wide.png")
    for name, image in (("chats", None), ("photos", "wide.png")):
        lines = [json.dumps(turns(number, image)) for number in range(60)]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def recipe(folder: Path, processors: Path, **plan: Any) -> str:
    text = {
        "sources": {"chats": "data/chats.jsonl", "seen": {"path": "data/photos.jsonl"}},
        "estimate": {"processor": str(processors / "qwen2.5-vl")},
        "plan": {"capacity": 1024, **plan},
        "output": "packs",
    }
    (folder / "recipe.yaml").write_text(f"# kept as it is\n{json.dumps(text)}\n")
    return (folder / "recipe.yaml").read_text()


def test_the_plan_is_that_of_estimate_and_plan(folder: Path, processors: Path) -> None:
    recipe(folder, processors)
    assert main(["pack", "recipe.yaml", "--quiet", "--workers", "1"]) == 0
    sources = ["chats=data/chats.jsonl", "seen=data/photos.jsonl"]
    estimate_lengths(sources, "lengths", processor=processors / "qwen2.5-vl", workers=1)
    planned = plan_packs("lengths", "index", capacity=1024)
    assert planned.snapshot_id == open_index("packs/index").id
    assert planned.snapshot.recipe is None


def test_pack_in_python_is_the_command(folder: Path, processors: Path) -> None:
    command = ["pack", "data/chats.jsonl", "--processor", str(processors / "qwen2.5-vl")]
    options = ["--capacity", "1024", "--on-long", "split", "--seed", "7", "-o", "by_command"]
    assert main([*command, *options, "--quiet", "--workers", "1"]) == 0
    made = packidx.pack(
        Path("data/chats.jsonl"),
        "packs",
        capacity=1024,
        processor=processors / "qwen2.5-vl",
        workers=1,
        on_long="split",
        seed=7,
    )
    assert made.plan.snapshot_id == open_index("by_command/index").id
    assert all(check.ok for check in made.checks) and made.num_sampled == 16
    again = pack_recipe("packs/recipe.yaml", workers=1)
    assert again.plan.existed and again.index == made.index
    with pytest.raises(OptionError, match="onlong"):
        packidx.pack("data/chats.jsonl", "other", capacity=1024, onlong="split")


def test_a_second_run_finds_what_is_there_and_counts_what_is_new(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(folder, processors)
    command = ["pack", "recipe.yaml", "--quiet", "--workers", "1"]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lengths"]["existed"] and all(check["ok"] for check in told["checks"])
    assert told["plan"]["snapshot_id"] == open_index("packs/index").id
    with open("data/chats.jsonl", "a") as file:  # one record more
        file.write(json.dumps(turns(99)) + "\n")
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lengths"]["reused"]["num_samples"] == 60
    assert told["plan"]["lengths"]["num_samples"] == 121


def test_sources_without_a_recipe_leave_one(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processor = str(processors / "qwen2.5-vl")
    command = ["pack", "data/chats.jsonl", "--processor", processor, "-o", "packs", "--quiet"]
    assert main([*command, "--capacity", "512"]) == 0
    text = Path("packs/recipe.yaml").read_text()
    index = open_index("packs/index")
    assert index.snapshot.recipe == text
    capsys.readouterr()
    assert main(["pack", "packs/recipe.yaml", "--quiet"]) == 0
    assert open_index("packs/index").id == index.id
    assert main([*command, "--capacity", "1024"]) == 0  # ours, so it may be written again
    assert "capacity: 1024" in Path("packs/recipe.yaml").read_text()
    Path("packs/recipe.yaml").write_text(text + "# mine\n")
    assert main([*command, "--capacity", "2048"]) == 1
    assert "packs/recipe.yaml was changed: run `packidx pack" in capsys.readouterr().err
    assert Path("packs/recipe.yaml").read_text().endswith("# mine\n")


def test_a_plan_keeps_the_recipe_that_it_was_made_by(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = recipe(folder, processors)
    command = ["pack", "recipe.yaml", "--quiet", "--workers", "1"]
    assert main(command) == 0
    Path("recipe.yaml").write_text(text + "# another remark\n")
    assert main(command) == 0
    assert "keeps the recipe that it was planned by" in capsys.readouterr().err
    assert open_index("packs/index").snapshot.recipe == text


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["pack"], 2, "Missing argument"),
        (["pack", "data/chats.jsonl", "-o", "packs"], 2, "--capacity"),
        (["pack", "data/chats.jsonl", "--capacity", "8"], 2, "--output"),
        (["pack", "recipe.yaml", "--capacity", "8"], 1, "write capacity into it"),
        (["pack", "recipe.yaml", "-o", "recipe.yaml"], 1, "is a file: name a folder"),
        (["pack", "none.yaml", "--capacity", "8", "-o", "packs"], 1, "is not there"),
    ],
)
def test_what_cannot_be_packed_is_told(
    folder: Path,
    processors: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    recipe(folder, processors)
    assert main(arguments) == status
    assert said in capsys.readouterr().err
    assert not Path("packs").exists()


def test_a_plan_that_is_not_as_it_should_be_is_no_finished_one(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from packidx.inspect import verify
    from packidx.inspect.verify import Check

    recipe(folder, processors)
    check = Check("samples", False, "sample 3 has 5 tokens, planned were 4")
    monkeypatch.setattr(verify, "verify_index", lambda *args, **options: iter([check]))
    assert main(["pack", "recipe.yaml", "--quiet", "--workers", "1"]) == 3
    assert "sample 3 has 5 tokens" in capsys.readouterr().err


def test_records_of_an_unknown_shape_are_told_before_anything_is_planned(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"title": f"{n}", "body": "It was a dark night. " * 9}) for n in range(50)]
    Path("books.jsonl").write_text("\n".join(lines) + "\n")
    processor = str(processors / "qwen2.5-vl")
    command = ["pack", "books.jsonl", "--processor", processor, "--capacity", "512", "-o", "packs"]
    assert main([*command, "--quiet"]) == 1
    told = capsys.readouterr()
    assert "rejected  50" in told.out
    assert "books.jsonl#0" in told.out and "only title, body" in told.out
    assert "all 50 records of books are rejected" in told.err
    assert not Path("packs/index").exists()
    assert main([*command, "--quiet", "--column", "text=body"]) == 0
    assert "50 in, 50 packed" in capsys.readouterr().out


def packed_here(folder: Path, processors: Path, **plan: Any) -> PackSummary:
    """The recipe with these options of a plan, packed into ``packs``, and kept there."""
    made = recipe_of(recipe(folder, processors, **plan), "recipe.yaml")
    return pack_recipe(made, "packs", workers=1, keep_recipe=True)


@pytest.mark.slow
def test_a_bucket_holds_the_plan_of_a_folder(
    folder: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = packed_here(folder, processors)
    with object_store(folder / "cache"):
        command = ["pack", "recipe.yaml", "-o", f"{URL}/packs", "--quiet", "--json"]
        assert main(command) == 0
        told = json.loads(capsys.readouterr().out)
        index = told["index"]
        assert (told["num_sampled"], told["report"]) == (16, None)
        assert index.rpartition("@")[2] == local.index.rpartition("@")[2]
        assert open_index(index).snapshot.recipe == recipe(folder, processors)
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out)["index"] == index


def test_a_mix_is_checked_before_anything_is_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pack", "a,b=data/chats.jsonl", "data/photos.jsonl", "--capacity", "512", "--quiet"]
    assert main([*command, "-o", "packs", "--mix", "chats=2"]) == 1
    assert "no source is called so: a,b, photos" in capsys.readouterr().err
    assert not Path("packs").exists()
    assert main([*command, "-o", "packs", "--mix", "a,b=2", "--mix", "photos=0"]) == 0
    assert open_index("packs/index").manifest["options"]["weights"] == {"a,b": "2", "photos": "0"}
    assert main([*command, "-o", "both", "--mix", "a,b=2,photos=0"]) == 1  # which name is meant?
    assert "mix" in capsys.readouterr().err
    assert main(["pack", *command[2:], "-o", "two", "--mix", "photos=3,photos=1"]) == 1
    assert "names source 'photos' twice" in capsys.readouterr().err


def test_the_seed_is_the_transforms_too(folder: Path) -> None:
    Path("shortening.py").write_text(
        "def shorter(record, rng):\n"
        "    text = 'word ' * int(rng.integers(1, 99))\n"
        "    return {'messages': [{'role': 'user', 'content': 'a'},"
        " {'role': 'assistant', 'content': text}]}\n"
    )
    tokens = []
    for seed in ("1", "2", "1"):
        command = ["pack", "data/chats.jsonl", "--transform", "shortening:shorter", "--seed", seed]
        assert main([*command, "--capacity", "512", "-o", f"p{len(tokens)}", "--quiet"]) == 0
        tokens.append(open_index(f"p{len(tokens)}/index").manifest["lengths"]["fingerprint"])
    assert tokens[0] == tokens[2] != tokens[1]
