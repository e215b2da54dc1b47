"""A rendering: words and holes, and what a template writes around turns, learned from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packidx.errors import BadRecord
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


@dataclass(frozen=True, slots=True)
class Words:
    """What a template writes around turns."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    gap: str
    """White space between a turn's content and the token that ends it."""
    stop: str
    """The token that ends a turn; empty if unknown or there is none."""
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
    return Words(_header(render, between), gap, stop, control, placeholder)


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
