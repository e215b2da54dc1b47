"""The keys of a recipe but those of `plan:`, which are the fields of `PlanOptions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from packidx.errors import OptionError

SECTIONS = ("sources", "estimate", "plan", "verify", "output")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_share(value: Any) -> bool:
    return _is_text(value) or _is_number(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_path(value: Any) -> bool:
    return _is_text(value) or (_are_texts(value) and bool(value))


def _are_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, [*value, *value.values()]))


def _are_settings(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value))


Kind = tuple[Callable[[Any], bool], str]
"""Whether a value is of it, and what it must be in words."""

_TEXT: Kind = (_is_text, "a word or a path")
_COUNT: Kind = (_is_count, "a whole number from 0 on")
_NAMES: Kind = (_are_names, "names with a word each under it")

ESTIMATE: dict[str, Kind] = {
    "processor": _TEXT,
    "processor_settings": (_are_settings, "settings with a value each under it"),
    "trust_remote_code": (lambda value: isinstance(value, bool), "true or false"),
    "encode": _TEXT,
    "labels": _TEXT,
    "transform": _TEXT,
    "seed": (lambda value: type(value) is int, "a whole number"),
    "method": _TEXT,
    "text_engine": _TEXT,
    "media_root": _TEXT,
    "remote_media": (_are_texts, "a list of folders and URLs"),
    "columns": _NAMES,
    "tags": _NAMES,
    "delimiter": _TEXT,
    "pair": _TEXT,
    "ignore": (_are_texts, "a list of columns"),
    "max_rejected": (_is_share, "a share, such as 0.05 or 5%"),
}
"""Of ``estimate:``, the arguments of `estimate_lengths` that decide a table."""

SOURCE: dict[str, Kind] = {
    "path": (_is_path, "a file, glob or folder, or a list of them"),
    "media_root": _TEXT,
    "columns": _NAMES,
    "tags": _NAMES,
    "delimiter": _TEXT,
    "pair": _TEXT,
    "ignore": (_are_texts, "a list of columns"),
}
"""Of a named source."""

VERIFY: dict[str, Kind] = {"sample": _COUNT}
"""Of ``verify:``, what is checked of a plan besides its structure."""


def named(where: str, given: Any, known: Iterable[str]) -> dict[str, Any]:
    """The members of a section by their names with ``_``; what is null is left out.

    Raises:
        OptionError: it is no section, names one thing twice, or has a key that is not in `known`.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise OptionError(f"{where} is {given!r:.100}: write its keys under it, each on a line")
    members: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).replace("-", "_")
        if name not in known:
            at = f"{where}.{key}" if ": " in where else f"{where}: {key}"
            raise OptionError(f"{at} is no key of a recipe: {_instead(name, known)}")
        if name in members:
            raise OptionError(f"{where}.{name} is given twice, with - and _: keep one")
        members[name] = value
    return {name: value for name, value in members.items() if value is not None}


def section(where: str, given: Any, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The checked members of a section.

    Raises:
        OptionError: as `named`, or a value is of another kind than its key asks for.
    """
    members = named(where, given, known)
    for name, value in members.items():
        is_of_kind, words = known[name]
        if not is_of_kind(value):
            raise OptionError(f"{where}.{name} is {value!r:.100}: it must be {words}")
    return members


def _instead(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), 1, 0.7)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
