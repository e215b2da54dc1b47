"""What is said of a plan's option beside its name, its type and its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """An option in words, and how it is treated.

    Attributes:
        help: for the command line, in a sentence.
        metavar: what the help calls the value.
        choices: the words that a value may be; empty where others are possible.
        minimum: of a number of things, which is never above `MAX_CAPACITY`.
        shown_default: where the default itself does not say it; empty where it needs no telling.
        is_stored: the manifest has it; others change no plan, or stand there as what they came to.
        is_inherited: what appends to a plan or continues it takes it over.
        is_previewed: a dry run looks at it.
    """

    help: str
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    shown_default: str | None = None
    is_stored: bool = True
    is_inherited: bool = True
    is_previewed: bool = True


def described(help: str, metavar: str = "N", **treatment: Any) -> dict[str, Option]:
    """Metadata of a field that has no default; arguments as `Option` has them."""
    if "choices" in treatment:
        metavar = "|".join(treatment["choices"])
    return {"option": Option(help, metavar, **treatment)}


def option(default: Any, help: str, metavar: str = "N", **treatment: Any) -> Any:
    """A field with a default; the other arguments as `Option` has them."""
    return field(default=default, metadata=described(help, metavar, **treatment))


def dashed(name: str) -> str:
    """A field's name as the command line has it."""
    return name.replace("_", "-")
