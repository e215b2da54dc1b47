"""`estimate --show`: samples as the model will see them, what is trained marked."""

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

from packidx.encode import ProcessorEncoder
from packidx.inspect.shown import runs_of

ANSWERS = ["Ein Rotkehlchen 🐦.", "Birke", "Ja, naïve⟦x⟧"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
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


def check(samples: list[dict[str, Any]], encoder: ProcessorEncoder) -> None:
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
    data: Path,
    processors: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = processors / family
    if not folder.exists():
        _, folder = family_processor(family, tmp_path)
    samples = shown(
        capsys,
        data / "a.jsonl",
        data / "b.jsonl",
        "--processor",
        folder,
        "--show",
        9,
        "-o",
        tmp_path / "l",
    )
    encoder = ProcessorEncoder(folder)
    check(samples, encoder)
    text = "".join(run["text"] for run in samples[0]["runs"])
    number = re.search(r"×(\d+)", text)
    assert number and int(number[1]) >= 20  # an image's tokens, and none of them twice
    assert text.count(f"×{number[1]}") == 1


def test_in_a_file_brackets_mark_what_is_trained(
    data: Path, processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "c.jsonl").write_text(json.dumps({"messages": turns("hi", "ho")[:1]}) + "\n")
    command = ["-o", str(tmp_path / "l"), "--quiet", "--show", "1"]
    command += ["--processor", str(processors / "qwen2.5-vl")]
    assert main(["estimate", str(data / "b.jsonl"), *command]) == 0
    head, text = capsys.readouterr().out.split("── ")
    assert "rejected  1" in head
    assert re.match(r"b good: \d+ tokens, 2 trained\n<\|im_start\|>system\n", text)
    assert text.endswith("<|im_start|>assistant\n⟦ho<|im_end|>⟧\n\n")
    assert main(["estimate", str(data / "c.jsonl"), *command]) == 0
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
