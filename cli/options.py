"""Options that several commands have, each said once, and groups of options."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import cloup

from packidx.errors import FormatError, OptionError

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]
"""An option or an argument, as click has them."""


def option_group(name: str, example: str, *options: Decorator) -> Decorator:
    """Options below a heading of the help, with some of them as they are typed."""
    return cloup.option_group(name.capitalize(), *options, help=f"for example: {example}")


def option(names: str, metavar: str | None, help: str, **settings: Any) -> Decorator:
    """An option: its names with blanks between, and what click takes besides."""
    return click.option(*names.split(), metavar=metavar, help=help, **settings)


def flag(names: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(*names.split(), is_flag=True, help=help)


def number(names: str, metavar: str, help: str, least: int = 1, **settings: Any) -> Decorator:
    """An option that takes a whole number, `least` or more."""
    return option(names, metavar, help, type=click.IntRange(min=least), **settings)


def together(*options: Decorator) -> Callable[[Command], Command]:
    """All `options`, in this order in the help."""

    def decorate(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


def output_option(what: str) -> Decorator:
    """``-o DIR``, which must be given; `what` is its help."""
    return option("-o --output", "DIR", what, required=True, type=click.Path())


def pairs_option(
    name: str,
    argument: str,
    form: str,
    what: str,
    meaning: str = "",
    read: Callable[[str], Any] = str,
) -> Decorator:
    """An option that may be repeated, the command's `argument`: a dict of its words.

    Args:
        name: such as ``--column``.
        form: what is to be written, as ``NAME=FIELD``.
        what: its help.
        meaning: the form in words, for the error.
        read: what becomes of a word.
    """

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

    return option(f"{name} {argument}", form, what, multiple=True, callback=pairs_of)


def roots_option(name: str, argument: str, what: str) -> Decorator:
    """``OLD=NEW``: where what begins with one path lies now."""
    return pairs_option(name, argument, "OLD=NEW", what, ", a path prefix and what replaces it")


root_option = roots_option("--root", "roots", "Where data lies now that has moved.")
quiet_option = flag("--quiet", "No progress on stderr.")
log_option = option("--log", "DIR", "A run's log of its steps (StepLog): adds what it says.")
json_option = flag("--json as_json", "Print the result as JSON.")


def workers_option(does: str, besides: str = "") -> Decorator:
    """``--workers``; the help says what they do (``'count'``), and what they are `besides`."""
    return number("--workers", "N", f"Processes that {does}{besides}.  [default: one per CPU]")


def worker_options(does: str) -> Decorator:
    """``--workers`` and ``--engine``."""
    engine = (
        "Whose processes: this machine's, or Ray's, of the cluster that RAY_ADDRESS names or else "
        "of this machine."
    )
    engines = click.Choice(["local", "ray"])
    return together(
        workers_option(does, ", or tasks of Ray at a time"),
        option("--engine", None, engine, type=engines, default="local", show_default=True),
    )


def settings_option(what: str = "") -> Decorator:
    """``--processor-set``, the command's ``processor_settings``; `what` is added to its help."""
    return pairs_option(
        "--processor-set",
        "processor_settings",
        "NAME=VALUE",
        "A setting of the processor in place of its folder's own, such as "
        f"images.max_pixels=602112 or videos.do_sample_frames=true{what}. May be repeated.",
        read=_value,
    )


trust_option = flag(
    "--trust-remote-code",
    "Run code from the processor's folder, like the option of transformers.",
)


def _value(word: str) -> Any:
    """A number, true, false, null, list or object as JSON has it; anything else is text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


planned_encoder_options = together(
    option("--processor", "DIR_OR_NAME", "The processor that counted the lengths."),
    settings_option("; by default the plan's"),
    trust_option,
    option(
        "--encode",
        "MODULE:NAME",
        "The user's own encoder that counted the lengths; NAME() calls NAME first.",
    ),
)
"""The encoder of an index, for `packidx.recipe.run.encoder_of_plan`."""


def split_mix(texts: Sequence[str]) -> tuple[str, ...]:
    """Weights of sources, ``NAME=WEIGHT`` each; ``a=1,b=2`` are two, and ``a,b=2`` is one source
    with a comma in its name."""
    split = [text.split(",") for text in texts]
    return tuple(
        weight
        for text, parts in zip(texts, split, strict=True)
        for weight in (parts if all("=" in part for part in parts) else [text])
    )


def read_state(path: str) -> dict[str, Any]:
    """A sampler's state, saved as JSON.

    Raises:
        FormatError: the file is not a JSON object.
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            state = json.load(file)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"state {path} is not JSON ({error}): save json.dumps(sampler.state_at(step))"
        ) from None
    if not isinstance(state, dict):
        raise FormatError(f"state {path} is not an object: save json.dumps(sampler.state_at(step))")
    return state
