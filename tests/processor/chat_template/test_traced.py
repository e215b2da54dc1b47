"""Texts that are traced through a template: joined in time that grows with their pieces alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.processor.chat_template.tracing.trace import Trace, Untraceable
from packidx.processor.chat_template.tracing.traced import (
    LEAK,
    Traced,
    fragments_of,
    join_fragments,
)
from packidx.processor.text.sequence import _moved


def seconds(work: Callable[[int], object], size: int) -> float:
    """CPU time of `work`, the least of three."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        work(size)
        found.append(time.process_time() - begun)
    return min(found)


def joined(size: int) -> object:
    return join_fragments(Trace(["text"]), [0, *["<|vision_start|><|image_pad|>"] * size])


def summed(size: int) -> object:
    trace = Trace(["text"])
    text: str = Traced(trace, (0,))
    for _ in range(size):
        text = text + Traced(trace, (0,)) + "<image>"
    return fragments_of(text)


def moved(size: int) -> object:
    spans = [(10 * number, 10 * number + 10) for number in range(size)]
    return _moved(spans, [(start + 2, start + 5, 9) for start, _ in spans])


@pytest.mark.parametrize("work", [joined, summed, moved])
def test_time_grows_with_the_images_and_not_with_their_square(
    work: Callable[[int], object],
) -> None:
    work(1000)
    assert seconds(work, 64_000) < 512 * seconds(work, 1000)  # the square would be 4,096 times


ADDENDS = st.lists(st.sampled_from(["", "a", "bc", None]), max_size=8)


@given(ADDENDS, ADDENDS)
def test_a_sum_has_the_pieces_of_its_texts(left: list[str | None], right: list[str | None]) -> None:
    """None stands for the traced text."""
    trace = Trace(["text"])
    text = Traced(trace, (0,))

    def total(addends: list[str | None]) -> str:
        made: str = text
        for addend in addends:
            made = made + (text if addend is None else addend)
        return made

    pieces = [0, *(0 if one is None else one for one in left), "+", 0]
    pieces += [0 if one is None else one for one in right]
    expected = fragments_of(join_fragments(trace, pieces))
    made = total(left) + ("+" + total(right))
    assert fragments_of(made) == expected
    assert fragments_of(made) == expected  # asked again


def test_what_cannot_be_added_is_refused_at_once() -> None:
    text = Traced(Trace(["text"]), (0,))
    for add in (lambda: text + LEAK, lambda: LEAK + text):
        with pytest.raises(Untraceable, match="escaped"):
            add()
    with pytest.raises(TypeError, match='can only concatenate str \\(not "int"\\) to str'):
        text + 5  # type: ignore[operator]


def test_where_spans_come_to_lie_behind_what_grew() -> None:
    cuts = [(2, 4, 5), (6, 6, 3), (8, 10, 0)]
    assert _moved([(0, 2), (2, 4), (4, 8), (0, 12)], cuts) == ((0, 2), (2, 7), (7, 14), (0, 16))
    assert _moved([(3, 9)], cuts) == ((7, 14),)  # neither end of it cuts what replaced a medium
