"""A recipe carried out: what changed is counted, planned, verified, and drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from packidx.digests import digest
from packidx.encode.imports import has_torch
from packidx.errors import MissingExtraError, OptionError
from packidx.estimate import LengthsSummary, estimate_lengths
from packidx.format.manifest import Layout
from packidx.index import Index
from packidx.index.opening import open_index
from packidx.io import storage, urls
from packidx.plan.select.mixture import Mixture
from packidx.recipe.recipe import SAMPLED, Recipe, read_recipe
from packidx.records.sources.find_shards import find_shards
from packidx.run.workers import Progress
from packidx.user_code import load_named

if TYPE_CHECKING:
    from packidx.inspect.verify import Check
    from packidx.plan import PlanSummary

RECIPE = "recipe.yaml"
NOTE = "pack.json"
REPORT = "report.html"
Doing = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """The result of a call of `pack_recipe`."""

    output: str
    index: str
    """``INDEX@ID``, as commands and readers take it."""
    lengths: LengthsSummary
    plan: PlanSummary
    unchanged: bool = False
    """All of it was there already, and was found to hold when it was made."""
    checks: Sequence[Check] = ()
    num_sampled: int = 0
    """Samples that this call has encoded for real."""
    not_sampled: str | None = None
    """Why none were, in words."""
    report: str | None = None
    """None where the output is in a store."""


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
        doing: told what else is being done, a few words at a time.
        counted: told of the lengths, before they are planned.

    Raises:
        PackidxError: as `estimate_lengths` and `plan_packs`. What of `checks` does not hold is no
            error here, and nothing is noted as finished then.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(os.fspath(recipe))
    place = recipe.output if output is None else os.fspath(output)
    if place is None:
        raise OptionError("no output is named: give -o DIR, or output: in the recipe")
    folder, text = urls.local_path(place), recipe.text
    if not urls.is_url(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise OptionError(f"output {folder} is a file: name a folder")
    before = noted(folder)
    if keep_recipe:
        _check_recipe(folder, text, before)
    lengths, index = urls.join(folder, "lengths"), urls.join(folder, "index")
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
    num_sampled, not_sampled = _sampled(recipe, summary)
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
    own = None if before is None else before.recipe
    if keep_recipe:
        own = digest(text.encode())
        put(urls.join(folder, RECIPE), text.encode())
    named = f"{index}@{plan.snapshot_id[:12]}"
    report = None if urls.is_url(folder) else os.path.join(folder, REPORT)
    told = Done(plan.snapshot_id, num_sampled, own)
    is_drawn = report is None or os.path.isfile(report)
    unchanged = summary.existed and plan.existed and before == told and is_drawn
    checks: tuple[Check, ...] = ()
    if not unchanged:
        checks = verified(named, recipe, num_sampled, doing)
        if report is not None:
            from packidx.inspect.report import write_report

            write_report(named, report, progress=doing)
    if all(check.ok for check in checks):
        put(urls.join(folder, NOTE), msgspec.json.format(msgspec.json.encode(told), indent=1))
    return PackSummary(
        output=folder,
        index=named,
        lengths=summary,
        plan=plan,
        unchanged=unchanged,
        checks=checks,
        num_sampled=sum(check.numbers.get("samples_encoded", 0) for check in checks),
        not_sampled=not_sampled,
        report=report,
    )


def _check_mix(recipe: Recipe) -> None:
    """Refuse a mix that names no source, before anything is counted.

    Raises:
        OptionError: a weight cannot be read, or names no source.
    """
    names = ("columns", "tags", "delimiter", "pair", "ignore", "answers")
    stated = {name: recipe.estimate[name] for name in names if name in recipe.estimate}
    if "ignore" in stated:
        stated["ignore"] = tuple(stated["ignore"])
    known = {shard.source for shard in find_shards(list(recipe.sources), Layout(**stated))}
    for name in Mixture.parse(recipe.plan.mix).weights:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise OptionError(f"mix gives {name!r} a weight, and no source is called so: {listed}")


def _check_recipe(folder: str, text: str, before: Done | None) -> None:
    """Raise an OptionError if there is a recipe that packidx has not written, or not so."""
    path = urls.join(folder, RECIPE)
    try:
        there = storage.read(path)
    except OSError:
        return
    written_here = before is not None and before.recipe == digest(there)
    if there != text.encode() and not written_here:
        raise OptionError(
            f"{path} is another recipe: run `packidx pack {path}`, change it to what you want now, "
            "or give another -o"
        )


def _sampled(recipe: Recipe, summary: LengthsSummary) -> tuple[int, str | None]:
    """Return how many samples are encoded for real in the end, and why none are."""
    estimate = recipe.estimate
    by = estimate.get("processor") or estimate.get("encode")
    wanted = SAMPLED if recipe.num_sampled is None else recipe.num_sampled
    if not wanted:
        return 0, "the recipe asks for none"
    if by is None:
        return 0, "no processor is named"
    inexact = sum(number for method, number in summary.methods.items() if method != "exact")
    if inexact:
        return 0, f"{inexact:,} lengths are not exact, so some would differ"
    if estimate.get("processor") and not has_torch():
        if recipe.num_sampled is None:
            return 0, "torch is not installed here"
        raise MissingExtraError(
            "verify.sample encodes with the real processor: run pip install "
            '"packidx[torch]", or leave it out of the recipe'
        )
    return wanted, None


def verified(named: str, recipe: Recipe, num_sampled: int, doing: Doing) -> tuple[Check, ...]:
    """Return what is found of the plan `named`, some samples encoded for real."""
    from packidx.inspect.verify import verify

    index = open_index(named)
    encoder = encoder_of(recipe.estimate) if num_sampled else None
    transform = recipe.estimate.get("transform") if num_sampled else None
    checks = []
    for check in verify(index, encoder=encoder, transform=transform, num_sampled=num_sampled):
        checks.append(check)
        doing(f"verifying: {check.name}")
    return tuple(checks)


def encoder_of(asked: Mapping[str, Any], option: str = "encode") -> Any:
    """Return the encoder that some arguments of `estimate_lengths` name.

    Args:
        asked: ``encode``, or ``processor`` and what goes with it.
        option: what errors call ``encode``.

    Raises:
        PackidxError: it cannot be loaded.
    """
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
    """Return the encoder that ``--processor`` or ``--encode`` names; None where neither does.

    Args:
        index: says the labels, and the settings where `asked` has none.
        asked: as of `encoder_of`.

    Raises:
        OptionError: both name one.
        PackidxError: it cannot be loaded.
    """
    if asked["processor"] is not None and asked["encode"] is not None:
        raise OptionError("--processor and --encode both name the encoder: give one of them")
    if asked["processor"] is None and asked["encode"] is None:
        return None
    counted = index.snapshot.lengths.encoder
    settings = asked["processor_settings"] or (counted and counted.overrides)
    labels = counted and counted.labels
    return encoder_of({**asked, "processor_settings": settings, "labels": labels}, "--encode")


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan of which everything was found to hold.

    Attributes:
        snapshot_id: the plan.
        num_sampled: samples that were encoded for real, each as long as planned.
        recipe: digest of the ``recipe.yaml`` that was written here; None where none was.
    """

    snapshot_id: str
    num_sampled: int
    recipe: str | None


def noted(folder: str) -> Done | None:
    """The note in `folder`, None where there is none that can be understood."""
    try:
        return msgspec.json.decode(storage.read(urls.join(folder, NOTE)), type=Done)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def put(path: str, data: bytes) -> None:
    """A whole file, here or in a store; one of this content is left as it is."""
    if storage.is_file(path) and storage.read(path) == data:
        return
    storage.write(path, data)
