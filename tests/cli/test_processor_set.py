"""`--processor-set`: in the manifest, in the plan, and told by name where a reader has others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packidx_cli.main import main
from PIL import Image

from packidx import open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError
from packidx.torch import PackedDataset

PLANNED = "images.max_pixels=1003520", "videos.max_pixels=300000"
TOLD = r"images\.max_pixels: 1003520 planned, 602112 here"


@pytest.fixture
def data(tmp_path: Path) -> str:
    Image.new("RGB", (2000, 900)).save(tmp_path / "wide.png")
    content = [{"type": "image", "image": "wide.png"}, {"type": "text", "text": "What is it?"}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "A line."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    return str(tmp_path / "a.jsonl")


def estimated(data: str, processor: Path, output: Path, *settings: str) -> dict[str, Any]:
    """The manifest of the lengths."""
    command = ["estimate", data, "-o", str(output), "--processor", str(processor), "--quiet"]
    for setting in settings:
        command += ["--processor-set", setting]
    assert main([*command, "--workers", "1"]) == 0
    manifest: dict[str, Any] = json.loads((output / "manifest.json").read_text())
    return manifest


def test_other_settings_than_the_planned_ones_are_told_by_name(
    data: str, processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, index = processors / "qwen2.5-vl", str(tmp_path / "index")
    estimated(data, folder, tmp_path / "lengths", *PLANNED)
    plan_packs(tmp_path / "lengths", index, capacity=4096)
    opened = open_index(index)
    told = {"images.max_pixels": 1003520, "videos.max_pixels": 300000}
    assert opened.manifest["lengths"]["encoder"]["overrides"] == told
    encoder = ProcessorEncoder(folder, settings=told)
    [pack] = PackedDataset(opened, encoder)
    assert len(pack.samples[0]["input_ids"]) == opened.pack(0).samples[0].length
    assert 602112 / 28**2 < len(pack.samples[0]["input_ids"]) < 1003520 / 28**2 + 100
    other = ProcessorEncoder(
        folder, settings={"images.size.longest_edge": 602112, "videos.max_pixels": 300000}
    )
    with pytest.raises(MismatchError, match=rf"use the same[^\n]*\n  {TOLD}$"):
        PackedDataset(opened, other)
    with pytest.raises(MismatchError, match=r"images\.max_pixels: 1003520 planned, 12845056 here"):
        PackedDataset(opened, ProcessorEncoder(folder))
    capsys.readouterr()
    here = ["--processor", str(folder), "--quiet"]
    assert main(["verify", index, *here, "--sample", "1"]) == 0  # the plan's own settings hold
    capsys.readouterr()
    changed = [
        "--processor-set",
        "images.max_pixels=602112",
        "--processor-set",
        "videos.max_pixels=300000",
    ]
    assert main(["verify", index, *here, *changed]) == 3
    assert re.search(TOLD, " ".join(capsys.readouterr().out.split()))


def test_settings_decide_lengths_and_are_in_the_options(
    data: str, processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = processors / "qwen2.5-vl", tmp_path / "lengths"
    plain = estimated(data, folder, output)
    assert "processor_settings" not in plain["options"] and "overrides" not in plain["encoder"]
    assert plain["encoder"]["settings"]["images.max_pixels"] == 12845056
    small = estimated(data, folder, output, *PLANNED)
    assert small["options"]["processor_settings"] == {
        "images.max_pixels": 1003520,
        "videos.max_pixels": 300000,
    }
    assert small["sources"][0]["num_tokens"] < plain["sources"][0]["num_tokens"]
    assert small["encoder"]["fingerprint"] != plain["encoder"]["fingerprint"]
    capsys.readouterr()
    command = ["estimate", data, "-o", str(output), "--quiet", "--processor-set"]
    for settings, words in (
        ([PLANNED[0]], "settings of a processor need the processor"),
        (["images.max_pixels=", "--processor", str(folder)], "write NAME=VALUE"),
        (["images.max_pixel=5", "--processor", str(folder)], "may be one of images.max_pixels"),
        (["images.do_resize=no", "--processor", str(folder)], "is 'no': give true or false"),
    ):
        assert main([*command, *settings]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
    assert json.loads((output / "manifest.json").read_text()) == small
