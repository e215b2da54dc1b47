"""Options that several commands have, each said once, and groups of options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import cloup

from packidx.errors import OptionError

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]
"""An option or an argument, as click has them."""


def option_group(name: str, example: str, *options: Decorator | Mapping[str, str]) -> Decorator:
    """Options below a heading of the help, with an `example` of what is typed; `options` are
    decorators, or options as `option` declares them → their help."""
    listed: list[Decorator] = []
    for each in options:
        listed += [option(*pair) for pair in each.items()] if isinstance(each, Mapping) else [each]
    return cloup.option_group(name.capitalize(), *listed, help=f"for example: {example}")


def option(stated: str, help: str, **settings: Any) -> Decorator:
    """An option, declared by what is typed: ``-o --output DIR``.

    Behind its names stand, if it has them, the command's argument for it in small letters, and
    what it takes: a word in capitals, ``N:1`` (a whole number from 1 on) or ``one|other`` (one of
    these). Without any it is a flag.

    Args:
        stated: what is typed.
        help: in a sentence or two.
        settings: what click takes besides.
    """
    words = stated.split()
    names = [word for word in words if word[0] == "-" or (word.islower() and "|" not in word)]
    taken = next((word for word in words if word not in names), None)
    kind: dict[str, Any] = {"metavar": taken}
    if taken is None:
        kind = {"is_flag": True}
    elif taken.islower():
        kind = {"type": click.Choice(taken.split("|"))}
    elif number := re.fullmatch(r"([A-Z]+):(\d+)", taken):
        kind = {"metavar": number[1], "type": click.IntRange(min=int(number[2]))}
    return click.option(*names, help=help, **(kind | settings))


def combine_options(*options: Decorator) -> Callable[[Command], Command]:
    """All `options`, in this order in the help."""

    def decorate_command(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate_command


def output_option(what: str) -> Decorator:
    """``-o DIR``, which must be given; `what` is its help."""
    return option("-o --output DIR", what, required=True, type=click.Path())


def pairs_option(
    stated: str, what: str, meaning: str = "", read: Callable[[str], Any] = str
) -> Decorator:
    """An option that may be repeated, the command's argument: a dict of its words.

    Args:
        stated: as of `option`: ``--column columns NAME=FIELD``; `what` is its help.
        meaning: the form in words, for the error.
        read: what becomes of a word.
    """
    name, _, form = stated.split()

    def pairs_of(context: Any, parameter: Any, values: tuple[str, ...]) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for value in values:
            key, equals, word = value.partition("=")
            if not (key and equals and word):
                raise OptionError(f"{name} {value}: write {form}{meaning}")
            if key in pairs:
                raise OptionError(f"{name} {key} is given twice, {pairs[key]!r} and {word!r}")
            pairs[key] = read(word)
        return pairs

    return option(stated, what, multiple=True, callback=pairs_of)


def roots_option(stated: str, what: str) -> Decorator:
    """``OLD=NEW``: where what begins with one path lies now."""
    return pairs_option(f"{stated} OLD=NEW", what, ", a path prefix and what replaces it")


root_option = roots_option("--root roots", "Where data lies now that has moved.")
quiet_option = option("--quiet", "No progress on stderr.")
json_option = option("--json as_json", "Print the result as JSON.")


def workers_option(does: str, besides: str = "") -> Decorator:
    """``--workers``; the help says what they do (``'count'``), and what they are `besides`."""
    return option("--workers N:1", f"Processes that {does}{besides}.  [default: one per CPU]")


def worker_options(does: str) -> Decorator:
    """``--workers`` and ``--engine``."""
    engine = (
        "Whose processes: this machine's, or Ray's, of the cluster that RAY_ADDRESS names or else "
        "of this machine."
    )
    return combine_options(
        workers_option(does, ", or tasks of Ray at a time"),
        option("--engine local|ray", engine, default="local", show_default=True),
    )


def settings_option(what: str = "") -> Decorator:
    """``--processor-set``, the command's ``processor_settings``; `what` is added to its help."""
    return pairs_option(
        "--processor-set processor_settings NAME=VALUE",
        "A setting of the processor in place of its folder's own, such as "
        f"images.max_pixels=602112 or videos.do_sample_frames=true{what}. May be repeated.",
        read=_parse_value,
    )


trust_option = option(
    "--trust-remote-code", "Run code from the processor's folder, like the option of transformers."
)


def _parse_value(word: str) -> Any:
    """A number, true, false, null, list or object as JSON has it; anything else is text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def split_mix(texts: Sequence[str]) -> tuple[str, ...]:
    """Weights of sources, ``NAME=WEIGHT`` each; ``a=1,b=2`` are two, and ``a,b=2`` is one source
    with a comma in its name."""
    split = [text.split(",") for text in texts]
    return tuple(
        weight
        for text, parts in zip(texts, split, strict=True)
        for weight in (parts if all("=" in part for part in parts) else [text])
    )
