"""Label spans in the one rendering of a record, found by the words around messages.

The template's words (`turns.learn_words`) tell where messages of the assistant are if each has its
header and its stop token. Whether they do is tried once for each form of conversation: with
stand-in texts, each of which has to come out in its own span alone. A record whose texts hold such
words is rendered once more, with other characters in their place. Where words do not tell, texts
get marks (`marks`).

Example: ``<user>Hi<end><model>Yes<end>`` has the header ``<model>`` once and one answer, so its
label span is ``Yes<end>``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from packidx.processor.chat_template.marks import MARKED, STAND_IN, Span, change_said
from packidx.processor.chat_template.turns import TurnWords
from packidx.processor.labels import ROLE, LabelPolicy
from packidx.records.conversation import Conversation, Turn

MAX_FORMS = 4096
_TEXT = "Quokka"


def form_of(conversation: Conversation) -> Hashable:
    """Return what decides a template's words around messages, besides their texts."""
    form: list[Hashable] = [conversation.tools is None]
    for turn in conversation.turns:
        form += turn.role, turn.text_as_list, len(turn.parts)
        for key, value in turn.extra.items():
            form.append((key, len(value) if isinstance(value, list) else bool(value)))
        if len(turn.parts) != 1 or not isinstance(turn.parts[0], str):
            form.append(_has_media(turn))
    return tuple(form)


def with_stand_ins(conversation: Conversation) -> tuple[Conversation, list[list[str]]]:
    """Return a conversation of the same form with other texts, all answers trained on; and the
    words of each message that it says now."""
    turns, words = [], []
    for number, turn in enumerate(conversation.turns):
        own: list[str] = []

        def stand_in(_: str, is_further: bool, own: list[str] = own, number: int = number) -> str:
            own.append(f"quokka{number}x{len(own)}" if is_further else f"{_TEXT} {number}.")
            return own[-1]

        changed = change_said(turn, stand_in)
        turns.append(replace(changed, train=True if turn.role == ROLE else None))
        words.append(own)
    return replace(conversation, turns=tuple(turns)), words


def are_apart(
    text: str, spans: Sequence[Span] | None, turns: Sequence[Turn], words: Sequence[list[str]]
) -> bool:
    """Return True if each span holds what its own message says, and nothing of others.

    Args:
        text: rendering of `with_stand_ins`.
        spans: its label spans; None if they were not found.
        turns: its messages.
        words: the words of each message.
    """
    mine = [number for number, turn in enumerate(turns) if turn.role == ROLE]
    if len(mine) != len(spans or ()):
        return False
    for number, (start, end) in zip(mine, spans or (), strict=True):
        inside, own = text[start:end], words[number]
        others = [word for each in words if each is not own for word in each]
        shown = [word for word in own if word in text or word.startswith(_TEXT)]
        if any(word in inside for word in others) or any(word not in inside for word in shown):
            return False
    return True


def masked(conversation: Conversation, words: Iterable[str]) -> Conversation:
    """Return a conversation with other characters in place of words and marks in its texts; itself
    if no text holds one."""
    present = [word for word in words if word]
    texts = "\n".join([part for t in conversation.turns for part in t.parts if type(part) is str])
    if not any(map(texts.__contains__, present)):
        return conversation
    pattern = re.compile("|".join([*map(re.escape, present), MARKED.pattern]))

    def mask(part: str) -> str:
        return pattern.sub(lambda found: STAND_IN * len(found.group()), part)

    turns = []
    for turn in conversation.turns:
        parts = tuple(mask(part) if isinstance(part, str) else part for part in turn.parts)
        turns.append(replace(turn, parts=parts))
    return replace(conversation, turns=tuple(turns))


def is_masked(text: str, rendering: str) -> bool:
    """Return True if `rendering` is `text` but for masked characters."""
    pairs = zip(text, rendering, strict=False)
    return len(text) == len(rendering) and all(a == b or b == STAND_IN for a, b in pairs)


def spans_by_words(
    text: str, turns: Sequence[Turn], words: TurnWords, policy: LabelPolicy
) -> tuple[Span, ...] | None:
    """Return the label spans of a rendering; None if the words around messages do not tell.

    Args:
        text: a rendering; no text in it holds one of the words.
        turns: the messages.
        words: the words around them.
        policy: the rule for what is trained on.
    """
    header, ends = words.header, words.ends
    mine = [number for number, turn in enumerate(turns) if turn.role == ROLE]
    heads = [*(found.end() for found in re.finditer(re.escape(header), text)), len(text)]
    if not header.strip() or ends is None or len(heads) != len(mine) + 1:
        return None
    if any(turn.extra and ends.search(repr(turn.extra)) for turn in turns):
        return None
    spans: list[Span] = []
    wanted = policy.trains(turns)
    for number, start, limit in zip(mine, heads, heads[1:], strict=False):
        end = ends.search(text, start, limit)
        is_over = end or (not words.stop and number == len(turns) - 1)
        if not is_over or (wanted[number] and _has_media(turns[number])):
            return None
        start = words.begin(text, start)
        border = max(start, len(text.rstrip()))
        if end is not None:
            border = end.end() if policy.end_of_turn else end.start()
        if wanted[number]:
            spans.append((start, border))
    return tuple(spans)


def _has_media(turn: Turn) -> bool:
    return any(not isinstance(part, str) for part in turn.parts)
