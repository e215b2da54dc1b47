"""What a template makes of all records of one shape.

A record's shape is what the template may tell it from others by, but for its texts' cores: the
roles, the kinds of parts, the white space at the ends of texts, and which further keys messages
have. The template is rendered with marks in place of the cores (`packidx.processor.chat_template.
watch`); where they come out, the cores of any record of the shape are put: its rendering, without
Jinja.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from packidx.processor.chat_template.marks import HOLE, Lost, Shown, Span
from packidx.records.conversation import Conversation

OWN_KEYS = ("role", "content")
"""Of `Turn.extra`, what is not a further key of a message."""

Position = tuple[int, int]
"""A position that holds for every record: (holes before it, the template's characters before it).
"""


def shape_of(
    conversation: Conversation, names: frozenset[str]
) -> tuple[tuple[Hashable, ...], list[str]] | None:
    """Return the shape of a conversation, and the cores of its texts.

    None where it has tools or tool calls, reasoning, or other keys that the template may ask for.

    Args:
        names: the keys that the template may ask for.
    """
    if conversation.tools:
        return None
    key: list[Hashable] = [conversation.tools is None]
    cores: list[str] = []
    for turn in conversation.turns:
        key.append(turn.role if turn.train is None else (turn.role, turn.train))
        if turn.text_as_list:
            key.append(2)
        for part in turn.parts:
            if not isinstance(part, str):
                key.append(part.kind)
                continue
            core = part.strip()
            if len(core) == len(part):
                key.append(bool(core))
            elif core:
                start = part.index(core[0])
                key.append((part[:start], part[start + len(core) :]))
            else:
                key.append((part,))
            if core:
                cores.append(core)
        for name, value in turn.extra.items():
            if name == "role":
                key.append((name, value))
            elif value is None:  # as if it were not there, but for what is said
                key.append(name if name == "content" else None)
            elif name not in names:
                key.append((name, None))
            elif value:
                return None
            else:
                key.append((name, repr(value)))
    return tuple(key), cores


def without_unknown(conversation: Conversation, names: frozenset[str]) -> Conversation:
    """A conversation without the keys that a template has no name for."""
    turns = [
        replace(
            turn,
            extra={k: v for k, v in turn.extra.items() if k in names or k in OWN_KEYS},
        )
        for turn in conversation.turns
    ]
    return replace(conversation, turns=tuple(turns))


@dataclass(slots=True)
class Skeleton:
    """A template's words around the cores of a record's texts."""

    parts: list[str]
    """Its words, with an empty text for each hole between them."""
    order: tuple[int, ...]
    """Number of the core in each hole."""
    words: tuple[str, ...]
    """Words that the template looks for: no core may hold one."""
    spans: tuple[tuple[int, int, int, int], ...]
    """What is trained on, two `Position`s each."""
    media: tuple[Position, ...]
    """Where the media's placeholders are."""
    placeholders: tuple[tuple[str, int], ...]
    """How many of each placeholder it has; a text that makes more of them is refused."""
    is_compared: bool = False
    """Whether it has been compared with Jinja's rendering of a record."""

    def takes(self, cores: Sequence[str]) -> bool:
        """Return whether it does for these cores."""
        together = "".join(cores) if self.words else ""
        return not any(word in together for word in self.words)

    def fill(self, cores: Sequence[str]) -> tuple[str, list[int]]:
        """The text, and for each number of holes the characters of the cores in them."""
        own = [cores[number] for number in self.order]
        parts = self.parts.copy()
        parts[1::2] = own
        return "".join(parts), [0, *accumulate(map(len, own))]

    def spans_at(self, filled: list[int]) -> tuple[Span, ...]:
        """The characters that are trained on, in a text whose holes are so `filled`."""
        return tuple([(filled[i] + low, filled[j] + high) for i, low, j, high in self.spans])

    def media_at(self, filled: list[int]) -> tuple[int, ...]:
        """The first characters of the media's placeholders."""
        return tuple([filled[i] + offset for i, offset in self.media])


def skeleton_of(
    shown: Shown,
    spans: Iterable[Span],
    media: Iterable[int],
    placeholders: Sequence[str],
    words: Iterable[str],
) -> Skeleton:
    """Return the skeleton of a rendering in which each core is a `HOLE`.

    Raises:
        Lost: a hole has lost its marks.
    """
    text = shown.text
    literals = text.split(HOLE)
    holes = [each.number for each in shown.stretches if HOLE in text[each.start : each.end]]
    if len(holes) != len(literals) - 1 or len(holes) != len(shown.stretches):
        raise Lost("a text")
    parts = [part for literal in literals for part in (literal, "")][:-1]

    def place(at: int) -> Position:
        before = text.count(HOLE, 0, at)
        return before, at - before

    return Skeleton(
        parts,
        tuple(holes),
        tuple(words),
        tuple([(*place(low), *place(high)) for low, high in spans]),
        tuple(map(place, media)),
        tuple((token, text.count(token)) for token in placeholders),
    )
