"""Parts of a record that the chat template does not write: tools, calls, reasoning.

Each call and each thought gets a mark as its name or text, and the template is rendered once. What
has a mark that does not come out is rendered without: if the text is the same, it is not written.
Of reasoning the last one counts, since templates such as Qwen3's leave out earlier ones by design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import REASONING
from packidx.records.conversation import SAID, Conversation

Render = Callable[[Conversation], str]
_Place = tuple[int, str, int | None]
_MARK = "quokka{}zq7x"
_KEYS = frozenset((*SAID, "tool_plan"))
"""Keys of a message that say something; records with others are rejected (`unused_column`)."""


def check_written(render: Render, conversation: Conversation, text: str) -> None:
    """Raise a BadRecord (``not_rendered``) if a template leaves out tools, calls, reasoning, or a
    system prompt in the middle.

    Args:
        render: a conversation as the template writes it.
        conversation: the record.
        text: its rendering.
    """
    said = list(_said(conversation))
    late = [turn for turn in conversation.turns[1:] if turn.role == "system"]
    if not said and not conversation.tools and not late:
        return
    if any(part.strip() not in text for turn in late for part in turn.texts):
        what = "the chat template leaves out a system prompt behind the first turn"
        raise BadRecord("not_rendered", f"{what}: a --transform puts it elsewhere")
    marked = conversation
    for number, (turn, key, at) in enumerate(said):
        marked = _changed(marked, turn, key, at, _MARK.format(number))
    shown = (_attempt(render, marked) if said else None) or ""
    lost = {"tools"} if conversation.tools else set()
    if lost and _attempt(render, replace(conversation, tools=None)) != text:
        lost.clear()
    for number, (turn, key, at) in enumerate(said):
        if _MARK.format(number) not in shown:
            without = _changed(conversation, turn, key, at, None)
            lost |= {key} if _attempt(render, without) == text else set()
    if lost:
        what = f"the chat template does not write {' and '.join(sorted(lost))}"
        cure = "name a processor whose template does"
        if all(conversation.turns[turn].parts for turn, key, _ in said if key in lost):
            cure += f", or give {' '.join(f'--ignore {name}' for name in sorted(lost))}"
        raise BadRecord("not_rendered", f"{what} of the record: {cure}")


def _said(conversation: Conversation) -> Iterator[_Place]:
    """Each call as (turn, key, its number in a list), and the last turn's reasoning."""
    thought: _Place | None = None
    for number, turn in enumerate(conversation.turns):
        for key, value in turn.extra.items():
            if key not in _KEYS or not value:
                continue
            if key in REASONING:
                thought = number, key, None
            elif isinstance(value, list):
                yield from ((number, key, at) for at in range(len(value)))
            else:
                yield number, key, None
    if thought is not None:
        yield thought


def _changed(
    conversation: Conversation, number: int, key: str, at: int | None, mark: str | None
) -> Conversation:
    """A conversation with a mark in place of one thing that is said, or without it."""
    turn = conversation.turns[number]
    keys = REASONING if key in REASONING else (key,)
    value = turn.extra[key]
    new = _marked(value if at is None else value[at], mark)
    if at is not None:
        new = [*value[:at], *([] if new is None else [new]), *value[at + 1 :]]
    kept = {name: held for name, held in turn.extra.items() if name not in keys}
    turn = replace(turn, extra={**kept, key: new} if new else kept)
    turns = (*conversation.turns[:number], turn, *conversation.turns[number + 1 :])
    return replace(conversation, turns=turns)


def _marked(value: Any, mark: str | None) -> Any:
    if mark is None or isinstance(value, str):
        return mark
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        return {**value, "function": {**value["function"], "name": mark}}
    return {**value, "name": mark} if isinstance(value, dict) else value


def _attempt(render: Render, conversation: Conversation) -> str | None:
    try:
        return render(conversation)
    except BadRecord:
        return None
