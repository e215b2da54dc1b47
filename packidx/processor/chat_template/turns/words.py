"""What a template writes before and after what the assistant says, learned from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packidx.errors import BadRecord
from packidx.processor.chat_template.turns.rendering import Render, Words
from packidx.records.conversation import Conversation, Turn

_SAID, _ASKED = "Answer\ue0b4", "Question\ue0b4"


def learn_words(
    render: Render, control: re.Pattern[str] | None, placeholder: re.Pattern[str] | None
) -> Words:
    """The words around turns, from small renderings; what they do not show is empty.

    Args:
        render: a conversation as text, with ``prompt=True`` as the start of an answer.
        control: any special token.
        placeholder: any medium's placeholder.
    """
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
