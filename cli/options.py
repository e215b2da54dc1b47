"""Options that several commands have, each said once, and several of them as one decorator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from packidx.errors import FormatError, OptionError

Command = TypeVar("Command", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """All `options`, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(what: str) -> Callable[[Command], Command]:
    """``-o DIR``, which must be given; `what` is its help."""
    return click.option(
        "-o", "--output", required=True, metavar="DIR", type=click.Path(), help=what
    )


def pairs_option(
    option: str,
    argument: str,
    form: str,
    what: str,
    meaning: str = "",
    read: Callable[[str], Any] = str,
) -> Callable[[Command], Command]:
    """An option that may be repeated, the command's `argument`: a dict of its words.

    Args:
        option: its name, such as ``--column``.
        form: what is to be written, as ``NAME=FIELD``.
        what: its help.
        meaning: the form in words, for the error.
        read: what becomes of a word.
    """

    def pairs_of(context: Any, parameter: Any, values: tuple[str, ...]) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for value in values:
            name, equals, word = value.partition("=")
            if not (name and equals and word):
                raise OptionError(f"{option} {value}: write {form}{meaning}")
            if name in pairs:
                raise OptionError(f"{option} {name} is given twice, {pairs[name]!r} and {word!r}")
            pairs[name] = read(word)
        return pairs

    return click.option(option, argument, multiple=True, metavar=form, callback=pairs_of, help=what)


def roots_option(option: str, argument: str, what: str) -> Callable[[Command], Command]:
    """``OLD=NEW``: where what begins with one path lies now."""
    return pairs_option(option, argument, "OLD=NEW", what, ", a path prefix and what replaces it")


root_option = roots_option("--root", "roots", "Where moved data lies now.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")


ranks_option = click.option(
    "--ranks",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Data-parallel ranks that the schedule is looked at for.  [default: 8, 64, 512]",
)


def json_option(what: str = "Print one JSON object.") -> Callable[[Command], Command]:
    """``--json``; `what` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=what)


def worker_options(does: str, default: str = "one per CPU") -> Callable[[Command], Command]:
    """``--workers`` and ``--engine``; the help says what they do (``'count'``), and how many."""
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Processes that {does}, or tasks of Ray at a time.  [default: {default}]",
    )
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Whose processes: this machine's, or Ray's, of the cluster that RAY_ADDRESS names or "
        "else of this machine.",
    )
    return together(workers, engine)


def settings_option(what: str = "") -> Callable[[Command], Command]:
    """``--processor-set``, the command's ``processor_settings``; `what` is added to its help."""
    return pairs_option(
        "--processor-set",
        "processor_settings",
        "NAME=VALUE",
        "A setting of the processor in place of its folder's own, such as "
        f"images.max_pixels=602112, videos.fps=1 or image_seq_length=64{what}. May be repeated.",
        read=_value,
    )


trust_option = click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run code that the processor's folder holds, as transformers does where it is told to.",
)


def _value(word: str) -> Any:
    """A number, true, false, null, list or object as JSON has it; anything else is text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


index_options = together(
    click.option(
        "--processor", metavar="DIR_OR_NAME", help="The processor that counted the lengths."
    ),
    settings_option("; by default the plan's"),
    trust_option,
    click.option(
        "--encode",
        metavar="MODULE:NAME",
        help="The user's own encoder that counted the lengths; NAME() calls NAME first.",
    ),
    click.option(
        "--transform",
        metavar="MODULE:NAME",
        help="The transform that the lengths were counted with.",
    ),
    root_option,
    quiet_option,
    json_option(),
)
"""Of commands that read an index with the encoder it was counted with: ``processor``,
``processor_settings``, ``trust_remote_code``, ``encode``, ``transform``, ``roots``, ``quiet`` and
``as_json``."""


def refuse_two_encoders(processor: str | None, encode: str | None) -> None:
    """Refuse to guess which one is meant.

    Raises:
        OptionError: both are given.
    """
    if processor is not None and encode is not None:
        raise OptionError("--processor and --encode both name the encoder: give one of them")


def make_encoder(
    processor: str, labels: str | None, settings: Mapping[str, Any], trusts_code: bool = False
) -> Any:
    """A processor's encoder, with the label policy that a manifest states."""
    from packidx.encode import ProcessorEncoder
    from packidx.processor.labels import DEFAULT_POLICY

    policy = DEFAULT_POLICY if labels is None else labels
    return ProcessorEncoder(processor, policy, settings=settings, trust_remote_code=trusts_code)


def read_state(path: str) -> dict[str, Any]:
    """A sampler's state, saved as JSON.

    Raises:
        FormatError: the file is no JSON object.
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            state = json.load(file)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"state {path} is no JSON ({error}): save json.dumps(sampler.state_at(step))"
        ) from None
    if not isinstance(state, dict):
        raise FormatError(f"state {path} is no object: save json.dumps(sampler.state_at(step))")
    return state
