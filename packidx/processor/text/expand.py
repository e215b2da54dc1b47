"""Media in a rendered conversation: each placeholder becomes what the processor puts there."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packidx.processor.chat_template.chat_template import Rendered
from packidx.processor.chat_template.turns.spans import Span
from packidx.processor.families import Expansion


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Expanded:
    """A rendered conversation with its media's text, every run of feature tokens written once."""

    text: str
    """What is tokenized."""
    label_spans: tuple[Span, ...]
    """Character ranges ``[start, end)`` that are trained on; feature tokens in them are not."""
    runs: tuple[tuple[int, ...], ...]
    """Per medium, as they stand in the text, how often each of its feature tokens is repeated."""
    order: tuple[int, ...] | None = None
    """The number of each of these media in the conversation; None where that is the same."""


def expand(
    rendered: Rendered,
    kinds: Sequence[str],
    tokens: Sequence[int],
    expansions: Sequence[Expansion | None],
    placeholders: Mapping[str, str],
) -> Expanded:
    """Put the media's text in place of their placeholders.

    Args:
        rendered: the conversation as the template writes it.
        kinds, tokens, expansions: per medium; without an expansion its placeholder is the feature
            token, repeated `tokens` times.
        placeholders: kind of medium → what the template wrote for it.
    """
    order = _order(rendered.media)
    if order is not None:
        rendered = replace(rendered, media=tuple(rendered.media[n] for n in order))
        expanded = expand(
            rendered,
            [kinds[n] for n in order],
            [tokens[n] for n in order],
            [expansions[n] for n in order],
            placeholders,
        )
        return replace(expanded, order=order)
    if not any(expansions):
        return Expanded(rendered.text, rendered.label_spans, tuple((num,) for num in tokens))
    text, at = rendered.text, 0
    parts: list[str] = []
    cuts: list[tuple[int, int, int]] = []  # (start, end, length of what replaces it)
    runs: list[tuple[int, ...]] = []
    for first, kind, num, expansion in zip(rendered.media, kinds, tokens, expansions, strict=True):
        if expansion is None:
            runs.append((num,))
            continue
        start, end = first, first + len(placeholders[kind])
        around = start - len(expansion.before), end + len(expansion.after)
        if text[max(around[0], at) : start] == expansion.before and text.startswith(
            expansion.after, end
        ):
            start, end = around
        parts += (text[at:start], expansion.text)
        cuts.append((start, end, len(expansion.text)))
        runs.append(expansion.runs)
        at = end
    parts.append(text[at:])
    return Expanded("".join(parts), _moved(rendered.label_spans, cuts), tuple(runs))


def _order(firsts: Sequence[int]) -> tuple[int, ...] | None:
    """The order of `firsts`; None where they ascend."""
    if all(firsts[n] < firsts[n + 1] for n in range(len(firsts) - 1)):
        return None
    return tuple(sorted(range(len(firsts)), key=firsts.__getitem__))


def _moved(spans: Sequence[Span], cuts: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
    """Spans of the old text in the new one; what replaces a medium inside a span belongs to it."""
    ends = [end for _, end, _ in cuts]
    added = [0, *itertools.accumulate(length - (end - start) for start, end, length in cuts)]
    moved = []
    for span in spans:
        borders = []
        for is_end, border in enumerate(span):
            number = bisect.bisect_right(ends, border)
            shift = added[number]
            if number < len(cuts) and cuts[number][0] < border:
                # A border inside what is replaced: all of that stays outside.
                start, _, length = cuts[number]
                shift += start - border if is_end else start + length - border
            borders.append(border + shift)
        if borders[0] < borders[1]:
            moved.append((borders[0], borders[1]))
    return tuple(moved)
