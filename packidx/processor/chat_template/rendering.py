"""A rendering: words and holes, and what a template writes around turns, learned from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from packidx.errors import BadRecord
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Turn

Span = tuple[int, int]
T = TypeVar("T", int, tuple[int, int])
"""A position: a character's number, or a `rendering.CharPosition`; both are ordered."""

THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|think|>", "<|/think|>"),
    ("◁think▷", "◁/think▷"),
)
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an assistant's message that hold its thoughts."""
TOOL_CALLS = (("<tool_call>", "</tool_call>"), ("<|tool_call>", "<tool_call|>"))


@dataclass(frozen=True, slots=True)
class Region(Generic[T]):
    """One turn in a text, or in the rendering of many."""

    turn: int
    start: T
    end: T
    """Of what the turn says: where its end-of-turn token begins, if it has one."""
    cuts: tuple[tuple[T, T], ...] = ()
    """Inside it, what is not trained on."""
    stop: tuple[T, T] | None = None
    """The end-of-turn token."""


def trained_spans(
    regions: Iterable[Region[int]], text: str, policy: LabelPolicy
) -> tuple[Span, ...]:
    """The characters that `policy` trains on in `regions`, all of whose turns are trained."""
    spans: list[Span] = []
    for region in regions:
        cuts = [*region.cuts, *_text_cuts(region, text, policy)]
        # The end of a turn goes with what stands before it: what ends untrained ends unlearned.
        untrained = any(end == region.end > start for start, end in cuts[len(region.cuts) :])
        stop = None if untrained or not policy.end_of_turn else region.stop
        spans += join_stop(subtract(region.start, region.end, cuts), stop)
    return tuple(spans)


def join_stop(spans: list[tuple[T, T]], stop: tuple[T, T] | None) -> list[tuple[T, T]]:
    """`spans`, and the end-of-turn token as part of the last of them where it touches it."""
    if stop is None:
        return spans
    if not spans or spans[-1][1] != stop[0]:
        return spans + [stop]
    joined: tuple[T, T] = (spans[-1][0], stop[1])
    return spans[:-1] + [joined]


def subtract(start: T, end: T, cuts: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """``[start, end)`` without `cuts`; without any, as it is, empty or not."""
    left: list[tuple[T, T]] = []
    at, uncut = start, True
    for low, high in sorted(cuts):
        uncut = False
        if at < low:
            left.append((at, min(low, end)))
        at = max(at, high)
    if at < end or uncut:
        left.append((at, end))
    return left


def _text_cuts(region: Region[int], text: str, policy: LabelPolicy) -> list[Span]:
    cuts: list[Span] = []
    if not policy.thinking:
        cuts += _tagged(text, region, THINKING)
    if not policy.tool_calls:
        cuts += _tagged(text, region, TOOL_CALLS)
    return cuts


def _tagged(text: str, region: Region[int], tags: Sequence[tuple[str, str]]) -> list[Span]:
    """Every stretch from an opening tag to its closing one and the white space after it.

    One that was opened before the turn (by the generation prompt) begins with the turn; one that is
    not closed ends with it.
    """
    stretches: list[Span] = []
    for opening, closing in tags:
        start, end = region.start, region.end
        at = start if text[:start].rstrip().endswith(opening) else text.find(opening, start, end)
        while at >= 0:
            closed = text.find(closing, at, end)
            past = end if closed < 0 else _past_space(text, closed + len(closing), end)
            stretches.append((at, past))
            at = text.find(opening, past, end)
    return stretches


def _past_space(text: str, at: int, end: int) -> int:
    """After the white space at `at`, but for a last space: that belongs to the word behind it."""
    past = skip_space(text, at, end)
    return past - 1 if at < past < end and text[past - 1] == " " else past


def skip_space(text: str, at: int, end: int) -> int:
    """The first position from `at` that holds no white space, at most `end`."""
    while at < end and text[at].isspace():
        at += 1
    return at


Render = Callable[..., str]
"""A conversation as text; ``prompt=True`` with the generation prompt, ``borders`` around
``{% generation %}`` blocks. Raises BadRecord."""
CharPosition = tuple[int, int]
"""A position that holds for every record: (i, characters after border i). Border 2h is the start
of literal h, border 2h + 1 its end, where hole h starts."""
CharStretch = tuple[CharPosition, CharPosition]

_SAID, _ASKED = "Answer\ue0b4", "Question\ue0b4"


class Lost(Exception):
    """The literals and holes do not show where a turn is."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What is known of a hole."""

    turn: int
    kind: str
    """``"content"``, ``"reasoning"``, ``"tool"`` or ``"other"``."""
    is_again: bool = False
    """Whether the same text stands in the rendering before."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a template writes around turns."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    gap: str
    """White space between a turn's content and the token that ends it."""
    stop: str
    """The token that ends a turn; empty if unknown or there is none."""
    call_stop: str
    """What ends a turn which calls a tool, where that is not `stop`; empty as well."""
    control: re.Pattern[str] | None
    """Any special token."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendering: ``literals[0] holes[0] literals[1] … literals[n]``."""

    literals: tuple[str, ...]
    holes: tuple[Hole | None, ...]
    blocks: tuple[CharStretch, ...]
    """The ``{% generation %}`` blocks."""


def learn_words(
    render: Render, control: re.Pattern[str] | None, placeholder: re.Pattern[str] | None
) -> Words:
    """The words around turns, from small renderings; what they do not show is empty."""
    both = _try(render, (("user", _ASKED), ("assistant", _SAID)))
    tail = both.rpartition(_SAID)[2] if both else ""
    between = both.partition(_ASKED)[2].partition(_SAID)[0]
    gap, stop = "", ""
    token = control.search(tail) if control else None
    if token and not tail[: token.start()].strip():
        gap, stop = tail[: token.start()], token.group()
    header, call_stop = _header(render, between), _call_stop(render, control)
    return Words(header, gap, stop, call_stop, control, placeholder)


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


def _call_stop(render: Render, control: re.Pattern[str] | None) -> str:
    """What closes a tool call at the end of a conversation, or its last special token."""
    called = {"name": "look", "arguments": {"what": _SAID}}
    calls = [{"id": "call00001", "type": "function", "function": called}]
    turns = (Turn("user", (_ASKED,)), Turn("assistant", (), {"tool_calls": calls}))
    try:
        text = render(Conversation(turns))
    except BadRecord:
        return ""
    tail = text.rpartition(_SAID)[2] if _SAID in text else ""
    tokens = [*(control.findall(tail) if control else ()), *(t for _, t in TOOL_CALLS if t in tail)]
    return tokens[-1] if tokens else ""


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
