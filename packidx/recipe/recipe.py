"""A recipe: sources, how they are counted, and how they are planned, in one YAML file.

    sources:
      chats: data/chats/*.jsonl
      photos:
        path: data/photos.jsonl
        media_root: data/images
    estimate:
      processor: Qwen/Qwen2.5-VL-7B-Instruct
    plan:
      capacity: 8192
    output: packs

Its words are those of the commands: `estimate:` has the arguments of `estimate_lengths`, `plan:`
the fields of `PlanOptions`. Relative paths start from the working directory, as they do on the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from packidx.errors import OptionError
from packidx.format.manifest import Layout
from packidx.io import storage
from packidx.io.option_files import dump_yaml, load_yaml, members, options_of, read_options, section
from packidx.plan.options import OPTIONS, PlanOptions
from packidx.records.sources.mixes import DataSet, is_mix

SAMPLED = 16
"""Samples that are encoded for real once a plan is made, unless a recipe says how many."""
SECTIONS = ("sources", "estimate", "plan", "verify", "output")

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], msgspec.Meta(min_length=1)]


class RecipeSource(Layout, frozen=True, kw_only=True):
    """A named source with a layout of its own."""

    path: Text | Texts


class Estimate(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of `estimate_lengths` that decide a table."""

    processor: Text | None = None
    processor_settings: dict[str, Any] | None = None
    trust_remote_code: bool | None = None
    encode: Text | None = None
    labels: Text | None = None
    transform: Text | None = None
    seed: int | None = None
    media_root: Text | None = None
    remote_media: list[Text] | None = None
    columns: dict[str, Text] | None = None
    tags: dict[str, Text] | None = None
    delimiter: Text | None = None
    pair: Text | None = None
    answers: Text | None = None
    ignore: list[Text] | None = None
    max_rejected: Text | int | float | None = None


class Verify(msgspec.Struct, forbid_unknown_fields=True):
    """The checks of a plan besides its structure."""

    sample: Annotated[int, msgspec.Meta(ge=0)] | None = None


@dataclass(frozen=True)
class Recipe:
    """A recipe that has been checked."""

    sources: tuple[str | DataSet, ...]
    """As the command line takes them, or named, with their own layout."""
    estimate: Mapping[str, Any]
    """Arguments of `estimate_lengths`."""
    plan: PlanOptions
    num_sampled: int | None = None
    """Samples that are encoded for real in the end; None leaves it to what is installed."""
    output: str | None = None
    """Folder or URL of lengths, index and report."""
    text: str = field(compare=False, kw_only=True)
    """The YAML."""


def read_recipe(path: str) -> Recipe:
    """The recipe in the file at `path`, which may be a URL.

    Raises:
        OptionError: it cannot be read, or says what cannot be understood; file and key are named.
    """
    return recipe_of(read_options(path, "recipe"), path)


def recipe_of(text: str, where: str) -> Recipe:
    """The recipe that `text` is.

    Args:
        where: what errors call it.

    Raises:
        OptionError: it cannot be understood.
    """
    keys = ", ".join(f"{name}:" for name in SECTIONS)
    given = options_of(text, where, f"recipe: write {keys}")
    if unknown := given.keys() - set(SECTIONS):
        raise OptionError(f"{where}: {min(unknown)} is not a key: known are {', '.join(SECTIONS)}")
    if "sources" not in given:
        raise OptionError(f"{where} has no sources: what is to be packed?")
    plan = members(f"{where}: plan", given.get("plan", {}))
    if unknown := plan.keys() - OPTIONS.keys():
        raise OptionError(f"{where}: plan.{min(unknown)} is not an option of a plan (docs/cli.md)")
    if "capacity" not in plan:
        raise OptionError(f"{where} has no plan.capacity: how many tokens may a pack hold?")
    for name in ("mix", "cost"):
        if isinstance(plan.get(name), dict):  # written name: weight, one on a line
            _check_names(f"{where}: plan.{name}", plan[name])
            plan[name] = [f"{key}={value}" for key, value in plan[name].items()]
    if isinstance(plan.get("cost"), list):
        plan["cost"] = ",".join(map(str, plan["cost"]))
    if isinstance(plan.get("mix"), str):
        plan["mix"] = plan["mix"].split(",")
    output = given.get("output")
    if output is not None and (not isinstance(output, str) or not output):
        raise OptionError(f"{where}: output is {output!r:.100}: it must be a folder or a URL")
    try:
        planned = section(f"{where}: plan", plan, PlanOptions, strict=False)  # 1e-3 is text
        sources = _sources(f"{where}: sources", given["sources"])
    except OptionError as error:
        words = str(error)
        raise OptionError(words if words.startswith(where) else f"{where}: {words}") from None
    estimate = section(f"{where}: estimate", given.get("estimate", {}), Estimate)
    verify = section(f"{where}: verify", given.get("verify", {}), Verify)
    return Recipe(sources, msgspec.to_builtins(estimate), planned, verify.sample, output, text=text)


def _sources(where: str, given: Any) -> tuple[str | DataSet, ...]:
    if isinstance(given, str) and given:
        return (given,)
    if isinstance(given, list) and given and all(isinstance(each, str) and each for each in given):
        return tuple(given)
    if not isinstance(given, dict) or not given:
        raise OptionError(
            f"{where} is {given!r:.100}: give a file, glob or folder, a list of them, or names "
            "with one each"
        )
    _check_names(where, given)
    return tuple(_source(f"{where}.{name}", name, entry) for name, entry in given.items())


def _check_names(where: str, given: Mapping[Any, Any]) -> None:
    """Raise an OptionError if a name is not text: 010 is the number 10, and null is nothing."""
    for name in given:
        if not isinstance(name, str):
            raise OptionError(f"{where} has a name that YAML reads as {name}: put it in quotes")


def _source(where: str, name: str, given: Any) -> DataSet:
    """A named source: a path, a list of paths, or a section with its layout."""
    entry = section(
        where, {"path": given} if isinstance(given, str | list) else given, RecipeSource
    )
    layout = Layout(**{name: getattr(entry, name) for name in Layout.__struct_fields__})
    paths = (entry.path,) if isinstance(entry.path, str) else tuple(entry.path)
    return DataSet(name, paths, layout)


_ENDINGS = (".yaml", ".yml")


def recipe_file(path: str) -> Recipe | None:
    """The recipe at `path`; None where it is a source of records, or a mix of sources.

    Raises:
        OptionError: it is a recipe that cannot be understood, or another program's file.
    """
    if not path.lower().endswith(_ENDINGS):
        return None
    if not storage.is_file(path):
        if storage.glob(path):
            return None
        raise OptionError(f"{path} is not there: name a recipe, or the sources to pack")
    try:
        value = load_yaml(storage.read(path))
    except (OSError, ValueError):
        return read_recipe(path)  # which says what is wrong
    if not isinstance(value, dict) or value.keys() & {"sources", "estimate"}:
        return read_recipe(path)
    if is_mix(value):
        return None
    raise OptionError(
        f"{path} is not a recipe, which has {', '.join(f'{name}:' for name in SECTIONS)}, and "
        "no mix "
        "of data sets: what the file of another trainer says is written as docs/recipes.md has it"
    )


def recipe_given(
    sources: Sequence[str], estimate: Mapping[str, Any], plan: Mapping[str, Any], output: str
) -> Recipe:
    """The recipe that a command line comes to, checked as a file's is.

    Raises:
        OptionError: an option cannot be understood.
    """
    stated = {"sources": sources, "estimate": estimate, "plan": plan, "output": output}
    text = dump_yaml({name: value for name, value in stated.items() if value})
    return recipe_of(text, "the command line")
