"""Marks around a record's texts, and where they come out in a rendering.

Each text, reasoning, and name of a called function is given to the template with a mark before and
after its *core*, which is all of it but the white space at its ends. Where the marks come out is
the text: a `Stretch` of the rendering. Marks are characters of the last two planes of Unicode,
which Unicode leaves unassigned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Turn

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an assistant's message that hold its thoughts."""
BORDERS = "\U000ffff0", "\U000ffff1"
"""Characters around ``{% generation %}`` blocks."""
MARKED = re.compile(r"[\U000f0000-\U0010ffff]")
STAND_IN = "\ue000"
"""Character in place of one in a record that marks are made of."""
_OPEN, _CLOSE = 0xF0000, 0x100000
MAX_TEXTS = 0xFFF0
_TOLD = re.compile("[\U000f0000-\U000ffff1\U00100000-\U0010ffff]")

Span = tuple[int, int]


class Lost(Exception):
    """Marks do not show where something is."""


@dataclass(slots=True)
class Stretch:
    """The core of a text in a rendering, as far as the template leaves it whole."""

    number: int
    """Of the text, in order of appearance in the record."""
    turn: int
    start: int
    end: int
    begins: bool
    """True if it is seen to begin at `start`."""
    ends: bool
    """True if it is seen to end at `end`."""


@dataclass(slots=True)
class Shown:
    """A rendering, and what is known of it."""

    text: str
    """The rendering without marks."""
    stretches: list[Stretch]
    blocks: list[Span]
    """The ``{% generation %}`` blocks."""
    bare: list[str] = field(default_factory=list)
    """Texts that the template leaves out or takes apart."""
    further: set[int] = field(default_factory=set)
    """Numbers of texts that are reasoning, or names of called functions."""


def show(render: Callable[[Conversation], str], conversation: Conversation) -> Shown:
    """Return a rendering of `conversation` with marks around its texts.

    Args:
        render: a conversation as the template writes it, blocks between `BORDERS`.

    Raises:
        Lost: there are too many texts, or the record holds marks.
    """
    owners: list[int] = []
    cores: list[str] = []
    further: set[int] = set()

    def marked(turn: int, text: str, is_further: bool) -> str:
        bare = text.strip()
        if not bare:
            return text
        number = len(owners)
        owners.append(turn)
        cores.append(bare)
        further.update([number] if is_further else [])
        before, _, after = text.partition(bare)
        return f"{before}{chr(_OPEN + number)}{bare}{chr(_CLOSE + number)}{after}"

    turns = [change_said(turn, partial(marked, n)) for n, turn in enumerate(conversation.turns)]
    if len(owners) > MAX_TEXTS:
        raise Lost("there are too many texts")
    shown = read_marks(render(replace(conversation, turns=tuple(turns))), owners)
    first = {each.number: each for each in reversed(shown.stretches)}
    shown.stretches = [  # a tool's response may name the function again
        each for each in shown.stretches if each.number not in further or each is first[each.number]
    ]
    whole = {each.number for each in shown.stretches if each.begins and each.ends}
    shown.bare = [core for number, core in enumerate(cores) if number not in whole]
    shown.further = further
    return shown


def change_said(turn: Turn, change: Callable[[str, bool], str]) -> Turn:
    """Return a message with other words in place of all that it says.

    Args:
        turn: the message.
        change: ``change(text, is_further)``; True for reasoning and for names of called functions.
    """
    extra = dict(turn.extra)
    for key in extra.keys() & {*REASONING}:
        if isinstance(extra[key], str):
            extra[key] = change(extra[key], True)
    if isinstance(calls := extra.get("tool_calls"), list):
        extra["tool_calls"] = [_named(call, change) for call in calls]
    parts = [change(part, False) if isinstance(part, str) else part for part in turn.parts]
    return replace(turn, parts=tuple(parts), extra=extra)


def _named(call: Any, change: Callable[[str, bool], str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    return {**call, "function": {**function, "name": change(function["name"], True)}}


def gaps(render: Callable[[Conversation], str], *turns: Turn) -> list[str]:
    """Return what a template writes before, between and behind the texts of some turns; nothing
    where it does not show them."""
    try:
        shown = show(render, Conversation(turns))
    except BadRecord:  # of a template that takes no such turns
        return []
    if len(shown.stretches) != sum(len(turn.texts) for turn in turns):
        return []
    lows = [0, *(stretch.end for stretch in shown.stretches)]
    highs = [*(stretch.start for stretch in shown.stretches), len(shown.text)]
    return [shown.text[low:high] for low, high in zip(lows, highs, strict=True)]


def read_marks(rendering: str, owners: Sequence[int]) -> Shown:
    """Return a rendering without its marks, and where they were.

    Args:
        rendering: a rendering with marks.
        owners: for each text with marks, the number of its message.

    Raises:
        Lost: the record holds marks.
    """
    shown = Shown("", [], [])
    pieces: list[str] = []
    begun: list[int] = []
    at = length = 0
    for found in _TOLD.finditer(rendering):
        pieces.append(rendering[at : found.start()])
        length += found.start() - at
        at = found.end()
        mark, last = found.group(), shown.stretches[-1] if shown.stretches else None
        closes = mark >= chr(_CLOSE)
        number = ord(mark) - (_CLOSE if closes else _OPEN)
        if mark == BORDERS[0]:
            begun.append(length)
        elif mark == BORDERS[1]:
            shown.blocks.append((begun.pop() if begun else 0, length))
        elif number >= len(owners):
            raise Lost("there are marks in the record")
        elif closes and last is not None and last.number == number and not last.ends:
            last.end, last.ends = length, True
        else:
            stretch = Stretch(number, owners[number], length, length, not closes, closes)
            shown.stretches.append(stretch)
    shown.text = "".join([*pieces, rendering[at:]])
    shown.blocks.sort()
    return shown
