"""Marks around a record's texts, and where they come out in a rendering.

Each text, reasoning, and name of a called function is given to the template with a mark before and
after its *core*, which is all of it but the white space at its ends. Where the marks come out is
the text: a `Stretch` of the rendering. Marks are characters of the last two planes of Unicode,
which Unicode leaves unassigned.

A call or a thought whose mark does not come out is not written (`check_written`). Of reasoning the
last one counts, since templates such as Qwen3's leave out earlier ones by design.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import SAID, Conversation, Turn

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an assistant's message that hold its thoughts."""
SPOKEN = frozenset((*SAID, "tool_plan"))
"""Keys of a message that say something; records with others are rejected (`unused_column`)."""
BORDERS = "\U000ffff0", "\U000ffff1"
"""Characters around ``{% generation %}`` blocks."""
MARKED = re.compile(r"[\U000f0000-\U0010ffff]")
STAND_IN = "\ue000"
"""Character in place of one in a record that marks are made of."""
_OPEN, _CLOSE = 0xF0000, 0x100000
MAX_TEXTS = 0xFFF0

Span = tuple[int, int]


class Lost(Exception):
    """Marks do not show where something is."""


@dataclass(slots=True)
class Stretch:
    """The core of a text in a rendering, as far as the template leaves it whole."""

    number: int
    """Media of the text, in order of appearance in the record."""
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

    text: str = ""
    """The rendering without marks."""
    stretches: list[Stretch] = field(default_factory=list)
    blocks: list[Span] = field(default_factory=list)
    """The ``{% generation %}`` blocks."""
    bare: list[str] = field(default_factory=list)
    """Texts that the template leaves out or takes apart."""
    further: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Number → message and key of a text beside the content: reasoning, a called one's name."""


def render_with_marks(render: Callable[[Conversation], str], conversation: Conversation) -> Shown:
    """Return a rendering of `conversation` with marks around its texts.

    Args:
        render: a conversation as the template writes it, blocks between `BORDERS`.

    Raises:
        Lost: there are too many texts, or the record holds marks.
    """
    shown, owners, cores = Shown(), list[int](), list[str]()

    def add_marks(text: str, turn: int, key: str = "") -> str:
        text = MARKED.sub(STAND_IN, text)
        core = text.strip()
        if not core:
            return text
        number = len(cores)
        owners.append(turn)
        cores.append(core)
        if key:
            shown.further[number] = turn, key
        before, _, after = text.partition(core)
        return f"{before}{chr(_OPEN + number)}{core}{chr(_CLOSE + number)}{after}"

    def mark_values(value: Any, turn: int, key: str) -> Any:
        if isinstance(value, str):
            return add_marks(value, turn, key)
        if isinstance(value, list):
            return [mark_values(each, turn, key) for each in value]
        if not isinstance(value, dict):
            return value
        name = "function" if "function" in value else "name"
        return value | ({name: mark_values(value[name], turn, key)} if name in value else {})

    turns = []
    for number, turn in enumerate(conversation.turns):
        extra = {k: mark_values(v, number, k) if k in SPOKEN else v for k, v in turn.extra.items()}
        parts = (add_marks(part, number) if isinstance(part, str) else part for part in turn.parts)
        turns.append(replace(turn, parts=tuple(parts), extra=extra))
    if len(cores) > MAX_TEXTS:
        raise Lost("there are too many texts")
    rendering = render(replace(conversation, turns=tuple(turns)))
    begun, pieces = list[int](), list[str]()
    at = length = 0
    for found in MARKED.finditer(rendering):
        mark_found, own = found.group(), shown.stretches
        pieces.append(rendering[at : found.start()])
        length += found.start() - at
        at = found.end()
        closes = mark_found >= chr(_CLOSE)
        number = ord(mark_found) - (_CLOSE if closes else _OPEN)
        if mark_found == BORDERS[0]:
            begun.append(length)
        elif mark_found == BORDERS[1]:
            shown.blocks.append((begun.pop() if begun else 0, length))
        elif number >= len(owners):
            raise Lost("there are marks in the record")
        elif closes and own and own[-1].number == number and not own[-1].ends:
            own[-1].end, own[-1].ends = length, True
        else:
            own.append(Stretch(number, owners[number], length, length, not closes, closes))
    shown.text = "".join([*pieces, rendering[at:]])
    shown.blocks.sort()
    first = {each.number: each for each in reversed(shown.stretches)}
    shown.stretches = [  # a tool's response may name the function again
        each
        for each in shown.stretches
        if each.number not in shown.further or each is first[each.number]
    ]
    whole = {each.number for each in shown.stretches if each.begins and each.ends}
    shown.bare = [core for number, core in enumerate(cores) if number not in whole]
    return shown


def find_gaps(render: Callable[[Conversation], str], *turns: Turn) -> list[str]:
    """Return what a template writes before, between and behind the texts of some turns; nothing
    where it does not show them."""
    try:
        shown = render_with_marks(render, Conversation(turns))
    except BadRecord:  # of a template that takes no such turns
        return []
    if len(shown.stretches) != sum(len(turn.texts) for turn in turns):
        return []
    lows = [0, *(stretch.end for stretch in shown.stretches)]
    highs = [*(stretch.start for stretch in shown.stretches), len(shown.text)]
    return [shown.text[low:high] for low, high in zip(lows, highs, strict=True)]


def says_more(conversation: Conversation) -> bool:
    """Return True if a record has tools, calls, reasoning, or a system prompt in the middle."""
    further = [turn.extra for turn in conversation.turns if turn.extra]
    return (
        bool(conversation.tools)
        or "system" in [turn.role for turn in conversation.turns[1:]]
        or any(extra.get(key) for extra in further for key in SPOKEN)
    )


def check_written(conversation: Conversation, text: str, shown: Shown, writes_tools: bool) -> None:
    """Raise a BadRecord (``not_rendered``) if a template leaves out tools, calls, reasoning, or a
    system prompt in the middle.

    Args:
        conversation: the record.
        text: its rendering.
        shown: the same with marks.
        writes_tools: False if it leaves out tools.
    """
    late = [turn for turn in conversation.turns[1:] if turn.role == "system"]
    if any(part.strip() not in text for turn in late for part in turn.texts):
        what = "the chat template leaves out a system prompt behind the first turn"
        raise BadRecord("not_rendered", f"{what}: a --transform puts it elsewhere")
    seen = {each.number for each in shown.stretches}
    written = Counter(place for number, place in shown.further.items() if number in seen)
    lost, thought = set[str]() if writes_tools else {"tools"}, dict[str, int]()
    for number, turn in enumerate(conversation.turns):
        for key in turn.extra.keys() & SPOKEN:
            value = turn.extra[key]
            value = value.strip() if isinstance(value, str) else value
            if key in REASONING and value:
                thought = {key: number}
            elif written[number, key] < (len(value) if isinstance(value, list) else bool(value)):
                lost.add(key)
    for key, number in thought.items():
        lost |= set() if any(written[number, name] for name in REASONING) else {key}
    if lost:
        what = f"the chat template does not write {' and '.join(sorted(lost))}"
        cure = "name a processor whose template does"
        if all(turn.parts for turn in conversation.turns if lost & turn.extra.keys()):
            cure += f", or give {' '.join(f'--ignore {name}' for name in sorted(lost))}"
        raise BadRecord("not_rendered", f"{what} of the record: {cure}")
