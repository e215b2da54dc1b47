"""`packidx estimate`: what it prints, and the keys of records that it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision_cpu  # noqa: F401 - before transformers
from family_processors import family_processor
from hypothesis import given
from hypothesis import strategies as st
from packidx_cli.main import main
from PIL import Image
from tokenizers import Tokenizer

from packidx import open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError
from packidx.inspect.facts import verified_facts
from packidx.inspect.shown import runs_of
from packidx.torch import PackedDataset

GOOD = '{"messages": [{"role": "user", "content": "hello there"}]}\n'


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


RECORD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]}


def estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, summary and errors of `packidx estimate`."""
    command = ["estimate", *arguments, "-o", str(tmp_path / "out"), "--json", "--quiet"]
    status = main([*command, "--workers", "1"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def test_a_minified_configuration_in_a_folder_is_no_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps(RECORD) + "\n")
    (tmp_path / "data" / "info.json").write_text('{"name": "a", "splits": [{"name": "train"}]}')
    status, summary, _ = estimate(tmp_path, capsys, str(tmp_path / "data"))
    assert (status, summary["num_samples"]) == (0, 1)


def test_a_path_with_a_typo_is_a_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "packidx.records.sources.hub.download_files", lambda *_: pytest.fail("asked")
    )
    status, _, told = estimate(tmp_path, capsys, "data/coprus")
    assert status == 1
    assert "data/coprus: no such file" in told


@pytest.mark.parametrize("stated", ["images=photos", "system=rules"])
def test_a_stated_column_that_no_record_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stated: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(RECORD | {"images": []}) + "\n")
    status, _, told = estimate(tmp_path, capsys, str(tmp_path / "a.jsonl"), "--column", stated)
    use, column = stated.split("=")
    said = f"no record of a has a column {column!r}, which is stated to hold its {use}: they have"
    assert status == 1
    assert f"{said} images, messages" in told
    assert not (tmp_path / "out").exists()


ANSWERS = ["Ein Rotkehlchen 🐦.", "Birke", "Ja, naïve⟦x⟧"]


@pytest.fixture
def answers_data(tmp_path: Path) -> Path:
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    lines = [
        {"id": f"n{number}", "messages": turns("<image>was ist das?" * (number < 2), answer)}
        | {"images": ["a.png"] * (number < 2)}
        for number, answer in enumerate(ANSWERS)
    ]
    lines[2]["messages"][0]["content"] = "Kein Bild?"
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bad = [{"id": "bad", "messages": []}, {"id": "good", "messages": turns("hi", "ho")}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bad))
    return tmp_path


def turns(asked: str, answered: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def shown(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    capsys.readouterr()  # what was printed when the processor was made
    assert main(["estimate", *map(str, arguments), "--quiet", "--json"]) == status
    return json.loads(capsys.readouterr().out)["shown"]


def check_shown(samples: list[dict[str, Any]], encoder: ProcessorEncoder) -> None:
    """What is shown is what was counted, and the marked text is the answers."""
    assert [sample["key"] for sample in samples[:3]] == ["n0", "good", "n1"]  # sources by turns
    tokenizer = encoder.files.tokenizer
    assert tokenizer is not None
    for sample, answer in zip(samples, [ANSWERS[0], "ho", ANSWERS[1], ANSWERS[2]], strict=True):
        assert sample["length"] == sample["planned_length"] > 0 and sample["error"] is None
        assert sum(run["num_tokens"] for run in sample["runs"]) == sample["length"]
        trained = [run for run in sample["runs"] if run["trained"]]
        assert sum(run["num_tokens"] for run in trained) == sample["label_tokens"]
        assert len(trained) == 1 and answer in trained[0]["text"]
        assert len(trained[0]["text"]) < len(answer) + 40
        assert answer not in "".join(run["text"] for run in sample["runs"] if not run["trained"])


@pytest.mark.parametrize("family", ["qwen2.5-vl", "internvl-small", "glm4v"])
def test_each_family_is_shown_as_it_is_counted(
    family: str,
    answers_data: Path,
    processors: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = processors / family
    if not folder.exists():
        _, folder = family_processor(family, tmp_path)
    samples = shown(
        capsys,
        answers_data / "a.jsonl",
        answers_data / "b.jsonl",
        "--processor",
        folder,
        "--show",
        9,
        "-o",
        tmp_path / "l",
    )
    encoder = ProcessorEncoder(folder)
    check_shown(samples, encoder)
    text = "".join(run["text"] for run in samples[0]["runs"])
    number = re.search(r"×(\d+)", text)
    assert number and int(number[1]) >= 20  # an image's tokens, and none of them twice
    assert text.count(f"×{number[1]}") == 1


def test_in_a_file_brackets_mark_what_is_trained(
    answers_data: Path, processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (answers_data / "c.jsonl").write_text(json.dumps({"messages": turns("hi", "ho")[:1]}) + "\n")
    command = ["-o", str(tmp_path / "l"), "--quiet", "--show", "1"]
    command += ["--processor", str(processors / "qwen2.5-vl")]
    assert main(["estimate", str(answers_data / "b.jsonl"), *command]) == 0
    head, text = capsys.readouterr().out.split("── ")
    assert "rejected  1" in head
    assert re.match(r"b good: \d+ tokens, 2 trained\n<\|im_start\|>system\n", text)
    assert text.endswith("<|im_start|>assistant\n⟦ho<|im_end|>⟧\n\n")
    assert main(["estimate", str(answers_data / "c.jsonl"), *command]) == 0
    assert "tokens, NOTHING is trained" in capsys.readouterr().out


@given(text=st.text(max_size=40), data=st.data())
def test_no_token_is_lost_at_the_borders(text: str, data: st.DataObject, words: Tokenizer) -> None:
    ids = np.array(words.encode(text).ids, np.int64)
    trained = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), bool
    )
    runs = list(runs_of(ids, trained, words))
    assert sum(run.num_tokens for run in runs) == len(ids)
    assert [run.trained for run in runs] == [
        bool(t) for n, t in enumerate(trained) if not n or t != trained[n - 1]
    ]
    shown = "".join(run.text for run in runs)
    whole = words.decode(ids.tolist(), skip_special_tokens=False)
    if "\ufffd" not in shown:
        assert shown == whole
    assert [c for c in whole if c.isascii()] == [c for c in shown if c.isascii()]


def test_tokens_that_the_tokenizer_does_not_have_are_numbers(words: Tokenizer) -> None:
    hello = words.encode("Hello, you").ids
    ids = np.array([*hello, 156669, -200, *hello, 156669, 156669, 156669, 156669], np.int64)
    [run] = runs_of(ids, np.zeros(len(ids), bool), words)
    assert run.text == "Hello, you⟨156669⟩⟨-200⟩Hello, you⟨156669⟩⟨156669⟩⟨156669⟩⟨156669⟩"
    first, second = runs_of(ids, np.arange(len(ids)) >= len(hello) + 1, words)
    assert first.text == "Hello, you⟨156669⟩" and second.text.startswith("⟨-200⟩Hello, you⟨")


@pytest.fixture(scope="module")
def words(processors: Path) -> Tokenizer:
    return Tokenizer.from_file(str(processors / "qwen2.5-vl" / "tokenizer.json"))
