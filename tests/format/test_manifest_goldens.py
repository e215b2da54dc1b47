"""Manifests that were written before are read and written again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manifests import sign
from msgspec.structs import replace

from packidx.format.index import IndexManifest
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import Manifest, decoded, load, sealed
from packidx.format.outputs import EnergonManifest, PrecomputedManifest, WdsManifest
from packidx.io.files import write_json

FOLDER = Path(__file__).with_name("manifest_goldens")
GOLDENS = sorted(FOLDER.glob("*-*.json"))
OUTPUTS = {"energon": EnergonManifest, "precomputed": PrecomputedManifest, "wds": WdsManifest}
KINDS: dict[str, type[Manifest]] = {"lengths": LengthsManifest, "index": IndexManifest}


def kind_of(golden: Path) -> type[Manifest]:
    return KINDS[golden.name.partition("-")[0]]


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_what_was_read_is_written_as_it_was(golden: Path, tmp_path: Path) -> None:
    manifest = load(golden, kind_of(golden), "stop")
    made = replace(manifest)  # of its members alone, so that none of ours is unknown
    write_json(tmp_path / "read", manifest.to_json())
    assert (tmp_path / "read").read_bytes() == golden.read_bytes()
    for stated in (made, sealed(made)):
        assert json.loads(json.dumps(stated.to_json())) == json.loads(golden.read_bytes())


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_outputs_say_is_what_they_said(name: str) -> None:
    golden = FOLDER / f"{name}.json"
    manifest = decoded(OUTPUTS[name], json.loads(golden.read_bytes()))
    assert json.loads(json.dumps(manifest.to_json())) == json.loads(golden.read_bytes())


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_order_and_members_of_other_writers_stay(golden: Path, tmp_path: Path) -> None:
    """Members with their defaults, in another order, unknown ones, ints that stand for floats."""
    stated = json.loads(golden.read_bytes())
    for shard in stated["shards"]:
        shard["container"] = shard.get("container", "jsonl")
    windows = stated.get("windows", [])
    files = [file for one in [stated, *windows] for file in one.get("files", [])]
    for part in (stated, *stated["sources"], *windows, *files, *stated["shards"]):
        part["of_tomorrow"] = {"b": [1], "a": None}
    stated["software"] = {}
    if "result" in stated:
        stated["result"]["gap_percent"], stated["lengths"]["pattern"] = 0, False
    stated = {name: stated[name] for name in sorted(stated, reverse=True)}
    write_json(tmp_path / "other.json", sign(stated))
    manifest = load(tmp_path / "other.json", kind_of(golden), "stop")
    write_json(tmp_path / "again.json", manifest.to_json())
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_there_is_a_golden_of_every_kind() -> None:
    assert {kind_of(golden) for golden in GOLDENS} == set(KINDS.values())
    assert len(GOLDENS) >= 7
