"""What others made is data: no code of theirs runs, and no name of theirs leads to other places."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from packidx_cli.main import main

import packidx
from packidx import estimate_lengths

CHAT = {"messages": [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]}
EVIL = "import os\nos.mkdir({place!r})\n"
NAMES = ["../../outside", "a/../../outside", "/abs", "..", "a\nb: c", "' OR 1=1 --", "<b>\x1b[2J"]


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working one; what lies beside it is seen by the tests."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    "known", [pytest.param(True, marks=pytest.mark.slow), False], ids=["known", "unknown family"]
)
def test_code_in_a_processors_folder_is_not_run(
    known: bool, here: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``auto_map`` asks transformers for code in the folder: every file that may say it does."""
    pwned, folder = here / "pwned", here / "processor"
    shutil.copytree(processors / "qwen2.5-vl", folder)
    for module in ("evil", "processing_evil", "__init__", "setup"):
        (folder / f"{module}.py").write_text(EVIL.format(place=str(pwned)))
    kinds = ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoConfig", "AutoModel")
    auto_map = {"auto_map": dict.fromkeys(kinds, "evil.Evil")}
    if not known:
        auto_map |= {"processor_class": "EvilProcessor", "image_processor_type": "Evil"}
    for name in (
        *("processor_config.json", "preprocessor_config.json"),
        *("tokenizer_config.json", "config.json"),
    ):
        path = folder / name
        stated = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(stated | auto_map))
    write(here / "a.jsonl", [CHAT])
    command = ["estimate", "a.jsonl", "-o", "lengths", "--processor", "processor", "--show", "1"]
    estimated = main([*command, "--quiet"])
    if known:
        assert estimated == 0
        assert main(["plan", "lengths", "-o", "index", "--capacity", "99", "--quiet"]) == 0
        assert main(["verify", "index", "--processor", "processor", "--sample", "1"]) == 0
    else:
        assert estimated == 1 and "custom code" in capsys.readouterr().err
    assert not pwned.exists()


def test_no_code_runs_because_a_manifest_names_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder and a transform run where the user names them, and nowhere else."""
    write(here / "a.jsonl", [CHAT])
    (here / "own_code.py").write_text(
        "def encode(record):\n    return {'input_ids': [1, 2, 3]}\n"
        "def same(record, rng):\n    return record\n"
    )
    command = ["estimate", "a.jsonl", "-o", "lengths", "--encode", "own_code:encode"]
    assert main([*command, "--transform", "own_code:same", "--quiet"]) == 0
    assert main(["plan", "lengths", "-o", "index", "--capacity", "99", "--quiet"]) == 0
    (here / "own_code.py").write_text(EVIL.format(place=str(here / "pwned")))
    commands = [
        *(["stats", "index"], ["log", "index"], ["verify", "index"]),
        ["sql", "index", "SELECT * FROM samples"],
        ["plan", "lengths", "-o", "again", "--capacity", "99"],
    ]
    for words in commands:
        sys.modules.pop("own_code", None)
        main(words)
        assert "own_code" not in sys.modules and not (here / "pwned").exists(), words
    importlib.import_module("own_code")
    assert (here / "pwned").exists(), "the module would have told"
    sys.modules.pop("own_code")


def test_names_of_sources_lead_nowhere(
    here: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mix names its sources; what is written for them stays in the output."""
    beside = here.parent / "outside"
    for number in range(len(NAMES)):
        write(here / f"{number}.jsonl", [{**CHAT, "id": "../../outside"}])
    files = {name: {"file_name": f"{number}.jsonl"} for number, name in enumerate(NAMES)}
    Path("mix.json").write_text(json.dumps(files))
    processor = str(processors / "qwen2.5-vl")
    assert main(["estimate", "mix.json", "-o", "l", "--processor", processor, "--quiet"]) == 0
    assert main(["plan", "l", "-o", "i", "--capacity", "99", "--group-by", "source"]) == 0
    assert main(["export", "wds", "i", "-o", "w", "--quiet"]) == 0
    assert main(["precompute", "mix.json", "-o", "p", "--processor", processor, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["sql", "i", "SELECT DISTINCT source FROM samples", "--format", "json"]) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed
    assert {row["source"] for row in json.loads(listed)} == set(NAMES)
    made = {path.name for path in here.iterdir() if path.suffix != ".jsonl"}
    assert made == {"mix.json", "l", "i", "w", "p"}
    assert not beside.exists() and [path.name for path in here.parent.iterdir()] == ["here"]


def test_yaml_makes_nothing_but_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate_lengths(write(here / "a.jsonl", [CHAT]), here / "lengths", workers=1)
    Path("object.yaml").write_text(f"datasets: !!python/object/apply:os.mkdir [{here}/pwned]\n")
    assert main(["estimate", "object.yaml", "-o", "l", "--quiet"]) == 1
    assert main(["plan", "lengths", "-o", "i", "--capacity", "9", "--config", "object.yaml"]) == 1
    assert main(["pack", "object.yaml", "--quiet"]) == 1
    assert capsys.readouterr().err.count("could not determine a constructor") == 3
    assert not (here / "pwned").exists()


def test_nothing_that_is_read_can_hold_objects() -> None:
    """No pickle and nothing like it is loaded but between the processes of one run."""
    package = Path(packidx.__file__).parent
    loaders = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "np", "torch"}
    loading = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads", "Unpickler")
        if isinstance(node.value, ast.Name) and node.value.id in loaders
    }
    assert loading == {"run/workers.py"}
