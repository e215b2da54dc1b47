"""Values of options as a file has them, checked against the fields of `PlanOptions`."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

from packidx.errors import OptionError
from packidx.plan.options.plan_options import PlanOptions

TYPES: dict[str, Any] = get_type_hints(PlanOptions)
"""Field of `PlanOptions` -> its type."""


def typed(where: str, name: str, value: Any) -> Any:
    """`value` as the field `name` of `PlanOptions` has it."""
    kind = TYPES[name]
    if get_origin(kind) is tuple:
        return _pairs(where, value)
    if name == "cost" and isinstance(value, dict):
        return ",".join(_pairs(where, value))
    kinds = get_args(kind) or (kind,)
    if bool in kinds:
        return of_type(where, value, bool, "true or false")
    if int in kinds:
        return of_type(where, value, int, "a whole number")
    if float in kinds and not (str in kinds and isinstance(value, str)):
        return _number(where, value)
    return of_type(where, value, str, "a word")


def of_type(where: str, value: Any, kind: type, words: str) -> Any:
    if type(value) is not kind:
        raise OptionError(f"{where} is {value!r}: it must be {words}")
    return value


def _number(where: str, value: Any) -> float:
    """A number; YAML 1.1 takes 1e-3 for text, which nobody means."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{where} is {value!r}: it must be a number")
    return float(value)


def _pairs(where: str, value: Any) -> tuple[str, ...]:
    """``{a: 2}``, ``[a=2]`` or ``a=2,b=1`` as ``('a=2', …)``."""
    if isinstance(value, dict):
        return tuple(f"{name}={weight}" for name, weight in value.items())
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(pair, str) for pair in value):
        raise OptionError(f"{where} is {value!r}: write name: weight under it, one on a line")
    return tuple(value)
