"""Options of a plan as the command line that asks for them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from packidx.plan.options.option import dashed
from packidx.plan.options.plan_options import OPTIONS


def command_line(lengths: str, output: str, options: Mapping[str, Any]) -> str:
    """`packidx plan` with `options`, fields of `PlanOptions`; what is None is not said."""
    words = ["packidx", "plan", lengths, "-o", output]
    for name in OPTIONS:
        value = options.get(name)
        if value is None or value is False:
            continue
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            words += [f"--{dashed(name)}"] if each is True else [f"--{dashed(name)}", str(each)]
    return shlex.join(words)
