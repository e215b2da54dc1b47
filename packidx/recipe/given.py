"""Recipes as the command line has them: a file, or sources and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.unique_keys import load_yaml
from packidx.plan.options import PlanOptions
from packidx.recipe.keys import SECTIONS
from packidx.recipe.recipe import Recipe, read_recipe, recipe_of, written
from packidx.records.sources.mixes import is_mix

_ENDINGS = (".yaml", ".yml")


def recipe_file(path: str) -> Recipe | None:
    """The recipe at `path`; None where it is a source of records, or a mix of sources.

    Raises:
        OptionError: it is a recipe that cannot be understood, or another program's file.
    """
    if not path.lower().endswith(_ENDINGS) or not storage.is_file(path):
        return None
    try:
        value = load_yaml(storage.read(path))
    except (OSError, ValueError):
        return read_recipe(path)  # which says what is wrong
    if isinstance(value, dict) and value.keys() & {"sources", "estimate"}:
        return read_recipe(path)
    if not isinstance(value, dict):
        return read_recipe(path)
    if is_mix(value):
        return None
    raise OptionError(
        f"{path} is no recipe, which has {', '.join(f'{name}:' for name in SECTIONS)}, and no mix "
        "of data sets: what the file of another trainer says is written as docs/recipes.md has it"
    )


def recipe_given(
    sources: Sequence[str], estimate: Mapping[str, Any], plan: Mapping[str, Any], output: str
) -> Recipe:
    """The recipe that a command line comes to, checked as a file's is.

    Raises:
        OptionError: an option cannot be understood.
    """
    asked = Recipe(tuple(sources), dict(estimate), PlanOptions(**plan), None, output)
    return recipe_of(written(asked), "the command line")
