"""`packidx plan --config`: a recipe's section means the same plan as options do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.plan import PlanOptions
from packidx.plan.config import read_config
from packidx.plan.cost_model import DEFAULT_PRESET
from packidx.plan.options import DEFAULTS, OPTIONS, STRATEGIES
from packidx.plan.resolved import DEFAULT_MARGINS, with_defaults

RECIPE = """\
recipe: FinetuneRecipeForVLM
seed: 1234
step_scheduler: {global_batch_size: 144}
model: {torch_dtype: bfloat16, attn_implementation: sdpa}
dataset: {split: train}
packed_sequence:
  pretokenize: true
  max_length: 2048
  pack_size: 2048
  collate_max_length: 2048
  packing_ratio: 0.9
  drop_long_samples: true
  balance_media_tokens: true
  packing_format: neat
  attn_implementation: sdpa
  post_tokenize_hook_fn: null
validation_dataset: none
optimizer: {lr: 5.0e-6}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    values = [37 * n % 900 + 1 for n in range(200)] + [2500]
    path = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"length": values, "source": ["a", "b", "c"] * 67}), path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the manifest printed and what went to stderr."""
    code = main(["plan", *args, "--json", "--quiet"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_a_recipe_is_the_plan_of_its_options(
    tmp_path: Path, lengths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, RECIPE)
    code, planned, notes = run(capsys, lengths, "-o", str(tmp_path / "index"), "--config", path)
    assert code == 0
    said = ["--capacity", "2048", "--margin", "0.1"]
    _, same, _ = run(capsys, lengths, "-o", str(tmp_path / "index"), *said, "--on-long", "drop")
    assert planned["snapshot_id"] == same["snapshot_id"] and same["existed"]
    for key in ("pretokenize", "collate_max_length", "packing_format", "attn_implementation"):
        assert f"note: {path}: packed_sequence.{key} changes no plan" in notes
    assert "one fewer per sample" in notes


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("pack_size: 512", "capacity", 512),
        ("packing_ratio: 0.9", "margin", 0.1),
        ("packing_ratio: 1", "margin", 0.0),
        ("drop_long_samples: true", "on_long", "drop"),
        ("drop_long_samples: false", "on_long", "error"),
        ("balance_media_tokens: true", "schedule", "stratified"),
        ("balance_media_tokens: false", "schedule", "random"),
    ],
)
def test_what_each_key_of_a_recipe_means(
    tmp_path: Path, text: str, field: str, value: object
) -> None:
    options, _ = read_config(write(tmp_path, f"packed_sequence:\n  {text}\n"))
    assert options == {field: value} and type(options[field]) is type(value)


def test_defaults_that_the_help_puts_into_words_are_those_of_a_plan() -> None:
    said = {name: each.shown_default or "" for name, each in OPTIONS.items()}
    shares = [f"{float(share):g}" for share in DEFAULT_MARGINS.values()]
    assert said["margin"].startswith("{}; {} for precomputed lengths, {} for".format(*shares))
    assert said["cost"] == DEFAULT_PRESET
    assert said["micro_steps"].startswith(str(DEFAULTS["micro_steps"]))
    in_words = {name for name, text in said.items() if text} - {"micro_steps"}
    assert {DEFAULTS[name] for name in in_words} == {None}  # others say themselves


def test_the_format_has_every_option_of_a_manifest() -> None:
    text = (Path(__file__).parents[3] / "FORMAT.md").read_text()
    table = text.split("| `options`, all resolved |")[1].split("\n\n")[0].splitlines()[2:]
    quoted = re.compile(r"`([^`]+)`")
    values: dict[str, list[str]] = {}
    for row in table:
        cells = row.split(" | ")
        names, parts = quoted.findall(cells[0]), cells[1].split("; ")
        said = parts if len(parts) == len(names) else [cells[1]] * len(names)
        values |= {name: quoted.findall(part) for name, part in zip(names, said, strict=True)}
    stored = with_defaults(PlanOptions(8), "exact").to_json().keys()
    assert (
        values.keys()
        == stored | {"lanes", "memory", "align_media"}
        == set(Options.__struct_fields__)
    )
    for name in stored & OPTIONS.keys():
        assert not OPTIONS[name].choices or values[name] == list(OPTIONS[name].choices)
    assert values["strategy"] == list(STRATEGIES)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (["--capacity", "1024"], {"capacity": 1024, "margin": 0.1}),
        (["--margin", "0.25"], {"margin": 0.25, "capacity": 2048}),
        (["--seed", "5"], {"seed": 5, "margin": 0.1}),
        (["--mix", "b=2"], {"weights": {"b": "2"}}),
    ],
)
def test_the_command_line_wins(
    tmp_path: Path,
    lengths: str,
    capsys: pytest.CaptureFixture[str],
    said: list[str],
    wanted: dict[str, Any],
) -> None:
    path = write(tmp_path, RECIPE)
    arguments = [lengths, "-o", str(tmp_path / "index"), "--config", path, *said]
    code, planned, _ = run(capsys, *arguments)
    assert code == 0 and planned["options"].items() >= wanted.items()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("packed_sequence: {pack_ratio: 0.9}", "Object contains unknown field `pack_ratio`"),
        ("packed_sequnce: {pack_size: 8}", "has no section packed_sequence:"),
        ("model: {}", "has no section packed_sequence:"),
        ("packed_sequence: 8", "packed_sequence is 8: write its keys under it"),
        ("- 8", "is not a recipe of NeMo Automodel"),
        ("", "is not a recipe of NeMo Automodel"),
        ("packed_sequence: [", "is not valid YAML: line 1, column 19"),
        ("packed_sequence: !!python/object:os.system {}", "could not determine a constructor"),
        ("packed_sequence:\n  a: 1\n  a: 2", "line 3, column 3: found duplicate key"),
        ("packed_sequence: {pack-size: 8, pack_size: 8}", "gives a key twice, with - and _"),
        ("packed_sequence: {pack_size: 8, packed_sequence_size: 9}", "contradicts pack_size"),
        ("packed_sequence: {pack_size: 2048.5}", "Expected `int | null`, got `float` - at `pack_s"),
        ("packed_sequence: {pack_size: 0}", "capacity is 0: choose how many tokens"),
        ("packed_sequence: {pack_size: -8}", "capacity is -8: choose how many tokens"),
        ("packed_sequence: {packing_ratio: 1.5}", "Expected `float` <= 1.0 - at `packing_ratio`"),
        ("packed_sequence: {packing_ratio: much}", "got `str` - at `packing_ratio`"),
        ("packed_sequence: {drop_long_samples: 1}", "got `int` - at `drop_long_samples`"),
        ("packed_sequence: {max_packs: true}", "got `bool` - at `max_packs`"),
        (
            "packed_sequence: {max_packs: 7}",
            "a plan keeps all packs: leave it out and give the trainer max_steps",
        ),
        ("packed_sequence: {packing_format: bshd}", "Invalid enum value 'bshd' - at `packing_f"),
        ("packed_sequence: {prepacked: true}", "prepacked is True: no plan can honour it"),
        ("packed_sequence: {enabled: false}", "packing is off, so there is nothing to plan"),
        (
            "packed_sequence: {pack_size: 4096, max_length: 1024}",
            "max_length is 1024, below pack_size 4096",
        ),
        ("packed_sequence: {post_tokenize_hook_fn: a.b}", "as --transform or --encode"),
    ],
)
def test_what_is_not_understood(
    tmp_path: Path,
    lengths: str,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        read_config(path)
    assert path in str(caught.value) and message in str(caught.value)
    assert "\n" not in str(caught.value)
    code, _, err = run(capsys, lengths, "-o", str(tmp_path / "index"), "--config", path)
    assert code == 1 and path in err.replace("\n", "") and not (tmp_path / "index").exists()
