"""`packidx doctor`: what is installed here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from packidx.errors import PackidxError

from ..options import json_option
from ..show.console import print_json, print_marked, say

if TYPE_CHECKING:
    from packidx.inspect.doctor import Environment, Extra, Package


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show the versions of what is installed here, and what torch sees.

    That is what a bug report should have. Whether an index and its data are there says packidx
    verify --quick. Exit 1 if a package that packidx needs is missing or of another version.
    """
    from packidx.inspect.doctor import examine_environment

    facts = examine_environment()
    problems = [{"detail": detail, "do": do} for detail, do in facts.problems()]
    failure = "; ".join(f"{problem['detail']}: {problem['do']}" for problem in problems) or None
    if as_json:
        told = {"ok": failure is None, "failure": failure, "environment": asdict(facts)}
        print_json({**told, "problems": problems})
    else:
        _show(facts)
    if failure is not None:
        raise PackidxError(failure)


def _show(facts: Environment) -> None:
    torch = facts.torch
    seen = "not here: packs are planned, not built"
    rows = [
        ("", "installed", f"{facts.folder}; Python is {facts.executable}"),
        ("", "cores", f"{facts.cpus} for this process"),
        ("", "torch", seen if torch is None else f"{torch.version}, {torch.in_words}"),
    ]
    print_marked(f"packidx {facts.packidx}, Python {facts.python}, {facts.platform}", rows)
    packages = [_package(package) for package in facts.packages]
    print_marked("packages, and what packidx asks for", packages)
    print_marked("extras, and what they are for", map(_extra, facts.extras))
    say("marks: ok, NO is of another version than packidx asks for, -- is not here")


def _package(package: Package) -> tuple[str, str, str]:
    wanted = f"({package.wanted})" if package.wanted else ""
    mark = "--" if package.version is None else "ok" if package.inside else "NO"
    return mark, package.name, f"{package.version or ''} {wanted}".strip()


def _extra(extra: Extra) -> tuple[str, str, str]:
    if not extra.installed:
        return "--", extra.name, f"{extra.enables}: {extra.install}"
    listed = ", ".join(" ".join(_package(package)[1:]) for package in extra.packages)
    is_sound = all(package.inside for package in extra.packages)
    return "ok" if is_sound else "NO", extra.name, f"{extra.enables}: {listed}"
