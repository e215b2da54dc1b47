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

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from packidx.encode.imports import has_torch
from packidx.errors import NotFoundInIndex, OptionError
from packidx.estimate import LengthsSummary, estimate_lengths
from packidx.format.manifest import Layout
from packidx.index import Index
from packidx.index.opening import open_index
from packidx.io import storage, urls
from packidx.io.option_files import (
    dump_yaml,
    load_yaml,
    options_of,
    read_members,
    read_options,
    read_section,
)
from packidx.plan.options import OPTIONS, PlanOptions
from packidx.plan.select.mixture import Mixture
from packidx.records.sources.find_shards import DataSet, find_shards, is_mix
from packidx.run.workers import Progress
from packidx.user_code import load_named

if TYPE_CHECKING:
    from packidx.inspect.verify import Check
    from packidx.plan import PlanSummary

__all__ = ["PackSummary", "Recipe", "pack", "pack_recipe", "read_recipe"]

SAMPLED = 16
"""Samples that are encoded for real once a plan is made."""
SECTIONS = ("sources", "estimate", "plan", "output")

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


@dataclass(frozen=True)
class Recipe:
    """A recipe that has been checked."""

    sources: tuple[str | DataSet, ...]
    """Sources as the command line takes them, or named, with their own layout."""
    estimate: Mapping[str, Any]
    """Arguments of `estimate_lengths`."""
    plan: PlanOptions
    output: str | None = None
    """Folder or URL of lengths, index and report."""
    text: str = field(compare=False, kw_only=True)
    """The YAML."""


def read_recipe(path: str) -> Recipe:
    """The recipe in the file at `path`, which may be a URL; an OptionError names file and key."""
    return recipe_of(read_options(path, "recipe"), path)


def recipe_of(text: str, where: str) -> Recipe:
    """The recipe that `text` is; an OptionError calls it `where`."""
    keys = ", ".join(f"{name}:" for name in SECTIONS)
    given = options_of(text, where, f"recipe: write {keys}")
    if unknown := given.keys() - set(SECTIONS):
        raise OptionError(f"{where}: {min(unknown)} is not a key: known are {', '.join(SECTIONS)}")
    if "sources" not in given:
        raise OptionError(f"{where} has no sources: what is to be packed?")
    plan = read_members(f"{where}: plan", given.get("plan", {}))
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
        planned = read_section(f"{where}: plan", plan, PlanOptions, strict=False)  # 1e-3 is text
        sources = _read_sources(f"{where}: sources", given["sources"])
    except OptionError as error:
        words = str(error)
        raise OptionError(words if words.startswith(where) else f"{where}: {words}") from None
    estimate = read_section(f"{where}: estimate", given.get("estimate", {}), Estimate)
    return Recipe(sources, msgspec.to_builtins(estimate), planned, output, text=text)


def _read_sources(where: str, given: Any) -> tuple[str | DataSet, ...]:
    if isinstance(given, str) and given:
        return (given,)
    if isinstance(given, list) and given and all(isinstance(each, str) and each for each in given):
        return tuple(given)
    if not isinstance(given, dict) or not given:
        text = "give a file, glob or folder, a list of them, or names with one each"
        raise OptionError(f"{where} is {given!r:.100}: {text}")
    _check_names(where, given)
    sources = []
    for name, stated in given.items():
        own = {"path": stated} if isinstance(stated, str | list) else stated
        entry = read_section(f"{where}.{name}", own, RecipeSource)
        layout = Layout(**{member: getattr(entry, member) for member in Layout.__struct_fields__})
        paths = (entry.path,) if isinstance(entry.path, str) else tuple(entry.path)
        sources.append(DataSet(name, paths, layout))
    return tuple(sources)


def _check_names(where: str, given: Mapping[Any, Any]) -> None:
    """Raise an OptionError if a name is not text: 010 is the number 10, and null is nothing."""
    for name in given:
        if not isinstance(name, str):
            raise OptionError(f"{where} has a name that YAML reads as {name}: put it in quotes")


def recipe_file(path: str) -> Recipe | None:
    """The recipe at `path`, or an OptionError; None if it is a source of records, or a mix of
    sources."""
    if not path.lower().endswith((".yaml", ".yml")):
        return None
    if not storage.is_file(path):
        if storage.glob(path):
            return None
        raise OptionError(f"{path} is not there: name a recipe, or the sources to pack")
    with contextlib.suppress(OSError, ValueError):  # `read_recipe` says what is wrong
        if is_mix(load_yaml(storage.read(path))):
            return None
    return read_recipe(path)


def recipe_given(sources: Sequence[str], options: Mapping[str, Any], output: str) -> Recipe:
    """The recipe that `options` of `packidx pack` make, checked as a file's is."""
    plan = {name: value for name, value in options.items() if name in OPTIONS}
    estimate = {name: value for name, value in options.items() if name not in OPTIONS}
    if "transform" in estimate and "seed" in plan:
        estimate["seed"] = plan["seed"]
    stated = {"sources": sources, "estimate": estimate, "plan": plan, "output": output}
    text = dump_yaml({name: value for name, value in stated.items() if value})
    return recipe_of(text, "the options")


RECIPE = "recipe.yaml"
REPORT = "report.html"
Doing = Callable[[str], None]
Source = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """The result of a call of `pack_recipe`."""

    output: str
    index: str
    """``INDEX@ID``, as commands and readers take it."""
    lengths: LengthsSummary
    plan: PlanSummary
    checks: Sequence[Check] = ()
    num_sampled: int = 0
    """Samples that this call has encoded for real."""
    not_sampled: str | None = None
    """The reason why none were, in words; None if some were."""
    report: str | None = None
    """Path of the report; None if the output is in a store."""


def pack(
    sources: Source | Sequence[Source],
    output: str | os.PathLike[str],
    *,
    capacity: int,
    processor: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    **options: Any,
) -> PackSummary:
    """Count samples, plan packs of them, verify the plan and draw its report.

    ``packidx.pack("chats.jsonl", "packs", capacity=8192, processor="Qwen/Qwen2.5-VL-7B-Instruct")``
    is ``packidx pack`` in Python, and writes its recipe to ``recipe.yaml`` of `output`, too.

    Args:
        sources: a file, glob, folder or URL, or several.
        output: folder or URL for ``lengths``, ``index`` and ``report.html``.
        capacity: tokens that a pack holds at most.
        processor: name or folder of the Hugging Face processor that counts; None takes the
            lengths that records state, and guesses the others.
        workers: as of `pack_recipe`, as are `engine` and `progress`; no byte depends on them.
        options: of `estimate_lengths` and `PlanOptions`, under their names there.

    Raises:
        OptionError: an option cannot be understood, or `output` holds another recipe.
        PackidxError: as `pack_recipe`.
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    given = options | {"capacity": capacity, "processor": processor}
    stated = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not None
    }
    recipe = recipe_given([os.fspath(source) for source in named], stated, os.fspath(output))
    return pack_recipe(recipe, workers=workers, engine=engine, keep_recipe=True, progress=progress)


def pack_recipe(
    recipe: Recipe | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    engine: str = "local",
    keep_recipe: bool = False,
    progress: Progress | None = None,
    doing: Doing = lambda words: None,
    counted: Callable[[LengthsSummary], None] = lambda summary: None,
) -> PackSummary:
    """Count what changed of a recipe's sources, plan, verify the plan, and draw the report.

    Args:
        recipe: what to pack, or the path of its YAML file.
        output: folder or URL for ``lengths``, ``index`` and ``report.html``; by default the
            recipe's own.
        workers: as of `estimate_lengths` and `plan_packs`, as is `engine`; no byte depends on them.
        keep_recipe: write the recipe to ``recipe.yaml`` of the output, too.
        progress: how far the count is.
        doing: is called with what else is being done, a few words at a time.
        counted: is called with the lengths, before they are planned.

    Raises:
        PackidxError: as `estimate_lengths` and `plan_packs`. A check that fails is no error here.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(os.fspath(recipe))
    place = recipe.output if output is None else os.fspath(output)
    if place is None:
        raise OptionError("no output is named: give -o DIR, or output: in the recipe")
    folder, text = urls.local_path(place), recipe.text
    if not urls.is_url(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise OptionError(f"output {folder} is a file: name a folder")
    if keep_recipe:
        _check_recipe(folder, text)
    lengths, index = urls.join_path(folder, "lengths"), urls.join_path(folder, "index")
    if recipe.plan.mix:
        _check_mix(recipe)
    summary = estimate_lengths(
        list(recipe.sources),
        lengths,
        **recipe.estimate,
        workers=workers,
        engine=engine,
        progress=progress,
    )
    counted(summary)
    num_sampled, not_sampled = _count_sampled(recipe, summary)
    from packidx.plan.api import plan_packs  # and with it all that a plan is made with

    plan = plan_packs(
        lengths,
        index,
        recipe.plan,
        workers=1 if engine == "local" else workers,
        engine=engine,
        recipe=text,
        progress=doing,
    )
    if keep_recipe:
        storage.write(urls.join_path(folder, RECIPE), (plan.snapshot.recipe or text).encode())
    named = f"{index}@{plan.snapshot_id[:12]}"
    report = None if urls.is_url(folder) else os.path.join(folder, REPORT)
    from packidx.inspect.report import write_report
    from packidx.inspect.verify import verify_index

    encoder = encoder_of(recipe.estimate) if num_sampled else None
    transform = recipe.estimate.get("transform") if num_sampled else None
    opened = open_index(named)
    checks: list[Check] = []
    for check in verify_index(
        opened, encoder=encoder, transform=transform, num_sampled=num_sampled
    ):
        checks.append(check)
        doing(f"verifying: {check.name}")
    if report is not None:
        write_report(named, report, progress=doing)
    return PackSummary(
        output=folder,
        index=named,
        lengths=summary,
        plan=plan,
        checks=checks,
        num_sampled=sum(check.numbers.get("samples_encoded", 0) for check in checks),
        not_sampled=not_sampled,
        report=report,
    )


def _check_mix(recipe: Recipe) -> None:
    """Raise an OptionError for a mix that names no source, before anything is counted."""
    names = ("columns", "tags", "delimiter", "pair", "ignore", "answers")
    stated = {name: recipe.estimate[name] for name in names if name in recipe.estimate}
    if "ignore" in stated:
        stated["ignore"] = tuple(stated["ignore"])
    known = {shard.source for shard in find_shards(list(recipe.sources), Layout(**stated))}
    for name in Mixture.parse(recipe.plan.mix).weights:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise OptionError(f"mix gives {name!r} a weight, and no source is called so: {listed}")


def _check_recipe(folder: str, text: str) -> None:
    """Raise an OptionError if the output has a recipe that was changed since its plan was made."""
    path = urls.join_path(folder, RECIPE)
    if not storage.is_file(path) or (there := storage.read(path)) == text.encode():
        return
    planned: str | None = None
    with contextlib.suppress(NotFoundInIndex):
        planned = open_index(urls.join_path(folder, "index")).snapshot.recipe
    if planned is None or there != planned.encode():
        raise OptionError(f"{path} was changed: run `packidx pack {path}`, or give another -o")


def _count_sampled(recipe: Recipe, summary: LengthsSummary) -> tuple[int, str | None]:
    """Return how many samples are encoded for real in the end, and why none are."""
    estimate = recipe.estimate
    if not (estimate.get("processor") or estimate.get("encode")):
        return 0, "no processor is named"
    inexact = sum(number for method, number in summary.methods.items() if method != "exact")
    if inexact:
        return 0, f"{inexact:,} lengths are not exact, so some would differ"
    if estimate.get("processor") and not has_torch():
        return 0, "torch is not installed here"
    return SAMPLED, None


def encoder_of(asked: Mapping[str, Any], option: str = "encode") -> Any:
    """Return the encoder that some arguments of `estimate_lengths` name: ``encode``, which errors
    call `option`, or ``processor`` and what goes with it."""
    if asked.get("encode"):
        return load_named(asked["encode"], option)
    from packidx.encode import ProcessorEncoder
    from packidx.processor.labels import DEFAULT_POLICY

    return ProcessorEncoder(
        asked["processor"],
        asked.get("labels") or DEFAULT_POLICY,
        settings=asked.get("processor_settings") or {},
        trust_remote_code=asked.get("trust_remote_code", False),
    )


def encoder_of_plan(index: Index, asked: Mapping[str, Any]) -> Any:
    """Return the encoder that ``--processor`` or ``--encode`` names, labels as `index` has
    them, and settings where `asked` has none; None if neither names one."""
    if asked["processor"] is not None and asked["encode"] is not None:
        raise OptionError("--processor and --encode both name the encoder: give one of them")
    if asked["processor"] is None and asked["encode"] is None:
        return None
    counted = index.snapshot.lengths.encoder
    settings = asked["processor_settings"] or (counted and counted.overrides)
    labels = counted and counted.labels
    return encoder_of({**asked, "processor_settings": settings, "labels": labels}, "--encode")
