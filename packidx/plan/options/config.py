"""Options of a plan from a YAML or JSON file: NeMo's packing keys, and ours.

    packed_sequence:            # as NeMo Automodel's recipes for vision-language models have it
      pack_size: 8192
      packing_ratio: 0.9
      drop_long_samples: true
    packidx:                    # the fields of `PlanOptions`, with - or _
      align: 16
      mix: {photos: 2}

A whole recipe may be given: its other sections are the trainer's business. A section or key that is
not known is an error, so that a misspelt option never plans something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import OptionError
from packidx.format.terms import MAX_CAPACITY
from packidx.io.unique_keys import load_json, load_yaml
from packidx.plan.options.nemo import KEYS, RECIPE_SECTIONS, SECTION, read_section
from packidx.plan.options.plan_options import OPTIONS, PlanOptions
from packidx.plan.options.values import typed

OWN = "packidx"
_MAX_BYTES = 1 << 20


def read_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """The options that the file `path` asks for.

    Returns:
        fields of `PlanOptions`, checked, any of which may be missing, capacity too; and sentences:
        what is to be known of some of them.

    Raises:
        OptionError: it cannot be read, has a key or value that is not understood, says one thing
            twice, or asks for what no plan can honour; the message names file and key.
    """
    file = load_config(path)
    _check_sections(path, file)
    notes: list[str] = []
    theirs = read_section(path, _section(path, file, SECTION), notes)
    own = _own(path, _section(path, file, OWN))
    for name in theirs.keys() & own.keys():
        raise OptionError(
            f"{path}: {OWN}.{name} and {SECTION} say the same thing: give one of them"
        )
    options = {**theirs, **own}
    _check(path, options)
    return options, notes


def _check(path: str, options: Mapping[str, Any]) -> None:
    try:
        PlanOptions(**{"capacity": MAX_CAPACITY, **options})
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None


def load_config(path: str) -> dict[str, Any]:
    """What a file of YAML or JSON says.

    Raises:
        OptionError: it cannot be read, is neither, or says no more than a value.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise OptionError(f"{path} is over {_MAX_BYTES >> 20} MiB: it is no configuration")
        value = load_json(data) if path.endswith(".json") else load_yaml(data)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}; check the path") from None
    except ValueError as error:
        form = "JSON" if path.endswith(".json") else "YAML"
        raise OptionError(f"{path} is not valid {form}: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{path} has no sections: write packed_sequence: or packidx: and options")
    return value


def _check_sections(path: str, recipe: Mapping[Any, Any]) -> None:
    for name in recipe:
        if name in (SECTION, OWN) or name in RECIPE_SECTIONS:
            continue
        if name in KEYS:
            raise OptionError(f"{path}: {name} stands alone: it belongs under packed_sequence:")
        if str(name).replace("-", "_") in OPTIONS:
            raise OptionError(f"{path}: {name} stands alone: it belongs under packidx:")
        raise OptionError(
            f"{path}: unknown section {name!r}: known are {SECTION}, {OWN}, and a recipe's own: "
            + ", ".join(sorted(RECIPE_SECTIONS))
        )
    if not recipe.keys() & {SECTION, OWN}:
        raise OptionError(
            f"{path} has neither a section packed_sequence: nor packidx:, so it says nothing of a "
            "plan: add one of them"
        )


def _section(path: str, recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = recipe.get(name)
    if value is None or value == "none":
        return {}
    if not isinstance(value, dict):
        raise OptionError(f"{path}: {name} is {value!r}: write its keys under it, each on a line")
    return value


def _own(path: str, section: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in section.items():
        name = str(key).replace("-", "_")
        if name not in OPTIONS:
            raise OptionError(
                f"{path}: unknown key packidx.{key}: known are {', '.join(OPTIONS)}; data and "
                "output are arguments of the command"
            )
        if name in options:
            raise OptionError(f"{path}: packidx.{name} is given twice, with - and _: keep one")
        if value is not None:
            options[name] = typed(f"{path}: packidx.{key}", name, value)
    return options
