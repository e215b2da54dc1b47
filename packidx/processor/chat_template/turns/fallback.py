"""Where trained turns are in a text whose template could not be traced, or did not show them.

Slower ways, one after the other: marks around the texts of trained turns, whose removal must give
the plain rendering again; then rendering what comes before each turn. What no way explains is an
error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from packidx.errors import BadRecord
from packidx.processor.chat_template.turns.rendering import (
    TOOL_CALLS,
    Region,
    Render,
    Span,
    skip_space,
)
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn

REASONING = ("reasoning_content", "thinking", "reasoning")
SPOKEN = {"tool_calls", *REASONING}
"""Keys of an assistant's message that hold its words, besides ``content``."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of a template and one of its renderings."""

    render: Render
    conversation: Conversation
    text: str
    """The plain rendering."""
    control: re.Pattern[str] | None
    """Any special token."""
    policy: LabelPolicy
    wanted: Sequence[bool]
    """Per turn whether it is trained on."""

    def by_blocks(self) -> list[Region[int]]:
        """The ``{% generation %}`` blocks, which must be as many as the turns they hold.

        Raises:
            BadRecord: ``template`` if it is not clear whose a block is.
        """
        borders = _unused(self.text)
        marked = self.render(self.conversation, borders=borders)
        spans = _between(marked, borders, self.text)
        mine = [n for n, t in enumerate(self.conversation.turns) if t.role in self.policy.roles]
        if spans is None or len(spans) != len(mine):
            raise BadRecord("template", "it is not clear which turn a generation block belongs to")
        regions = []
        for turn, (start, end) in zip(mine, spans, strict=True):
            if self.wanted[turn]:
                stop = self._last_token(start, end)
                regions.append(Region(turn, start, stop[0] if stop else end, stop=stop))
        return regions

    def _last_token(self, start: int, end: int) -> Span | None:
        tail = len(self.text[start:end].rstrip()) + start
        for token in self.control.finditer(self.text, start, end) if self.control else ():
            if token.end() == tail:
                return token.start(), end
        return None

    def by_marks(self) -> list[Region[int]] | None:
        """Regions from marks around each trained text; None if that does not explain the text."""
        turns = self.conversation.turns
        wanted = [turn for turn, chosen in zip(turns, self.wanted, strict=True) if chosen]
        if any(SPOKEN & turn.extra.keys() for turn in wanted):
            return None
        for mark in (_mark_all, _mark_core):
            spans = self._marked(mark)
            if spans is not None:
                return self._regions(spans)
        return None

    def _marked(self, mark: Callable[[str, tuple[str, str]], str]) -> list[Span] | None:
        borders = _unused(self.text)
        count = 0
        turns: list[Turn] = []
        for turn, chosen in zip(self.conversation.turns, self.wanted, strict=True):
            parts: list[str | Media] = list(turn.parts)
            if chosen:
                parts = [mark(p, borders) if isinstance(p, str) else p for p in turn.parts or ("",)]
                count += sum(isinstance(part, str) for part in parts)
            turns.append(replace(turn, parts=tuple(parts)))
        try:
            marked = self.render(replace(self.conversation, turns=tuple(turns)))
        except BadRecord:
            return None
        spans = _between(marked, borders, self.text)
        return spans if spans is not None and len(spans) == count else None

    def _regions(self, spans: list[Span]) -> list[Region[int]]:
        regions = []
        rest = iter(spans)
        for number, (turn, chosen) in enumerate(
            zip(self.conversation.turns, self.wanted, strict=True)
        ):
            if not chosen:
                continue
            parts = turn.parts or ("",)
            mine = [next(rest) for part in parts if isinstance(part, str)]
            if not mine:
                continue
            cuts = tuple((a[1], b[0]) for a, b in zip(mine, mine[1:], strict=False))
            end = mine[-1][1]
            token = self.control and self.control.match(self.text, end)
            stop = self._stop(token.end(), end) if token and isinstance(parts[-1], str) else None
            regions.append(Region(number, mine[0][0], end, cuts, stop))
        return regions

    def by_prefix(self) -> list[Region[int]]:
        """Regions from rendering the turns before each trained one with the generation prompt.

        What follows that prefix, up to the next special token, is what the model would generate.

        Raises:
            BadRecord: ``template`` if the text does not begin with that prefix.
        """
        regions: list[Region[int]] = []
        for number, turn in enumerate(self.conversation.turns):
            if not self.wanted[number]:
                continue
            before = replace(self.conversation, turns=self.conversation.turns[:number])
            start = len(prefix := self.render(before, prompt=True))
            late = bool(regions) and start < regions[-1].end
            texts = [part for part in turn.parts if isinstance(part, str)]
            said = any(text.strip() for text in texts)
            forged = any(self.control and self.control.search(text) for text in texts)
            token = self.control.search(self.text, start) if self.control else None
            silent = token is not None and said and token.start() == start
            if token is not None and turn.extra.get("tool_calls"):
                silent |= not self._ends_with(number, token.end())
            if late or forged or token is None or silent or not self.text.startswith(prefix):
                raise BadRecord(
                    "template",
                    "the chat template does not show which tokens "
                    f"turn {number} ({turn.role}) is made of",
                )
            stop = self._stop(token.end(), token.start())
            regions.append(Region(number, start, token.start(), stop=stop))
        return regions

    def _ends_with(self, number: int, end: int) -> bool:
        """Whether what is rendered up to a turn that calls tools ends there, and is to be told from
        what the turn says."""
        turns = self.conversation.turns[: number + 1]
        said = self.render(replace(self.conversation, turns=turns)).rstrip()
        told = self.policy.tool_calls or any(tag in said for tag, _ in TOOL_CALLS)
        return told and len(said) == end and self.text.startswith(said)

    def _stop(self, end: int, start: int) -> Span:
        return start, skip_space(self.text, end, len(self.text)) if self.policy.newline else end


def _unused(text: str) -> tuple[str, str]:
    """Two private-use characters that `text` does not hold."""
    free = (chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)
    return next(free), next(free)


def _between(marked: str, borders: tuple[str, str], text: str) -> list[Span] | None:
    """The stretches between marks in `marked`, in `text`'s numbering, if it is `text` without."""
    spans: list[Span] = []
    start = None
    at = 0
    for part in re.split(f"([{borders[0]}{borders[1]}])", marked):
        if part == borders[0]:
            if start is not None:
                return None
            start = at
        elif part == borders[1]:
            if start is None:
                return None
            spans.append((start, at))
            start = None
        else:
            if not text.startswith(part, at):
                return None
            at += len(part)
    return spans if start is None and at == len(text) else None


def _mark_all(text: str, borders: tuple[str, str]) -> str:
    return borders[0] + text + borders[1]


def _mark_core(text: str, borders: tuple[str, str]) -> str:
    """Marks inside the white space, for templates that trim it."""
    core = text.strip()
    start = text.index(core) if core else len(text)
    return f"{text[:start]}{borders[0]}{core}{borders[1]}{text[start + len(core) :]}"
