"""Options of `packidx plan`, made from `PlanOptions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin

import click

from packidx.plan.options.option import dashed
from packidx.plan.options.plan_options import DEFAULTS, OPTIONS
from packidx.plan.options.values import TYPES

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_option(name: str, kind: type | None = None) -> Decorator:
    """The option for a field of `PlanOptions`; `kind` where it is another one than the field's."""
    said, declared = OPTIONS[name], TYPES[name]
    kinds = get_args(declared) or (declared,)
    settings: dict[str, Any] = {"help": said.help + _default(name)}
    if bool in kinds:
        settings |= {"is_flag": True, "default": None}
    else:
        # A value that may be a word or a number is read by the option's own check.
        settings |= {"metavar": said.metavar, "multiple": get_origin(declared) is tuple}
        settings["type"] = kind or (str if str in kinds else kinds[0])
    return click.option(f"--{dashed(name)}", **settings)


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All options of a plan but the capacity, in the order of the fields."""
    for name in reversed(OPTIONS):
        if name != "capacity":
            command = with_option(name)(command)
    return command


def _default(name: str) -> str:
    shown, default = OPTIONS[name].shown_default, DEFAULTS[name]
    if shown is None and isinstance(default, str | int) and default is not False:
        shown = str(default)
    return f"  [default: {shown}]" if shown else ""
