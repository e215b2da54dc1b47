"""Other trainers' files: every key is translated, told to change no plan, or refused by name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.errors import OptionError
from packidx.plan.options.config import read_config
from packidx.plan.options.trainers.recognise import TRAINERS

DOCS = Path(__file__).parents[3] / "docs" / "trainer-files.md"

LMMS = """\
trainer_type: fsdp2_trainer
dataset_config:
  dataset_type: qwen3_vl_iterable
  dataset_path: data/mix.yaml
  packing: true
  packing_strategy: window_100
  packing_length: 10240
  filter_overlong_workers: 8
  max_length: null
  video_max_frames: 512
trainer_args: {learning_rate: 2.0e-4, per_device_train_batch_size: 1, sp_ulysses_degree: 2}
model_config: {load_from_pretrained_path: some/model}
"""
LMMS_LIST = """\
- type: trainer
  config:
    trainer_type: fsdp2_trainer
    dataset_config: {packing: true, packing_strategy: first_fit, filter_overlong: false}
    per_device_train_batch_size: 1
"""
LOONGFORGE = """\
data: {input_format: wds, wds_dir: /data/wds, packed_wds_dir: /data/packed}
model: {model_type: some-model, processor_kwargs: {min_pixels: 3136}}
media_preprocess: {image: custom_image_preprocess}
sample: {max_token_len: 8192, sample_type: packed_multi_mix_qa}
packing: {algorithm: best_fit_decreasing, validate_pack_plan: false}
packed_wds: {maxsize: 2000000000, maxcount: 1000}
process: {workers: 8, max_shards: 0}
log: {level: INFO}
"""
AXOLOTL = """\
base_model: some/model
datasets: [{path: data.jsonl, type: chat_template}]
sample_packing: true
eval_sample_packing: false
sequence_len: 4096
excess_length_strategy: truncate
sample_packing_bin_size: 50
pad_to_sequence_len: true
micro_batch_size: 2
gradient_accumulation_steps: 4
val_set_size: 0.05
learning_rate: 0.0002
"""
LLAMAFACTORY = """\
model_name_or_path: some/model
stage: sft
finetuning_type: lora
dataset: identity
cutoff_len: 4096
neat_packing: true
per_device_train_batch_size: 1
learning_rate: 1.0e-4
"""
SWIFT = '{"model": "some", "packing": true, "max_length": 4096, "packing_strategy": "binpack"}'
TRL = """\
model_name_or_path: some/model
dataset_name: some/data
packing: true
packing_strategy: bfd-requeue
max_length: 2048
pad_to_multiple_of: 64
"""


def read(folder: Path, text: str, named: str | None = None) -> tuple[dict[str, Any], list[str]]:
    path = folder / "trainer.yaml"
    path.write_text(text)
    return read_config(str(path), named)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (
            LMMS,
            {"capacity": 10240, "on_long": "drop"},
            ["LMMS Engine's", "packing_strategy is 'window_100'", "filter_overlong is not given"],
        ),
        (
            LMMS_LIST,
            {"capacity": 32000, "on_long": "error"},
            ["packing_length is not given: LMMS Engine's default, 32000", "next-fit` comes near"],
        ),
        (
            LOONGFORGE,
            {"capacity": 8192, "on_long": "drop", "group_by": "media_type"},
            ["LoongForge's", "packidx export wds --max-count 1000", "--strategy bfd"],
        ),
        (
            AXOLOTL,
            {
                "capacity": 4096,
                "on_long": "truncate",
                "max_samples": 50,
                "pad_pack_to": 4096,
                "holdout": 0.05,
            },
            ["axolotl's", "here it is 2 packs", "eval_sample_packing changes no plan"],
        ),
        (
            LLAMAFACTORY,
            {"capacity": 4096, "on_long": "truncate"},
            ["LLaMA-Factory's", "cutoff_len shortens the turns of a long sample"],
        ),
        (
            SWIFT,
            {"capacity": 4096, "on_long": "drop"},
            ["ms-swift's", "--strategy window:1000", "truncation_strategy is not given"],
        ),
        (
            TRL,
            {"capacity": 2048, "on_long": "split", "pad_pack_to": 64},
            ["TRL's", "a plan packs all at once"],
        ),
    ],
)
def test_a_whole_file_of_each_trainer(
    tmp_path: Path, text: str, options: dict[str, Any], words: list[str]
) -> None:
    read_options, notes = read(tmp_path, text)
    assert read_options == options
    for word in words:
        assert any(word in note for note in notes), (word, notes)
    assert "its other keys are not about packs" in notes[0]
    assert "learning_rate" not in " ".join(notes)


SWITCHED_ON = {
    "nemo": {"packed_sequence.pack_size": 2048},
    "lmms": {"dataset_config.packing": True, "dataset_config.packing_length": 2048},
    "loongforge": {"sample.max_token_len": 2048},
    "axolotl": {"sample_packing": True, "sequence_len": 2048},
    "llamafactory": {"neat_packing": True, "cutoff_len": 2048},
    "swift": {"packing": True, "packing_length": 2048},
    "trl": {"packing": True, "max_length": 2048},
}


def with_key(trainer: str, name: str, value: Any) -> str:
    """A file with little more than one key, as JSON."""
    file: dict[str, Any] = {}
    for dotted, of_key in {**SWITCHED_ON[trainer], name: value}.items():
        section, _, member = dotted.rpartition(".")
        (file.setdefault(section, {}) if section else file)[member] = of_key
    return json.dumps(file)


TRANSLATED = [
    ("nemo", "packed_sequence.packed_sequence_size", 2048, {"capacity": 2048}),
    ("nemo", "packed_sequence.pad_to_multiple_of", 16, {"align": 16}),
    ("nemo", "packed_sequence.packing_strategy", "thd", {}),
    ("nemo", "packed_sequence.split_across_pack", False, {}),
    ("lmms", "dataset_config.packing_strategy", "balanced", {}),
    ("lmms", "dataset_config.max_length", 2048, {}),
    ("loongforge", "sample.sample_type", "packed_captioning", {}),
    ("loongforge", "packing.algorithm", "hashbucket", {}),
    ("axolotl", "excess_length_strategy", "raise", {"on_long": "error"}),
    ("axolotl", "sample_packing_sequentially", True, {"strategy": "next-fit"}),
    ("axolotl", "sample_packing_sequentially", False, {}),
    ("axolotl", "pad_to_multiple_of", 128, {"pad_pack_to": 128}),
    ("axolotl", "val_set_size", 0, {}),
    ("axolotl", "curriculum_sampling", False, {}),
    ("llamafactory", "packing", False, {}),
    ("llamafactory", "packing", True, {}),
    ("llamafactory", "val_size", 0.1, {"holdout": 0.1}),
    ("swift", "truncation_strategy", "right", {"on_long": "truncate"}),
    ("swift", "packing_strategy", "sequential", {"strategy": "next-fit"}),
    ("swift", "max_length", 2048, {"capacity": 2048}),
    ("trl", "packing_strategy", "bfd", {"on_long": "truncate"}),
    ("trl", "pad_to_multiple_of", "auto", {}),
]


@pytest.mark.parametrize(("trainer", "name", "value", "options"), TRANSLATED)
def test_what_a_key_is_translated_to(
    tmp_path: Path, trainer: str, name: str, value: Any, options: dict[str, Any]
) -> None:
    first = next(iter(SWITCHED_ON[trainer].items()))
    without, _ = read(tmp_path, with_key(trainer, *first), trainer)
    with_it, _ = read(tmp_path, with_key(trainer, name, value), trainer)
    assert with_it == {**without, **options}


REFUSED = [
    ("nemo", "packed_sequence.split_across_pack", True, "on-long: split"),
    ("nemo", "packed_sequence.prepacked", True, "before they are packed"),
    ("nemo", "packed_sequence.packing_strategy", "mine.Packing", "choose one of neat, thd"),
    ("lmms", "dataset_config.packing", False, "packing is off, so there is nothing to plan"),
    ("lmms", "dataset_config.packing_strategy", "window_0", "choose one of first_fit"),
    ("lmms", "dataset_config.packing_length", 0, "turns packing off"),
    ("lmms", "dataset_config.max_length", 1024, "below packing_length 2048"),
    ("lmms", "dataset_config.max_length", 4096, "above packing_length 2048"),
    ("lmms", "dataset_config.packing_lenght", 9, "did you mean dataset_config.packing_length"),
    ("lmms", "dataset_config.overlong_policy", 9, "may be about packs: known are dataset_config"),
    ("loongforge", "sample.max_len", 9, "unknown key sample.max_len: known are max_token_len"),
    ("loongforge", "sample.sample_type", "vqa", "choose one of packed_multi_mix_qa"),
    ("loongforge", "process.max_shards", 3, "estimate only those shards"),
    ("axolotl", "sequence_length", 9, "did you mean sequence_len?"),
    ("axolotl", "max_packed_sequence_len", 9, "may be about packs"),
    ("axolotl", "sample_packing", "yes please", "must be true or false"),
    ("axolotl", "curriculum_sampling", True, "in the order of a schedule"),
    ("axolotl", "min_sample_len", 10, "--exclude"),
    ("axolotl", "val_set_size", 100, "a number of samples, which no plan can honour"),
    ("axolotl", "rl", "dpo", "not packed by this file's keys"),
    ("llamafactory", "neat_packing", False, "packing is false: packing is off"),
    ("llamafactory", "stage", "pt", "cuts them anywhere"),
    ("llamafactory", "stage", "dpo", "pack no samples of such training"),
    ("llamafactory", "max_samples", 100, "--max-packs N"),
    ("llamafactory", "interleave_probs", "0.5,0.5", "--mix NAME=WEIGHT"),
    ("llamafactory", "mix_strategy", "interleave_under", "--mix NAME=WEIGHT"),
    ("swift", "max_length", 1024, "and packing_length 2048: a plan has one length"),
    ("swift", "truncation_strategy", "left", "give right or delete"),
    ("swift", "interleave_prob", [0.5, 0.5], "--mix NAME=WEIGHT"),
    ("trl", "packing", False, "packing is off"),
    ("trl", "packing_strategy", "wrapped", "bfd_split cuts only those"),
    ("trl", "truncation_mode", "keep_end", "give keep_start"),
    ("trl", "max_seq_length", 9, "write max_length"),
]


@pytest.mark.parametrize(("trainer", "name", "value", "words"), REFUSED)
def test_what_no_plan_can_honour(
    tmp_path: Path, trainer: str, name: str, value: Any, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, with_key(trainer, name, value), trainer)
    text = str(caught.value)
    assert words in text and name.removeprefix("neat_") in text and "\n" not in text
    assert str(tmp_path / "trainer.yaml") in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{packing: true, max_length: 8}", "--config-format llamafactory|swift|trl"),
        (
            "{sequence_len: 8, cutoff_len: 8}",
            "axolotl (sequence_len) or LLaMA-Factory (cutoff_len)",
        ),
        ("{dataset_config: {}, sample: {}}", "--config-format lmms|loongforge"),
    ],
)
def test_a_file_that_may_be_several_trainers(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OptionError, match="say whose it is") as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


def test_the_trainer_may_be_named(tmp_path: Path) -> None:
    text = "{packing: true, max_length: 8}"
    assert read(tmp_path, text, "swift")[0] == {"capacity": 8, "on_long": "drop"}
    assert read(tmp_path, text, "trl")[0] == {"capacity": 8, "on_long": "truncate"}
    with pytest.raises(OptionError, match="has no key of axolotl about packs"):
        read(tmp_path, text, "axolotl")
    with pytest.raises(OptionError, match="'torchtune': choose one of nemo, lmms, loongforge, "):
        read(tmp_path, text, "torchtune")


def test_two_keys_that_contradict_each_other(tmp_path: Path) -> None:
    text = "packed_sequence: {pack_size: 8, packed_sequence_size: 16}"
    with pytest.raises(OptionError, match="pack_size and packed_sequence.packed_sequence_size con"):
        read(tmp_path, text)


def test_our_section_may_stand_in_any_trainers_file(tmp_path: Path) -> None:
    options, _ = read(tmp_path, AXOLOTL + "packidx: {align: 8}\n")
    assert options["align"] == 8 and options["capacity"] == 4096
    with pytest.raises(OptionError, match="packidx.capacity and the keys of axolotl say the same"):
        read(tmp_path, AXOLOTL + "packidx: {capacity: 8}\n")


def test_what_is_not_given_is_not_told_of(tmp_path: Path) -> None:
    """A null is as good as no key, in every file."""
    text = TRL + "eval_packing: null\ntruncation_mode: none\n"
    assert read(tmp_path, text)[0] == read(tmp_path, TRL)[0]


@pytest.mark.parametrize("text", [LMMS, LOONGFORGE, AXOLOTL, LLAMAFACTORY, SWIFT, TRL])
def test_the_printed_command_is_the_same_plan(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "lengths with spaces.parquet"
    values = [37 * n % 900 + 1 for n in range(200)]
    table = {"length": values, "num_images": [n % 2 for n in range(200)], "num_videos": [0] * 200}
    pq.write_table(pa.table(table), lengths)
    config, index = tmp_path / "file.yaml", tmp_path / "index"
    config.write_text(text)
    given = ["plan", str(lengths), "-o", str(index), "--config", str(config), "--json"]
    assert main([*given, "--seed", "3"]) == 0
    first, notes = capsys.readouterr()
    line = re.search(r"^note: .* is the same as (packidx plan .*)$", notes, re.MULTILINE)
    assert line and "--seed 3" in line[1]
    assert main([*shlex.split(line[1])[1:], "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["existed"] and second["snapshot_id"] == json.loads(first)["snapshot_id"]


def test_naming_a_trainer_of_no_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "lengths", "--config-format", "trl"]) == 2
    assert "give --config FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", TRAINERS)
def test_the_documentation_has_every_key(name: str) -> None:
    trainer = TRAINERS[name]
    part = DOCS.read_text().split(f"\n## {trainer.title}\n")[1].split("\n## ")[0]
    rows = [f"| `{key}` | {of.says} | {default(of)} |" for key, of in trainer.keys.items()]
    shown = [line for line in part.splitlines() if line.startswith("| `")]
    assert shown == rows
    assert f"`--config-format {name}`" in part and trainer.release in part
    for key in trainer.telling:
        assert f"`{key.replace('=', ': ')}`" in part


def default(key: Any) -> str:
    if key.default is None:
        return ""
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
