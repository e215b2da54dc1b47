"""Manifests that were written before are read, and written again with the same members."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packidx.format.index import IndexManifest
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import Manifest, load_manifest, seal_manifest

FOLDER = Path(__file__).with_name("manifest_goldens")
GOLDENS = sorted(FOLDER.glob("*-*.json"))
KINDS: dict[str, type[Manifest]] = {"lengths": LengthsManifest, "index": IndexManifest}


def kind_of(golden: Path) -> type[Manifest]:
    return KINDS[golden.name.partition("-")[0]]


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_what_was_read_is_written_as_it_was(golden: Path) -> None:
    manifest = load_manifest(golden, kind_of(golden), "stop")
    for stated in (manifest, seal_manifest(manifest)):
        assert json.loads(json.dumps(stated.to_json())) == json.loads(golden.read_bytes())


def test_there_is_a_golden_of_every_kind() -> None:
    assert {kind_of(golden) for golden in GOLDENS} == set(KINDS.values())
    assert len(GOLDENS) >= 7
