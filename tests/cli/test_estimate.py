"""`packidx estimate`: what it prints, and the keys of records that it does not know."""

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
from packidx.inspect.facts import verified_facts
from packidx.torch import PackedDataset

GOOD = '{"messages": [{"role": "user", "content": "hello there"}]}\n'


@pytest.fixture
def shard(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_text(GOOD + '{"cut\n' + GOOD)
    return str(tmp_path / "a.jsonl")


def test_json_is_one_object(
    shard: str, tmp_path: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["estimate", f"mine={shard}", "-o", str(tmp_path / "out"), "--json", "--quiet"]
    command += ["--processor", str(processors / "qwen2.5-vl"), "--workers", "1"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["num_samples"], result["rejected"]) == (3, {"bad_json": 1})
    assert (result["methods"], result["existed"]) == ({"exact": 2}, False)
    assert err.splitlines() == [f"warning: {text}" for text in result["warnings"]]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["existed"] is True


def test_how_many_lengths_were_computed_and_built() -> None:
    nothing = {"with": None, "reason": "torch is not installed"}
    for methods, what in (({"exact": 3}, "by the family's rules"), ({"heuristic": 3}, "by guess")):
        said = f"torch is not installed; lengths computed {what}"
        assert verified_facts(nothing, methods) == {"not verified": said}
    assert verified_facts(None, {"exact": 3}) == {}
    some = {"with": "transformers 5", "computed": ["text", "image"]}
    assert verified_facts(some, {"exact": 1200}) == {
        "verified": "1,200 lengths computed (2 kinds compared with transformers 5)"
    }
    some |= {"built": {"image, tools": "a record has 2 tokens"}, "rare": {"video": None}}
    assert verified_facts(some | {"num_built": 7}, {"exact": 1200}) == {
        "verified": "1,193 lengths computed (4 kinds compared with transformers 5), 7 built"
        " (image, tools: a record has 2 tokens)"
    }


def test_what_is_reused_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in "abc":
        (data / f"{name}.jsonl").write_text(GOOD.replace("there", name) * 3)
    command = ["estimate", str(data), "-o", str(out), "--quiet", "--workers", "1"]

    def lines() -> dict[str, str]:
        assert main(command) == 0
        said = capsys.readouterr().out
        said = re.sub(r"\n {6,}(?=\S)", " ", said)  # lines that go on
        pairs = [line.split("  ", 1) for line in said.splitlines() if "  " in line.strip()]
        return {name.strip(): text.strip() for name, text in pairs}

    assert "reused" not in lines()
    with (data / "b.jsonl").open("a") as file:
        file.write(GOOD)
    (data / "c.jsonl").unlink()
    said = lines()
    assert said["reused"] == "3 samples"
    assert said["counted"] == "4 samples of b.jsonl"
    next(out.glob("part-00000*")).write_bytes(b"")
    (data / "e.jsonl").write_text(GOOD)
    reused = lines()["reused"]
    assert reused.startswith("nothing: ") and "parquet has 0 bytes" in reused


ASKED, ANSWERED = "What is it?", "A cat, 猫."


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
        folder, settings={"images.max_pixels": 602112, "videos.max_pixels": 300000}
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
    small = estimated(data, folder, output, *PLANNED)
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


def test_a_source_without_any_medium_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    meta = {"images_meta": [[28, 28]]}
    shown = [{"role": "user", "content": "<image>What?"}, talk[1]]
    record = {"messages": shown, "images": ["a.png"], "mm_inputs_meta": meta}
    (tmp_path / "seen.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["estimate", str(tmp_path), "-o", str(tmp_path / "l"), "--workers", "1"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "no record has" in line]
    assert line.split(maxsplit=2)[2] == "talk: no record has an image, video or sound"
