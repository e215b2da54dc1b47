"""`packidx doctor`: what is here, and whether an index can be read here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError, PackidxError

from ..options import index_options, make_encoder, refuse_two_encoders
from ..show.console import count, number_of, print_cells, print_json, print_marked, say, status

if TYPE_CHECKING:
    from packidx.index import Index
    from packidx.inspect.doctor.finding import Finding
    from packidx.inspect.doctor.index import IndexFacts
    from packidx.inspect.doctor.machine import Environment
    from packidx.inspect.doctor.packages import Extra, Package
    from packidx.inspect.doctor.reading import Reading


@click.command()
@click.argument("index", required=False)
@index_options
def doctor(
    index: str | None,
    processor: str | None,
    processor_settings: dict[str, Any],
    trust_remote_code: bool,
    encode: str | None,
    transform: str | None,
    roots: dict[str, str],
    quiet: bool,
    as_json: bool,
) -> None:
    """Show what is installed here and, of INDEX or INDEX@ID, whether it can be read here.

    That is what a bug report should have. A few packs of INDEX are read and timed; exit 1 if it
    cannot be read or, without INDEX, if a package that packidx needs is missing. Passwords, values
    of environment variables and your home folder's name are left out.
    """
    from packidx.inspect.doctor.finding import Given, Makers
    from packidx.inspect.doctor.report import examine

    if index == "":
        raise OptionError("INDEX is empty: name the folder or URL of an index, or leave it out")
    for name, value in (("processor", processor), ("encode", encode), ("transform", transform)):
        if index is None and value is not None:
            raise OptionError(f"--{name} is of an index: name INDEX as well")
    refuse_two_encoders(processor, encode)
    given = (
        None
        if index is None
        else Given(
            index, roots, processor, processor_settings, encode, transform, trust_remote_code
        )
    )
    with status(quiet) as doing:
        encoder = functools.partial(make_encoder, trusts_code=trust_remote_code)
        report = examine(given, Makers(encoder, make_dataset), doing)
    if as_json:
        print_json(report.to_json())
    else:
        _show_environment(report.environment, reading=report.index is not None)
        if report.index is not None:
            _show_index(report.index)
        _show_problems(report.problems)
        say("marks: ok, NO is wrong, ?? could not be checked, -- is not here and not needed")
    if report.failure is not None:
        raise PackidxError(report.failure)


def make_dataset(index: Index, encode: Any, transform: str | None) -> Any:
    from packidx.torch import PackedDataset

    return PackedDataset(index, encode, transform=transform)


_MARKS = {"ok": "ok", "problem": "NO", "unknown": "??", "absent": "--"}
"""In front of lines; read without colours."""


def _show_environment(facts: Environment, reading: bool) -> None:
    from packidx.inspect.doctor.packages import ENCODING, READING

    title = f"packidx {facts.packidx}, Python {facts.python}, {facts.platform}"
    rows = [
        ("", "installed", f"{facts.folder}; Python is {facts.executable}"),
        ("", "cores", f"{facts.cpus} for this process, of {facts.machine_cpus}"),
        ("", "memory", _memory(facts)),
        ("", "cache", _cache(facts)),
        ("", "torch", _torch(facts)),
        ("", "attention", _attention(facts.attention)),
    ]
    needed = facts.needed(reading)
    absent = [
        package.name
        for package in facts.packages
        if package.version is None and package.name not in needed
    ]
    if absent:
        reader, encoder = ", ".join(("torch", *READING)), " and ".join(ENCODING)
        why = (
            f"not installed, and not needed to read packs. That takes {reader}; ProcessorEncoder "
            f"{encoder}, too"
        )
        rows.append(("--", "planner", f"{', '.join(absent)}: {why}"))
    print_marked(title, rows)
    shown = [package for package in facts.packages if package.name not in absent]
    print_cells("packages, and what packidx asks for", map(_package, shown))
    print_marked("extras, and what they are for", map(_extra, facts.extras))


def _memory(facts: Environment) -> str:
    said = f"{_size(facts.memory)} in this machine"
    if facts.memory_limit is None or facts.memory_limit >= facts.memory:
        return said
    return f"{said}, {_size(facts.memory_limit)} for this process's container"


def _cache(facts: Environment) -> str:
    cache = facts.cache
    if cache is None:
        return "not looked at: it needs numpy and pyarrow"
    bound = "a size that cannot be read" if cache.limit is None else _size(cache.limit)
    return f"{cache.folder} holds {_size(cache.nbytes)}, of at most {bound}"


def _torch(facts: Environment) -> str:
    from packidx.inspect.doctor.machine import devices_in_words

    if facts.torch is not None:
        return f"{facts.torch.version}, {devices_in_words(facts.torch)}"
    package = facts.package("torch")
    if package is None or package.version is None:
        return "not installed: lengths can be counted and planned, packs cannot be built"
    return f"{package.version}, which cannot be imported"


def _attention(ways: tuple[Finding, ...]) -> str:
    """What `collate` makes batches for, and whether a model can run it."""
    usable = [_with(way.name, way.detail) for way in ways if way.state == "ok"]
    others = [_with(way.name, way.detail) for way in ways if way.state != "ok"]
    if not usable:
        return f"none of collate's: {ways[0].detail}"
    here = f"models can use {', '.join(usable)}"
    return f"{here}; not {', '.join(others)}" if others else here


def _with(name: str, detail: str) -> str:
    return f"{name} ({detail})" if detail else name


def _package(package: Package) -> tuple[str, str]:
    mark = "ok" if package.is_here and package.inside is not False else "NO"
    wanted = f" ({package.wanted})" if package.wanted else ""
    state = "not installed" if package.version is None else package.version
    return mark, f"{package.name} {state}{wanted}"


def _extra(extra: Extra) -> tuple[str, str, str]:
    if all(package.version is None for package in extra.packages):
        return "--", extra.name, f"{extra.enables}: {extra.install}"
    listed = ", ".join(_package(package)[1] for package in extra.packages)
    sound = all(_package(package)[0] == "ok" for package in extra.packages)
    return "ok" if sound else "NO", extra.name, f"{extra.enables}: {listed}"


def _show_index(facts: IndexFacts) -> None:
    if facts.snapshot_id is None:
        title = f"index {facts.path}"
    else:
        title = (
            f"index {facts.path}@{facts.snapshot_id[:12]}, {number_of(facts.num_packs, 'pack')} of "
            f"{count(facts.capacity)} tokens, planned by packidx {facts.planned_by}"
        )
    rows = []
    for finding in facts.findings:
        detail = finding.detail if finding.state != "problem" else ""  # which stands at the end
        if finding.name == "packs" and facts.reading is not None:
            detail = "; ".join(filter(None, (_reading(facts.reading), detail)))
        if finding.do is not None and finding.state != "problem":
            detail = f"{detail}: {finding.do}"
        rows.append((_MARKS[finding.state], finding.name, detail))
    print_marked(title, rows)


def _reading(reading: Reading) -> str:
    """How long packs took, in words."""
    from packidx.inspect.doctor.reading import milliseconds

    number = number_of(len(reading.packs), "pack")
    what = f"{number} built" if reading.how == "packs" else f"records and media of {number} read"
    said = f"{what}: the first in {reading.first_seconds:.2f} s"
    if len(reading.packs) > 1:
        each, rate, share = milliseconds(reading)
        said += f", then {each:,.0f} ms each, {rate:,.0f} tokens/s in one process"
        if share is not None:
            said += f" ({100 * share:.0f} % in the encoder)"
    return said


def _show_problems(problems: tuple[Finding, ...]) -> None:
    if not problems:
        say("no problem found")
        return
    rows = []
    for problem in problems:
        rows.append(("NO", problem.name, problem.detail))
        if problem.do is not None:
            rows.append(("", "", f"-> {problem.do}"))
    print_marked("what is wrong, and what to do", rows)
    if any("pip install" in (problem.do or "") for problem in problems):
        say("pip may move releases that a trainer pins: see docs/trainers.md for how it does not")


def _size(nbytes: int) -> str:
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:,.1f} {unit}"
    return f"{nbytes:,} bytes"
