"""`packidx doctor`: what is installed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from packidx.errors import PackidxError

from ..options import json_option
from ..show.console import print_json, print_marked, say

Row = Mapping[str, Any]


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show the versions of what is installed here, and what torch sees.

    That is what a bug report should have. Whether an index and its data are there says packidx
    verify --quick. Exit 1 if a package that packidx needs is missing or of another version.
    """
    from packidx.inspect.doctor import examine_environment, problems

    environment = examine_environment()
    found = list(problems(environment))
    failure = "; ".join(f"{problem['detail']}: {problem['do']}" for problem in found) or None
    if as_json:
        told = {"ok": failure is None, "failure": failure, "environment": environment}
        print_json({**told, "problems": found})
    else:
        _show(environment)
    if failure is not None:
        raise PackidxError(failure)


def _show(environment: Row) -> None:
    from packidx.inspect.doctor import torch_in_words

    torch, seen = environment["torch"], "not installed: packs can be planned, not built"
    if torch is not None:
        seen = f"{torch['version']}, {torch_in_words(torch)}"
    rows = [
        ("", "installed", f"{environment['folder']}; Python is {environment['executable']}"),
        ("", "cores", f"{environment['cpus']} for this process"),
        ("", "torch", seen),
    ]
    title = "packidx {packidx}, Python {python}, {platform}".format_map(environment)
    print_marked(title, rows)
    print_marked(
        "packages, and the versions that packidx asks for", map(_package, environment["packages"])
    )
    say("marks: ok; NO: another version than packidx asks for; --: not installed")


def _package(package: Row) -> tuple[str, str, str]:
    wanted = f"({package['wanted']})" if package["wanted"] else ""
    mark = "--" if package["version"] is None else "ok" if package["inside"] else "NO"
    extra = f"packidx[{package['extra']}]" if package["extra"] else ""
    words = filter(None, (package["version"], wanted, extra))
    return mark, package["name"], " ".join(words)
