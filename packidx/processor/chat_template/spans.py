"""Label spans in the one rendering of a record, by the layout of its form.

The form of a conversation is all of it but the *cores* of its texts: texts without the white space
at their ends. Per form the template renders stand-in texts once, with marks around them. That gives
its layout: the words before, between and behind the cores, and where the label spans are among
them. If words and a record's cores make up its rendering, its spans are those; else its own texts
get marks.

Example: ``<user>Hi<end><model>Yes<end>`` is the words ``<user>``, ``<end><model>`` and ``<end>``
around two cores; the label span begins at the end of the second and ends at that of the third.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from packidx.processor.chat_template.marks import Shown, Span
from packidx.records.conversation import Media, Turn

MAX_FORMS = 4096


def split_form(turns: Sequence[Turn]) -> tuple[Hashable, list[str]]:
    """Return the form of messages, and the cores of their texts."""
    form: list[Hashable] = []
    cores = []
    for turn in turns:
        form.append((turn.role, turn.text_as_list, len(turn.parts)))
        for part in turn.parts:
            if not isinstance(part, str):
                form.append((part.kind,))
            elif core := part.strip():
                cores.append(core)
                form.append(None if len(core) == len(part) else part.partition(core)[::2])
            else:
                form.append(part)
    return tuple(form), cores


def with_stand_ins(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return messages of the same form with other cores."""

    def stand_in(part: str | Media, number: int) -> str | Media:
        if not isinstance(part, str) or not (core := part.strip()):
            return part
        return part.replace(core, f"Quokka {number}.", 1)

    return tuple(
        replace(turn, parts=tuple(stand_in(part, number) for part in turn.parts))
        for number, turn in enumerate(turns)
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """A template's words around the cores of a form's texts."""

    words: Sequence[str]
    """``[n + 1]`` what is before, between and behind the cores that are written."""
    cores: Sequence[int]
    """``[n]`` their numbers among all cores."""
    borders: Sequence[tuple[int, int]]
    """Starts and ends of label spans in turn: number of the words, and characters into these."""

    @classmethod
    def of(cls, shown: Shown, spans: Sequence[Span]) -> Layout | None:
        """Return the layout of a rendering with these label spans; None if the template takes texts
        apart or writes them twice."""
        cores = [each.number for each in shown.stretches]
        if len({*cores}) < len(cores) or not all(e.begins and e.ends for e in shown.stretches):
            return None
        starts = [0, *(each.end for each in shown.stretches)]
        ends = [*(each.start for each in shown.stretches), len(shown.text)]
        words = [shown.text[start:end] for start, end in zip(starts, ends, strict=True)]
        borders = []
        for border in itertools.chain(*spans):
            number = bisect.bisect_right(starts, border) - 1
            if border > ends[number]:
                return None
            borders.append((number, border - starts[number]))
        return cls(words, cores, borders)

    def find(self, cores: Sequence[str], text: str) -> tuple[Span, ...] | None:
        """Return the label spans of the rendering `text` of a record with these cores; None if it
        has another layout."""
        pieces = [self.words[0]]
        for number, words in zip(self.cores, self.words[1:], strict=True):
            pieces += cores[number], words
        if "".join(pieces) != text:
            return None
        ends = [0, *itertools.accumulate(map(len, pieces))]
        places = iter([ends[2 * number] + into for number, into in self.borders])
        return tuple(zip(places, places, strict=True))
