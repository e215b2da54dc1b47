"""A rendering: words and holes, and what a template writes around turns, learned from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packidx.errors import BadRecord
from packidx.processor.chat_template.turns.spans import TOOL_CALLS
from packidx.records.conversation import Conversation, Turn

Render = Callable[..., str]
"""A conversation as text; ``prompt=True`` with the generation prompt, ``borders`` around
``{% generation %}`` blocks. Raises BadRecord."""
CharPosition = tuple[int, int]
"""A position that holds for every record: (i, characters after border i). Border 2h is the start
of literal h, border 2h + 1 its end, where hole h starts."""
CharStretch = tuple[CharPosition, CharPosition]

_SAID, _ASKED = "Answer\ue0b4", "Question\ue0b4"


class Lost(Exception):
    """The literals and holes do not show where a turn is."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What is known of a hole."""

    turn: int
    kind: str
    """``"content"``, ``"reasoning"``, ``"tool"`` or ``"other"``."""
    is_again: bool = False
    """Whether the same text stands in the rendering before."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a template writes around turns."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    gap: str
    """White space between a turn's content and the token that ends it."""
    stop: str
    """The token that ends a turn; empty if unknown or there is none."""
    call_stop: str
    """What ends a turn which calls a tool, where that is not `stop`; empty as well."""
    control: re.Pattern[str] | None
    """Any special token."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendering: ``literals[0] holes[0] literals[1] … literals[n]``."""

    literals: tuple[str, ...]
    holes: tuple[Hole | None, ...]
    blocks: tuple[CharStretch, ...]
    """The ``{% generation %}`` blocks."""


def learn_words(
    render: Render, control: re.Pattern[str] | None, placeholder: re.Pattern[str] | None
) -> Words:
    """The words around turns, from small renderings; what they do not show is empty."""
    both = _try(render, (("user", _ASKED), ("assistant", _SAID)))
    tail = both.rpartition(_SAID)[2] if both else ""
    between = both.partition(_ASKED)[2].partition(_SAID)[0]
    gap, stop = "", ""
    token = control.search(tail) if control else None
    if token and not tail[: token.start()].strip():
        gap, stop = tail[: token.start()], token.group()
    header, call_stop = _header(render, between), _call_stop(render, control)
    return Words(header, gap, stop, call_stop, control, placeholder)


def _header(render: Render, between: str) -> str:
    """The generation prompt; where there is none, the end of a user's turn (``[/INST]``), if the
    assistant's words follow directly."""
    bare = _try(render, (("user", _ASKED),))
    prompted = _try(render, (("user", _ASKED),), prompt=True)
    if prompted != bare and prompted.startswith(bare):
        return prompted[len(bare) :]
    end = bare.rpartition(_ASKED)[2] if bare else ""
    follows = between.startswith(end) and between.strip() == end.strip() != ""
    return end if follows else ""


def _call_stop(render: Render, control: re.Pattern[str] | None) -> str:
    """What closes a tool call at the end of a conversation, or its last special token."""
    called = {"name": "look", "arguments": {"what": _SAID}}
    calls = [{"id": "call00001", "type": "function", "function": called}]
    turns = (Turn("user", (_ASKED,)), Turn("assistant", (), {"tool_calls": calls}))
    try:
        text = render(Conversation(turns))
    except BadRecord:
        return ""
    tail = text.rpartition(_SAID)[2] if _SAID in text else ""
    tokens = [*(control.findall(tail) if control else ()), *(t for _, t in TOOL_CALLS if t in tail)]
    return tokens[-1] if tokens else ""


def _try(render: Render, turns: Sequence[tuple[str, str]], *, prompt: bool = False) -> str:
    """A small conversation's rendering, which shows its texts; empty if there is none."""
    for lead in ((), (" ",)):  # content as a string, then as a list
        conversation = Conversation(tuple(Turn(role, (*lead, text)) for role, text in turns))
        try:
            text = render(conversation, prompt=prompt)
        except BadRecord:
            continue
        if all(said in text for _, said in turns):
            return text
    return ""
