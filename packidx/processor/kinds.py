"""Kinds of records, as far as a processor may treat them in its own way each.

What was found equal of one kind says nothing of another: a processor that is counted right on plain
chats may have a template of its own for tools, or lose an empty part.
"""

from __future__ import annotations

from packidx.processor.counts import DOCUMENT, INTERLEAVED, TEXT, mixed_name
from packidx.records.conversation import Conversation

LISTS, EMPTY = "text in lists", "empty parts"
TOOLS, NO_TOOLS = "tools", "an empty list of tools"
CALLS, REASONING = "tool calls", "reasoning"
TURNS = " turns"
"""Behind the role of turns that not every chat has: ``'tool turns'``."""
_USUAL = frozenset(("user", "assistant", "system"))
_KEYS = {
    **dict.fromkeys(("tool_calls", "function_call"), CALLS),
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), REASONING),
}
_names: dict[tuple[frozenset[str], frozenset[str], bool], str] = {}


def kind_of(conversation: Conversation) -> str:
    """The kind of a record: its media, then what else its messages have that matters, as in
    ``'image+video, empty parts, tools'``."""
    words = set()
    for turn in conversation.turns:
        role = turn.extra.get("role", turn.role) if turn.extra else turn.role
        if role not in _USUAL:
            words.add(role + TURNS)
        if turn.text_as_list:
            words.add(LISTS)
        if not turn.parts or "" in turn.parts:
            words.add(EMPTY)
        if turn.extra:
            words.update(word for key, word in _KEYS.items() if turn.extra.get(key))
    if conversation.tools is not None:
        words.add(TOOLS if conversation.tools else NO_TOOLS)
    media = frozenset([medium.kind for medium in conversation.media])
    key = media, frozenset(words), conversation.is_document
    name = _names.get(key)
    if name is None:
        base = mixed_name(media) or TEXT
        if conversation.is_document:
            base = DOCUMENT if base == TEXT else INTERLEAVED
            base += f" of {mixed_name(media)}" if media - {"image"} else ""
        name = _names[key] = ", ".join([base, *sorted(words)])
    return name
