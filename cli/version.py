"""`packidx --version`, and with `--verbose` what a bug report needs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import click

import packidx
from packidx.software import installed

from .show.console import say


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, with `--verbose` also the environment, and exit."""
    if not wanted or context.resilient_parsing:
        return
    say(f"packidx {packidx.__version__}")
    if context.params.get("verbose"):
        for name, value in _environment():
            say(f"{name:<18} {value}")
    context.exit()


def _environment() -> Iterator[tuple[str, str]]:
    from packidx.run.workers import num_workers

    yield "folder", str(Path(packidx.__file__).parent)
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "platform", platform.platform()
    yield "cores", f"{num_workers(None)} for this process"
    lines = requires("packidx") if installed("packidx") else []
    of_users = [line for line in lines or [] if not re.search("extra == .(dev|test)", line)]
    for name in dict.fromkeys(
        [*(re.split(r"[^\w.-]", line)[0] for line in of_users), "torchvision"]
    ):
        if name != "packidx":  # in an extra made of others
            yield name, installed(name) or "not installed"
    yield "GPU", _gpu()


def _gpu() -> str:
    try:
        torch: Any = import_module("torch")
    except Exception as error:  # a broken installation raises anything
        return f"unknown: torch cannot be imported ({type(error).__name__})"
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if not built:
        return "none: torch is built for CPUs"
    devices = range(torch.cuda.device_count())
    named = ", ".join(torch.cuda.get_device_name(number) for number in devices)
    return f"{named or 'none is visible'} (torch is built for {built})"
