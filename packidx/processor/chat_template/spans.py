"""Label spans in a rendering, found without a second one.

A rendering is a record's texts with the template's words in the gaps between them. A gap is named
by what the record has there: a message that goes on, those that begin, media, white space. The
first record with a gap is rendered once more, with other texts between marks: they show the
template's words in the gap, and the borders of label spans among them. In every record each gap has
to hold words that were learned for a gap of its name, and its text has to follow; then the borders
are where they were learned. A record with other words in a gap has its own texts marked.

Example: the rendering ``<user>Hi<end><model>Yes<end>`` has the gaps ``<user>``, ``<end><model>``
with a border behind ``<model>``, and ``<end>`` with a border behind ``<end>``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass

from packidx.processor.chat_template.marks import Shown, Span
from packidx.records.conversation import Conversation

MAX_OUTLINES = 4096
MAX_WORDS = 8
"""Words learned for gaps of one name; a template that writes more numbers its messages."""
_END = "\0"


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Outline:
    """A record as texts and the gaps around them."""

    gaps: list[Hashable]
    """Names of the gaps, one more than there are texts."""
    cores: list[str]
    """The texts without white space at their ends."""


@dataclass(frozen=True, slots=True)
class Words:
    """The template's words in a gap."""

    text: str
    borders: tuple[int, ...]
    """Starts and ends of label spans, in characters from the start of the gap."""


def outline_of(
    conversation: Conversation, wanted: Sequence[bool], names: Set[str]
) -> Outline | None:
    """Return the outline of a record; None if it has tools, or keys that the template may ask for.

    Args:
        conversation: the record.
        wanted: per message, True if it is trained on.
        names: the keys that the template may ask a message for.
    """
    if conversation.tools:
        return None
    gaps: list[Hashable] = []
    cores: list[str] = []
    gap: list[Hashable] = [conversation.tools is None]
    for turn, is_wanted in zip(conversation.turns, wanted, strict=True):
        if turn.extra and not names.isdisjoint(turn.extra):
            return None
        message = turn.role, is_wanted, turn.text_as_list
        gap += message
        for part in turn.parts:
            if not isinstance(part, str):
                gap.append((part.kind,))
            elif core := part.strip():
                start = part.index(core[0])
                gaps.append((*gap, part[:start]))
                cores.append(core)
                gap = [*message, part[start + len(core) :]]
            else:
                gap.append(part)
    return Outline([*gaps, (*gap, None)], cores)


class SpanFinder:
    """The words that a template writes in the gaps between texts, as far as they are learned."""

    def __init__(self) -> None:
        self._words: dict[Hashable, list[Words]] = {}
        self._outlines: set[Hashable] = set()

    def find(self, outline: Outline, text: str) -> tuple[Span, ...] | None:
        """Return the label spans in the rendering `text`; None if they are not certain."""
        ended = text + _END
        at = 0
        borders: list[int] = []
        for gap, core in zip(outline.gaps, [*outline.cores, _END], strict=True):
            fitting = None
            for words in self._words.get(gap, ()):
                if ended.startswith(words.text + core, at):
                    if fitting is not None:
                        return None
                    fitting = words
            if fitting is None:
                return None
            for border in fitting.borders:
                borders.append(at + border)
            at += len(fitting.text) + len(core)
        if at != len(ended) or len(borders) % 2:
            return None
        return tuple(zip(borders[::2], borders[1::2], strict=True))

    def is_new(self, outline: Outline) -> bool:
        """Return True the first time that a record has these gaps."""
        if len(self._outlines) >= MAX_OUTLINES:
            self._outlines.clear()
            self._words.clear()
        before = len(self._outlines)
        self._outlines.add(tuple(outline.gaps))
        return len(self._outlines) > before

    def learn(self, outline: Outline, shown: Shown, spans: Sequence[Span]) -> None:
        """Learn the words of a rendering that shows each text once, whole and in order.

        Args:
            outline: the gaps of the record.
            shown: the rendering with marks.
            spans: its label spans.
        """
        whole = [(each.number, each.begins and each.ends) for each in shown.stretches]
        if whole != [(number, True) for number in range(len(outline.cores))]:
            return
        lows = [0, *(each.end for each in shown.stretches)]
        highs = [*(each.start for each in shown.stretches), len(shown.text)]
        borders = [border for span in spans for border in span]
        learned: list[tuple[Hashable, Words]] = []
        for gap, low, high in zip(outline.gaps, lows, highs, strict=True):
            number = bisect_right(borders, high)
            own, borders = borders[:number], borders[number:]
            if own and own[0] < low:  # a span begins or ends inside a text
                return
            words = Words(shown.text[low:high], tuple(border - low for border in own))
            learned.append((gap, words))
        for gap, words in learned:
            known = self._words.setdefault(gap, [])
            if words not in known and len(known) < MAX_WORDS:
                known.append(words)
