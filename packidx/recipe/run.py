"""A recipe carried out: what changed is counted, planned, verified, and drawn."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from packidx.digests import canonical_json, digest, file_digest
from packidx.errors import MissingExtraError, OptionError, PackidxError
from packidx.estimate import LengthsSummary, estimate_lengths
from packidx.index.opening import open_index, read_head
from packidx.io import files, storage, urls
from packidx.io.copies import are_whole
from packidx.plan.options import PlanOptions
from packidx.recipe.recipe import SAMPLED, Recipe, to_yaml_value
from packidx.run.workers import Progress
from packidx.software import installed, software
from packidx.user_code import load_named

if TYPE_CHECKING:
    from packidx.inspect.verify.rows import Check
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
    plan: PlanSummary | None
    """None where nothing had changed."""
    checks: Sequence[Check] = ()
    num_sampled: int = 0
    """Samples that were encoded for real."""
    not_sampled: str | None = None
    """Why none were, in words."""
    report: str | None = None
    no_report: str | None = None
    """Why there is none, in words."""

    @property
    def unchanged(self) -> bool:
        """Return whether all of it was there already."""
        return self.plan is None


def pack_recipe(
    recipe: Recipe,
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
        recipe: what to pack.
        output: folder or URL for ``lengths``, ``index`` and ``report.html``; by default the
            recipe's own.
        workers, engine: as of `estimate_lengths` and `plan_packs`; no byte depends on them.
        keep_recipe: write the recipe to ``recipe.yaml`` of the output, too.
        progress: how far the count is.
        doing: told what else is being done, a few words at a time.
        counted: told of the lengths, before they are planned.

    Raises:
        PackidxError: as `estimate_lengths` and `plan_packs`. What of `checks` does not hold is no
            error here, and nothing is noted as finished then.
    """
    folder = _folder(recipe, output)
    text = recipe.text or to_yaml_value(recipe)
    before = noted(folder)
    if keep_recipe:
        _check_recipe(folder, text, before)
    lengths, index = urls.join(folder, "lengths"), urls.join(folder, "index")
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
    asked = identity(summary.fingerprint, recipe.plan, num_sampled)
    kept = digest(text.encode()) if keep_recipe else None
    is_kept = kept is None or digest_of(urls.join(folder, RECIPE)) == kept
    if summary.existed and before is not None and is_kept and is_done(folder, index, before, asked):
        return PackSummary(
            output=folder,
            index=f"{index}@{before.snapshot_id[:12]}",
            lengths=summary,
            plan=None,
            num_sampled=before.num_sampled,
            report=None if before.report is None else urls.join(folder, REPORT),
        )
    from packidx.plan.api import plan_packs  # and with it all that a plan is made with

    windows = 1 if engine == "local" else workers
    plan = plan_packs(
        lengths,
        index,
        recipe.plan,
        workers=windows,
        engine=engine,
        recipe=text,
        progress=doing,
    )
    if keep_recipe:
        put(urls.join(folder, RECIPE), text.encode())
    named = f"{index}@{plan.snapshot_id[:12]}"
    checks = verified(named, recipe, num_sampled, doing)
    report, no_report = reported(named, folder, doing)
    made = PackSummary(
        output=folder,
        index=named,
        lengths=summary,
        plan=plan,
        checks=checks,
        num_sampled=sum(check.numbers.get("samples_encoded", 0) for check in checks),
        not_sampled=not_sampled,
        report=report,
        no_report=no_report,
    )
    if all(check.ok for check in checks):
        drawn = None if report is None else digest_of(report)
        note = Done(asked, plan.snapshot_id, made.num_sampled, drawn, kept)
        put(urls.join(folder, NOTE), msgspec.json.format(msgspec.json.encode(note), indent=1))
    return made


def _folder(recipe: Recipe, output: str | os.PathLike[str] | None) -> str:
    folder = recipe.output if output is None else os.fspath(output)
    if folder is None:
        raise OptionError("nothing says where to: give -o DIR, or output: in the recipe")
    folder = urls.local_path(folder)
    if not urls.is_url(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise OptionError(f"output {folder} is a file: name a folder")
    return folder


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
    if estimate.get("processor") and installed("transformers") is None:
        if recipe.num_sampled is None:
            return 0, "transformers is not installed here"
        raise MissingExtraError(
            "verify.sample encodes with the real processor: run pip install "
            '"packidx[transformers,torch]", or leave it out of the recipe'
        )
    return wanted, None


def reported(named: str, folder: str, doing: Doing) -> tuple[str | None, str | None]:
    """Return where the report of the plan `named` lies now, or why there is none."""
    why_not = why_no_report(folder)
    if why_not is not None:
        return None, why_not
    from packidx.inspect.report import write_report

    path = os.path.join(folder, REPORT)
    write_report(named, path, progress=doing)
    return path, None


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


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps that were finished.

    Attributes:
        asked: of what was asked: lengths, options, software, and samples to encode.
        snapshot_id: of the plan that it came to.
        num_sampled: samples that were encoded for real, each as long as planned.
        report: digest of the report that was drawn; None where none was.
        recipe: digest of the ``recipe.yaml`` that was written here; None where none was.
    """

    asked: str
    snapshot_id: str
    num_sampled: int
    report: str | None
    recipe: str | None


def identity(fingerprint: str, options: PlanOptions, num_sampled: int) -> str:
    """Return the digest of all that decides a plan of these lengths, and how it is checked."""
    asked: dict[str, Any] = dataclasses.asdict(options)
    read = {"exclude": _content(options.exclude)}
    told = {"lengths": fingerprint, "options": asked, "files": read, "sampled": num_sampled}
    return digest(canonical_json(told | {"software": software()}))


def _content(path: str | None) -> str | None:
    """Return what tells the content of a file; None where there is none."""
    if path is None or not storage.is_file(path):
        return None
    return storage.stat(path).version if urls.is_url(path) else file_digest(path)


def noted(folder: str) -> Done | None:
    """The note in `folder`, None where there is none that can be understood."""
    try:
        return msgspec.json.decode(storage.read(urls.join(folder, NOTE)), type=Done)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def is_done(folder: str, index: str, note: Done, asked: str) -> bool:
    """Return whether all that is asked was finished, and is there as it was then; a report is asked
    for where one can be drawn."""
    if note.asked != asked or read_head(index) != note.snapshot_id:
        return False
    try:
        snapshot = open_index(f"{index}@{note.snapshot_id}")
    except (PackidxError, OSError):
        return False
    if not are_whole(snapshot.files()):
        return False
    if note.report is None:
        return why_no_report(folder) is not None
    return digest_of(urls.join(folder, REPORT)) == note.report


def digest_of(path: str) -> str | None:
    """Return the digest of a small file here or in a store; None where there is none."""
    return digest(storage.read(path)) if storage.is_file(path) else None


def why_no_report(folder: str) -> str | None:
    """Return why none is drawn into `folder`, in words; None where one is."""
    if urls.is_url(folder):
        return "it is drawn into folders of this machine, by packidx report"
    if installed("vl-convert-python") is None:
        return 'run pip install "packidx[report]"'
    return None


def put(path: str, data: bytes) -> None:
    """A whole file, here or in a store."""
    if urls.is_url(path):
        storage.write(path, data)
    else:
        files.write_atomic(path, data)
