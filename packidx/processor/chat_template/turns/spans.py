"""From where a turn is in a text to which of its characters are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from packidx.processor.labels import LabelPolicy

Span = tuple[int, int]
T = TypeVar("T", int, tuple[int, int])
"""A position: a character's number, or a `rendering.CharPosition`; both are ordered."""

THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|think|>", "<|/think|>"),
    ("◁think▷", "◁/think▷"),
)
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
