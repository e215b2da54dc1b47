"""Recipes: what they may say, and what is told of one that cannot be understood."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx import PlanOptions, estimate_lengths
from packidx.errors import OptionError
from packidx.format.manifest import Layout
from packidx.recipe import (
    Estimate,
    Recipe,
    read_recipe,
    recipe_file,
    recipe_given,
    recipe_of,
)
from packidx.records.sources.find_shards import DataSet

WHOLE = """
sources:
  chats: data/chats/*.jsonl
  photos:
    path: [a.jsonl, b.jsonl]
    media-root: images
    columns: {messages: chat}
    tags: {role_tag: who}
    pair: chosen
estimate:
  processor: Qwen/Qwen2.5-VL-7B-Instruct
  processor_settings: {images.max_pixels: 602112}
  labels: last,no-eot
  remote_media: ["s3://corpus/images/"]
plan:
  capacity: 8192
  on-long: split
  mix: {photos: 2}
  holdout: 0.01
output: packs
"""


def test_every_key_comes_to_an_argument() -> None:
    recipe = recipe_of(WHOLE, "r.yaml")
    photos = Layout({"messages": "chat"}, {"role_tag": "who"}, "images", pair="chosen")
    assert recipe.sources == (
        DataSet("chats", ("data/chats/*.jsonl",), Layout()),
        DataSet("photos", ("a.jsonl", "b.jsonl"), photos),
    )
    assert recipe.estimate == {
        "processor": "Qwen/Qwen2.5-VL-7B-Instruct",
        "processor_settings": {"images.max_pixels": 602112},
        "labels": "last,no-eot",
        "remote_media": ["s3://corpus/images/"],
    }
    assert recipe.plan == PlanOptions(8192, on_long="split", mix=("photos=2",), holdout=0.01)
    assert recipe.output == "packs"
    assert recipe.text == WHOLE


def test_the_keys_are_the_arguments_that_decide_a_table() -> None:
    arguments = list(inspect.signature(estimate_lengths).parameters)
    others = {"sources", "output", "workers", "engine", "fresh", "progress"}
    assert set(Estimate.__struct_fields__) == set(arguments) - others


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("capacity: 8192", "capcity: 8192", r"r\.yaml: plan\.capcity is not an option of a plan"),
        ("capacity: 8192", "capacity: many", r"plan: Expected `int`, got `str` - at `capacity`"),
        ("capacity: 8192", "", r"no plan\.capacity"),
        ("mix: {photos: 2}", "mix: 3", r"plan: Expected `array`, got `int` - at `mix`"),
        ("on-long: split", "on-long: cut", r"r\.yaml: on-long is 'cut': choose one of"),
        ("on-long: split", "on-long: split\n  on_long: drop", "plan gives a key twice"),
        ("labels: last", "lables: last", r"r\.yaml: estimate: .*unknown field `lables`"),
        ("pair: chosen", "pair: best", r"pair is 'best'"),
        ("media-root: images", "media_rot: images", r"sources\.photos: .* `media_rot`"),
        ("path: [a.jsonl, b.jsonl]", "path: [1]", r"\.photos: Expected `str`.* `path\[0\]`"),
        ("path: [a.jsonl, b.jsonl]", "", r"sources\.photos: .*missing required field `path`"),
        ("output: packs", "output: 3", "output is 3: it must be a folder"),
        ("output: packs", "outptu: packs", r"r\.yaml: outptu is not a key"),
        ("output: packs", "output: packs\noutput: packs", "not valid YAML: .*output"),
        ("{messages: chat}", "{message: chat}", "column"),
        ("  chats:", "  010:", r"sources has a name that YAML reads as 10: put it in quotes"),
        ("  chats:", "  1.10:", "reads as 1.1: put it in quotes"),
        ("  chats:", "  true:", "reads as True: put it in quotes"),
        ("{photos: 2}", "{1.10: 2}", r"plan\.mix has a name that YAML reads as 1\.1: put it"),
        ("sources:", "%YAML 1.1\n---\nsources:", "leave %YAML out"),
        ("sources:", "# of 2024\n%YAML 1.1\n---\nsources:", "leave %YAML out"),
    ],
)
def test_what_cannot_be_understood_is_named(old: str, new: str, said: str) -> None:
    assert old in WHOLE
    with pytest.raises(OptionError, match=said):
        recipe_of(WHOLE.replace(old, new), "r.yaml")


@pytest.mark.parametrize("text", ["", "[]", "3", "a: b", "sources:\nplan: {capacity: 8}", "\t{"])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"r\.yaml"):
        recipe_of(text, "r.yaml")


words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=9
)


@given(
    st.lists(words, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["processor", "labels", "media_root", "transform"]), words),
    st.integers(1, 1 << 20),
    words,
)
def test_what_is_written_is_read_again(
    sources: list[str], estimate: dict[str, Any], capacity: int, output: str
) -> None:
    plan = PlanOptions(capacity, seed=7)
    recipe = Recipe(tuple(sources), estimate, plan, output, text="")
    if "transform" in estimate:
        estimate["seed"] = 7
    made = recipe_given(sources, estimate | {"capacity": capacity, "seed": 7}, output)
    assert made == recipe == recipe_of(made.text, "r.yaml")


def test_which_files_are_recipes(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(WHOLE)
    assert recipe_file(str(path)) == read_recipe(str(path))
    records = tmp_path / "a.jsonl"
    records.write_text(json.dumps({"text": "a"}) + "\n")
    assert recipe_file(str(records)) is None
    path.write_text("photos: {file_name: a.jsonl}\n")  # a mix of data sets is a source
    assert recipe_file(str(path)) is None
    path.write_text("cutoff_len: 2048\nneat_packing: true\n")
    with pytest.raises(OptionError, match=r"r\.yaml: cutoff_len is not a key: known are sources"):
        recipe_file(str(path))
    with pytest.raises(OptionError, match="cannot read"):
        read_recipe(str(tmp_path / "none.yaml"))
