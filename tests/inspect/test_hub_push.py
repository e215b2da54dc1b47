"""A plan on the Hub: what is pushed is the index, and it opens by its URL."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from hub_server import Hub, serving
from small_packs import make_index, record

from packidx.index import Index

PUSH = "import sys; from packidx_cli.main import run; run()"
READ = """
import json, sys
sys.path.append(sys.argv[2])
from torch_packs import SyntheticEncode
from packidx.index import open_index
from packidx.torch import PackedDataset, PackSampler
index = open_index(sys.argv[1])
dataset = PackedDataset(index, SyntheticEncode())
packs = [dataset[k] for k in PackSampler(index, global_batch=1)]
facts = [[p.pack_id, p.sample_ids.tolist(), p.joined()["input_ids"].tolist()] for p in packs]
print(json.dumps([index.id, facts]))
"""
HELPERS = str(Path(__file__).parent.parent / "helpers")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def index(tmp_path: Path) -> Index:
    (tmp_path / "data").mkdir()
    records = {name: [record(n, [5 + n]) for n in range(30)] for name in ("a|b", "c")}
    return make_index(tmp_path / "data", records, capacity=64)


def push(hub: Hub, home: Path, *words: str, expect: int = 0) -> dict[str, Any]:
    done = hub.run(home, "-c", PUSH, "push", *words, "--json", expect=expect)
    return json.loads(done.stdout) if not expect else {"error": done.stderr}


def card_of(hub: Hub, repo: str = "org/plan") -> tuple[dict[str, Any], str]:
    files = hub.commits[repo][hub.branches[repo]["main"]]
    _, head, text = files["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(head), text


def read(hub: Hub, home: Path, url: str) -> Any:
    return json.loads(hub.run(home, "-c", READ, url, HELPERS).stdout)


def test_what_is_pushed_gives_the_same_packs_and_id(hub: Hub, index: Index, tmp_path: Path) -> None:
    url = push(hub, tmp_path / "hf", str(index.path), "org/plan", "--licence", "mit")["url"]
    repo, commit = url.removeprefix("hf://datasets/").split("@")
    assert repo == "org/plan" and hub.branches[repo]["main"] == commit
    here = read(hub, tmp_path / "hf", str(index.path))
    assert here[0] == index.id and len(here[1]) == index.num_packs
    named = (url, f"hf://datasets/{repo}", f"hf://datasets/{repo}@main")
    for place in (*named, f"{url}@{index.id[:8]}"):
        assert read(hub, tmp_path / "hf", place) == here

    head, text = card_of(hub)
    files = hub.commits[repo][commit]
    for config in head["configs"]:
        (split,) = config["data_files"]
        name, (pattern,) = config["config_name"], split["path"]
        folder, _, glob = pattern.rpartition("/")
        beginning = f"{folder}/{glob.partition('*')[0]}"
        found = [each for each in files if each.startswith(beginning)]
        rows = sum(pq.read_table(io.BytesIO(files[each])).num_rows for each in found)
        tables = {"packs": index.num_packs, "samples": index.snapshot.result.num_pieces}
        assert found and rows == tables.get(name, index.snapshot.result.num_dropped)
    assert head["license"] == "mit" and "packidx" in head["tags"]
    assert f"{100 * index.snapshot.result.fill:.3f} %" in text and "| a&#124;b | 30 | 0 |" in text
    assert files["report.html"].startswith(b"<!doctype html>")


def test_a_readme_that_is_there_keeps_its_own(hub: Hub, index: Index, tmp_path: Path) -> None:
    configs = b"configs:\n- config_name: chats\n  data_files: d/*\n"
    mine = b"---\nlicense: mit\n" + configs + b"---\n# Chats\n\nOurs.\n"
    hub.push("org/plan", {"README.md": mine, "d/x.jsonl": b"{}"})
    for _ in range(2):
        push(hub, tmp_path / "hf", f"{index.path}@{index.id}", "org/plan")
        head, text = card_of(hub)
        assert head["license"] == "mit" and head["configs"][0]["config_name"] == "chats"
        assert [each["config_name"] for each in head["configs"][1:]][:2] == ["packs", "samples"]
        assert text.startswith("# Chats\n\nOurs.\n") and text.count("## Training order") == 1
    assert hub.commits["org/plan"][hub.branches["org/plan"]["main"]]["d/x.jsonl"] == b"{}"


def test_what_cannot_be_pushed_is_said_in_a_sentence(
    hub: Hub, index: Index, tmp_path: Path
) -> None:
    home = tmp_path / "hf"
    assert "write ORG/NAME" in push(hub, home, str(index.path), "plan", expect=1)["error"]
    assert "does not exist" in push(hub, home, "nowhere", "org/plan", expect=1)["error"]
    said = push(hub, home, str(index.path), "org/plan", "--revision", "gone", expect=1)["error"]
    assert "org/plan cannot be written" in said and said.count("\n") == 1
