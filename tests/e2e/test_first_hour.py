"""What people type first, and what they get: each of these was an error, or false words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from packidx_cli.main import main

import packidx
from packidx.errors import MismatchError, OptionError
from packidx.recipe import pack_recipe


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: Path) -> Path:
    """A working folder with dialogues, and the processor under the name `proc`."""
    monkeypatch.chdir(tmp_path)
    Path("proc").symlink_to(processors / "qwen2.5-vl")
    Path("data").mkdir()
    with open("data/chats.jsonl", "w") as file:
        for number in range(40):
            turns = [
                {"role": "user", "content": f"{number} " * (number + 1)},
                {"role": "assistant", "content": "yes"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    return tmp_path


def packed(*more: str) -> int:
    base = ["pack", "data", "--processor", "proc", "--capacity", "256", "-o", "data/packs"]
    return main([*base, "--quiet", *more])


def test_what_one_would_write_in_python(here: Path) -> None:
    packidx.estimate_lengths({"vqa": "data/chats.jsonl"}, "lengths", processor="proc")
    planned = packidx.plan_packs("lengths", "index", capacity=256, mix={"vqa": 2})
    assert planned.snapshot.options.weights == {"vqa": "2"}
    Path("recipe.yaml").write_text(
        "sources: data\nestimate: {processor: proc}\nplan: {capacity: 256}\noutput: packs\n"
    )
    assert pack_recipe("recipe.yaml").plan.snapshot.result.num_samples == 40
    with pytest.raises(OptionError, match="nowhere.yaml"):
        pack_recipe("nowhere.yaml")


@pytest.mark.parametrize("labels", [None, "last"])
def test_a_dataset_takes_a_processors_name(
    here: Path, processors: Path, labels: str | None
) -> None:
    from packidx.encode import ProcessorEncoder
    from packidx.torch import PackedDataset

    settings = {"images.max_pixels": 602112}
    packidx.estimate_lengths(
        "data", "lengths", processor="proc", processor_settings=settings, labels=labels
    )
    packidx.plan_packs("lengths", "index", capacity=256)
    ours = ProcessorEncoder("proc", labels or "all", settings=settings)
    named, made = PackedDataset("index", "proc"), PackedDataset("index", ours)
    assert len(named) > 3
    for k in range(len(named)):
        for one, other in zip(named[k].samples, made[k].samples, strict=True):
            assert one["input_ids"].equal(other["input_ids"])
            assert one["labels"].equal(other["labels"])
    verify = ["verify", "index", "--processor", "proc", "--sample", "9"]
    assert main([*verify, "--processor-set", "images.max_pixels=602112"]) == 0
    with pytest.raises(MismatchError) as caught:
        PackedDataset("index", str(processors / "qwen3-vl"))
    first, *settings_told = str(caught.value).splitlines()
    assert "were counted by proc, and encode is" in first
    assert "qwen3-vl" in first
    assert len(settings_told) == 7  # six, and how many more there are
    assert "more setting" in settings_told[-1]


SCRIPT = """
import packidx
summary = packidx.estimate_lengths("data", "lengths", processor="proc", workers=2)
print(summary.num_samples, "counted")
"""


def test_a_script_needs_no_main_guard(here: Path) -> None:
    with open("data/chats.jsonl") as file:
        lines = file.read()
    for number in range(4):  # for two processes
        Path(f"data/chats-{number}.jsonl").write_text(lines * 20)
    Path("count.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "count.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{40 + 4 * 20 * 40} counted\n"


def test_a_processor_itself_and_guessed_lengths(
    here: Path, processors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoProcessor

    from packidx.torch import PackedDataset

    processor = AutoProcessor.from_pretrained(processors / "qwen2.5-vl")
    with pytest.raises(OptionError, match="give the folder or name that it is loaded from"):
        packidx.estimate_lengths("data", "lengths", processor=processor)
    packidx.estimate_lengths("data", "lengths", processor="proc")
    packidx.plan_packs("lengths", "index", capacity=256)
    ids = [
        PackedDataset("index", encode)[0].samples[0]["input_ids"] for encode in (processor, "proc")
    ]
    assert ids[0].equal(ids[1])
    packidx.estimate_lengths("data", "guessed")
    packidx.plan_packs("guessed", "guesses", capacity=512)
    with pytest.raises(
        MismatchError, match="not all lengths of the plan are exact: read it with on_mismatch='fit'"
    ):
        [*PackedDataset("guesses", "proc")]
    with pytest.raises(OptionError, match="capacity is '2048', which is not an integer"):
        packidx.plan_packs("lengths", "index", capacity="2048")
    assert packed() == 0
    capsys.readouterr()
    assert main(["estimate", "data", "-o", "data/packs"]) == 1
    assert "holds index, which is of no lengths table" in capsys.readouterr().err


def test_plan_takes_the_folder_that_pack_wrote(here: Path) -> None:
    assert packed() == 0
    options = ["--capacity", "128", "--quiet"]
    assert main(["plan", "data/packs", "-o", "data/packs/index", *options]) == 0
    index = packidx.open_index("data/packs")
    assert (index.capacity, index.snapshot.lengths.num_samples) == (128, 40)
    # A folder that holds a table itself is that table, whatever lies below it.
    pl.DataFrame({"length": [5, 6]}).write_parquet("data/packs/own.parquet")
    assert main(["plan", "data/packs", "-o", "own", *options]) == 0
    assert packidx.open_index("own").snapshot.lengths.num_samples == 2


def test_options_that_make_no_sense_say_what_to_write(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packidx.estimate_lengths({"chats": "data/chats.jsonl"}, "lengths", processor="proc")
    for name, value, says in (
        ("margin", "0.1", "margin is '0.1', which is not a number"),
        ("mix", 2, "write {'SOURCE': WEIGHT}, such as {'photos': 2}"),
        ("mix", [("chats", 2)], "such as {'photos': 2}"),
    ):
        with pytest.raises(OptionError, match=says):
            packidx.plan_packs("lengths", "index", capacity=256, **{name: value})
    ignored = packidx.estimate_lengths("data", "no", processor="proc", ignore="messages")
    assert ignored.num_rejected == 40
    plan = ["plan", "lengths", "-o", "index", "--capacity", "256", "--quiet"]
    assert main([*plan, "--mix", "chats=100%", "--global-batch", "4"]) == 0
    assert "options" not in capsys.readouterr().out  # what nobody gave
    index = packidx.open_index("index")
    state = {"version": 1, "snapshot_id": index.id, "seed": 0, "epoch": 0, "global_batch": 4}
    Path("state.json").write_text(json.dumps({**state, "position": 4}))
    packidx.estimate_lengths("data/chats.jsonl", "others", processor="proc", labels="last")
    assert main(["plan", "others", "-o", "index", "--continue", "state.json"]) == 1
    assert index.snapshot.lengths.fingerprint[:12] + ", others has" in capsys.readouterr().err
