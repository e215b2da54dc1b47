"""The kind of a record: what it is made of.

Lengths are computed by rules, and the rules are compared with the real processor once per kind
(`packidx.estimate.compare`). So a kind names all that templates and processors treat in their own
way: the kinds of media and whether there are several, roles, tools, reasoning, tool calls, content
given as a string or a list, and empty content.
"""

from __future__ import annotations

from collections.abc import Iterable

from packidx.records.conversation import Conversation

KINDS = ("image", "video", "audio")
"""Kinds of media."""
TEXT = "text"
DOCUMENT, INTERLEAVED = "documents", "interleaved documents"
LISTS, EMPTY = "text in lists", "empty parts"
TOOLS, NO_TOOLS = "tools", "an empty list of tools"
CALLS, REASONING = "tool calls", "reasoning"
_USUAL = frozenset(("user", "assistant", "system"))
_KEYS = {
    **dict.fromkeys(("tool_calls", "function_call"), CALLS),
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), REASONING),
}
_MOST_MEDIA = 9
"""Numbers of media from which on they are one kind."""
_names: dict[tuple[frozenset[str], frozenset[str], bool], str] = {}


def mixed_name(kinds: Iterable[str]) -> str:
    """Return the name of media of several kinds: ``'image+video'``."""
    return "+".join(sorted(kinds, key=KINDS.index))


def words_of(kind: str) -> set[str]:
    """Return the words of a kind, with each kind of media by itself."""
    base, *words = kind.split(", ")
    return {base, *base.split("+"), *words}


def record_kind(conversation: Conversation, *, fine: bool = False) -> str:
    """Return the kind of a record, as in ``'image+video, several images, tools'``.

    Args:
        fine: True for a processor of no family, whose rules no test of ours compares: also how many
            media and answers there are, and where media stand.
    """
    words, num_answers = set[str](), 0
    for turn in conversation.turns:
        role = turn.extra.get("role", turn.role) if turn.extra else turn.role
        if role not in _USUAL:
            words.add(f"{role} messages")
        if turn.text_as_list:
            words.add(LISTS)
        if not turn.parts or "" in turn.parts:
            words.add(EMPTY)
        if turn.extra:
            words.update(word for key, word in _KEYS.items() if turn.extra.get(key))
        if fine:
            num_answers += turn.role == "assistant"
            has_media = any(not isinstance(part, str) for part in turn.parts)
            words.update(["a system message"] * (turn.role == "system"))
            words.update(["media behind an answer"] * (has_media and num_answers > 0))
            words.update([f"media of {turn.role}"] * (has_media and turn.role != "user"))
    if conversation.tools is not None:
        words.add(TOOLS if conversation.tools else NO_TOOLS)
    kinds = [medium.kind for medium in conversation.media]
    media = frozenset(kinds)
    if fine:
        words.update(f"{min(kinds.count(kind), _MOST_MEDIA)} {kind}s" for kind in media)
        words.update(["several answers"] * (num_answers > 1))
    if len(kinds) > len(media):
        words.update(f"several {kind}s" for kind in media if kinds.count(kind) > 1)
    key = media, frozenset(words), conversation.is_document
    name = _names.get(key)
    if name is None:
        base = mixed_name(media) or TEXT
        if conversation.is_document:
            base = DOCUMENT if base == TEXT else INTERLEAVED
            base += f" of {mixed_name(media)}" if media - {"image"} else ""
        name = _names[key] = ", ".join([base, *sorted(words)])
    return name
