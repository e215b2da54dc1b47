"""Marks around a record's texts, and where they come out in a rendering.

Each text is given to the template with a mark before and after its *core*, which is all of it but
the white space at its ends. Where the marks come out is the text: a `Stretch` of the rendering.
Marks are characters of the last two planes of Unicode, which nobody assigns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from packidx.records.conversation import Conversation

BORDERS = "\U000ffff0", "\U000ffff1"
"""Characters around ``{% generation %}`` blocks."""
HOLE = "\U000ffff2"
"""A core that stands for any."""
MARKED = re.compile(r"[\U000f0000-\U0010ffff]")
_OPEN, _CLOSE = 0xF0000, 0x100000
MAX_TEXTS = 0xFFF0
_TOLD = re.compile("[\U000f0000-\U000ffff1\U00100000-\U0010ffff]")

Span = tuple[int, int]


class Lost(Exception):
    """Marks do not show where something is."""


@dataclass(slots=True)
class Stretch:
    """A text of the record in a rendering, as far as the template leaves it whole."""

    number: int
    """Of the text, in order of appearance in the record."""
    turn: int
    start: int
    end: int
    begins: bool
    """Whether it is seen to begin at `start`."""
    ends: bool
    """Whether it is seen to end at `end`."""


@dataclass(slots=True)
class Shown:
    """A rendering, and what is known of it."""

    text: str
    """The rendering without marks."""
    stretches: list[Stretch]
    blocks: list[Span]
    """The ``{% generation %}`` blocks."""

    def gaps(self) -> list[str]:
        """The template's own words: before the first stretch, between them, behind the last."""
        starts = [*(stretch.start for stretch in self.stretches), len(self.text)]
        ends = [0, *(stretch.end for stretch in self.stretches)]
        return [self.text[end:start] for end, start in zip(ends, starts, strict=True)]


@dataclass(slots=True)
class _Text:
    """A text of the record: the turn that says it, its core, and the white space around it."""

    turn: int
    before: str
    core: str
    after: str


def texts_of(conversation: Conversation) -> Iterator[tuple[int, int, str]]:
    """Yield turn, part and text of all texts that are more than white space."""
    for number, turn in enumerate(conversation.turns):
        for place, part in enumerate(turn.parts):
            if isinstance(part, str) and part.strip():
                yield number, place, part


def show(
    render: Callable[[Conversation], str],
    conversation: Conversation,
    *,
    core: str | None = None,
    is_marked: bool = True,
) -> Shown:
    """Return a rendering of `conversation` with marks around its texts.

    Args:
        render: a conversation as the template writes it, blocks between `BORDERS`.
        core: what the marks hold in place of each text's own core.
        is_marked: there are marks; else only blocks are shown.

    Raises:
        Lost: there are too many texts, or the record holds marks.
    """
    texts: list[_Text] = []
    for turn, _, text in texts_of(conversation) if is_marked else ():
        bare = text.strip()
        before = text[: text.index(bare[0])]
        after = text[len(before) + len(bare) :]
        texts.append(_Text(turn, before, bare if core is None else core, after))
    if len(texts) > MAX_TEXTS:
        raise Lost("too many texts")
    shown = _read(render(_marked(conversation, texts)), texts)
    if any(text.before or text.after for text in texts):
        bare_texts = [replace(text, before="", after="") for text in texts]
        bare_shown = _read(render(_marked(conversation, bare_texts)), texts)
        _add_space(shown, bare_shown, texts)
    return shown


def _marked(conversation: Conversation, texts: Sequence[_Text]) -> Conversation:
    """A conversation with marks around its texts."""
    parts = [list(turn.parts) for turn in conversation.turns]
    places = texts_of(conversation)
    for number, (text, (turn, place, _)) in enumerate(zip(texts, places, strict=False)):
        core = chr(_OPEN + number) + text.core + chr(_CLOSE + number)
        parts[turn][place] = text.before + core + text.after
    turns = zip(conversation.turns, parts, strict=True)
    return replace(
        conversation, turns=tuple([replace(turn, parts=tuple(own)) for turn, own in turns])
    )


def _read(rendering: str, texts: Sequence[_Text]) -> Shown:
    """Return a rendering without its marks, and where they were."""
    shown = Shown("", [], [])
    pieces: list[str] = []
    begun: list[int] = []
    at = length = 0
    for found in _TOLD.finditer(rendering):
        pieces.append(rendering[at : found.start()])
        length += found.start() - at
        at = found.end()
        mark, last = found.group(), shown.stretches[-1] if shown.stretches else None
        number = ord(mark) - (_CLOSE if mark >= chr(_CLOSE) else _OPEN)
        if number >= len(texts) and mark not in BORDERS:
            raise Lost("there are marks in the record")
        if mark == BORDERS[0]:
            begun.append(length)
        elif mark == BORDERS[1]:
            shown.blocks.append((begun.pop() if begun else 0, length))
        elif mark < chr(_CLOSE):
            turn = texts[number].turn
            shown.stretches.append(Stretch(number, turn, length, length, True, False))
        elif last is not None and last.number == number and not last.ends:
            last.end, last.ends = length, True
        else:
            turn = texts[number].turn
            shown.stretches.append(Stretch(number, turn, length, length, False, True))
    pieces.append(rendering[at:])
    shown.text = "".join(pieces)
    shown.blocks.sort()
    return shown


def _add_space(shown: Shown, bare: Shown, texts: Sequence[_Text]) -> None:
    """Add to each stretch the white space at its text's ends that the template keeps: `bare` is
    rendered without any."""
    stretches = shown.stretches
    ours, theirs = shown.gaps(), bare.gaps()
    if [each.number for each in stretches] != [each.number for each in bare.stretches]:
        theirs = ["\0"] * len(ours)  # which no gap is: it is not clear what is kept
    for number, (gap, own) in enumerate(zip(ours, theirs, strict=True)):
        left = stretches[number - 1] if number else None
        right = stretches[number] if number < len(stretches) else None
        after = texts[left.number].after if left else ""
        before = texts[right.number].before if right else ""
        kept = [
            (low, high)
            for low in dict.fromkeys((after, ""))
            for high in dict.fromkeys((before, ""))
            if gap == low + own + high
        ]
        if left:
            left.ends &= bool(kept) or not after
            left.end += len(kept[0][0]) if kept else 0
        if right:
            right.begins &= bool(kept) or not before
            right.start -= len(kept[0][1]) if kept else 0
