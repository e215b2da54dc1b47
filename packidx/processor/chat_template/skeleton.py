"""What a template makes of all records of one structure that answer its questions alike.

The records of a structure (roles, kinds of parts …) share a tree: each `Node` is a question that
the template asked of their texts when it was traced, each branch an answer, and at its end is the
`Skeleton` that these answers led to. Putting a record's texts into it is its rendering, without
Jinja.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from packidx.processor.chat_template.tracing.trace import Question, Step, Trace, Values
from packidx.processor.chat_template.tracing.traced import fragments_of
from packidx.processor.chat_template.turns.rendering import (
    CharPosition,
    CharStretch,
    Hole,
    Rendering,
)
from packidx.processor.chat_template.turns.spans import (
    Region,
    Span,
    join_stop,
    subtract,
    trained_spans,
)
from packidx.processor.labels import LabelPolicy

MAX_BRANCHES = 64
"""Skeletons of one structure; records that need yet another one are traced one by one."""


@dataclass(slots=True)
class Skeleton:
    """A template's words, and where its labels and media are."""

    steps: tuple[Step, ...]
    """Values made after the last question."""
    holes: tuple[int, ...]
    """The value that each hole takes."""
    parts: list[str]
    """The literals, with an empty text for each hole between them."""
    plain: bool
    """Whether the holes take the record's texts as they are, each once and in order."""
    spans: tuple[CharStretch, ...] | None = None
    """What is trained on; None where that takes a look at the text (`turns`)."""
    turns: tuple[Region[CharPosition], ...] = ()
    media: tuple[CharPosition, ...] | None = None
    """Where the media are; None where that takes a look at the text."""
    lost: bool = False
    """Whether it takes other ways (`packidx.processor.chat_template.turns.fallback`) to find the
    trained turns."""

    def fill(self, values: Values) -> tuple[str, list[int]]:
        """The text, and where each border (`rendering.CharPosition`) is in it."""
        parts = self.parts.copy()
        if self.plain:
            parts[1::2] = values
        else:
            for step in self.steps:
                values.append(step(values))
            parts[1::2] = [values[hole] for hole in self.holes]
        return "".join(parts), [0, *accumulate(map(len, parts))]

    def label_spans(self, text: str, borders: list[int], policy: LabelPolicy) -> tuple[Span, ...]:
        """The characters that are trained on."""
        if self.spans is None:
            regions = [_region(turn, borders) for turn in self.turns]
            return trained_spans(regions, text, policy)
        return tuple([(borders[i] + a, borders[j] + b) for (i, a), (j, b) in self.spans])

    def set_turns(self, turns: Sequence[Region[CharPosition]], policy: LabelPolicy) -> None:
        """Say where the trained turns are."""
        self.turns, self.spans = tuple(turns), None
        if policy.thinking and policy.tool_calls:
            self.spans = tuple(
                span
                for turn in turns
                for span in join_stop(
                    subtract(turn.start, turn.end, turn.cuts),
                    turn.stop if policy.end_of_turn else None,
                )
            )


def _region(turn: Region[CharPosition], borders: list[int]) -> Region[int]:
    def at(position: CharPosition) -> int:
        return borders[position[0]] + position[1]

    cuts = tuple((at(low), at(high)) for low, high in turn.cuts)
    stop = None if turn.stop is None else (at(turn.stop[0]), at(turn.stop[1]))
    return Region(turn.turn, at(turn.start), at(turn.end), cuts, stop)


def rendering_of(trace: Trace, text: str, owners: Sequence[Hole]) -> tuple[Skeleton, Rendering]:
    """What a traced rendering, `text`, consists of; `owners` says whose each traced text is."""
    literals, holes = [""], list[int]()
    blocks: list[CharStretch] = []
    begun: list[CharPosition] = []
    for fragment in fragments_of(text):
        position = (2 * len(holes), len(literals[-1]))
        if isinstance(fragment, str):
            literals[-1] += fragment
        elif isinstance(fragment, int):
            holes.append(fragment)
            literals.append("")
        elif fragment.begins:
            begun.append(position)
        else:
            blocks.append((begun.pop(), position))
    parts = [part for literal in literals for part in (literal, "")][:-1]
    made = trace.pending or any(question.steps for question in trace.questions)
    plain = holes == list(range(len(owners))) and not made
    skeleton = Skeleton(tuple(trace.pending), tuple(holes), parts, plain)
    rendering = Rendering(
        tuple(literals),
        tuple(
            _owner([owners[origin] for origin in trace.origins[hole]], hole in holes[:number])
            for number, hole in enumerate(holes)
        ),
        tuple(sorted(blocks)),
    )
    return skeleton, rendering


def _owner(owners: Sequence[Hole], is_again: bool) -> Hole | None:
    turns = {owner.turn for owner in owners}
    if len(turns) != 1:
        return None
    kinds = {owner.kind for owner in owners}
    kind = next((kind for kind in ("other", "content") if kind in kinds), "tool")
    return Hole(turns.pop(), kinds.pop() if len(kinds) == 1 else kind, is_again)


class Dead:
    """Answers that lead to something that cannot be traced."""


DEAD = Dead()


@dataclass(slots=True)
class Node:
    """A question, and where its answers lead."""

    question: Question
    branches: dict[Hashable, Node | Skeleton | Dead] = field(default_factory=dict)


@dataclass(slots=True)
class Tree:
    """The questions of one structure."""

    root: Node | Skeleton | Dead | None = None
    size: int = 0

    def find(self, values: Values) -> Skeleton | Dead | None:
        """Where the record's answers lead; None if no record has given them yet.

        Values that questions need are appended to `values`.
        """
        node = self.root
        while type(node) is Node:
            question = node.question
            for step in question.steps:
                values.append(step(values))
            node = node.branches.get(question.ask(values))
        assert not isinstance(node, Node)
        return node

    def add(self, questions: Sequence[Question], leaf: Skeleton | Dead) -> bool:
        """Remember where a trace's answers led, unless there are too many already.

        Returns:
            False if the template asked something else before, after the same answers: then it goes
            by chance.
        """
        if self.size >= MAX_BRANCHES:
            return True
        rest = list(questions)
        node, answer = self.root, None
        parent: Node | None = None
        while isinstance(node, Node):
            if not rest or rest[0].key != node.question.key:
                return False
            parent, answer = node, rest.pop(0).answer
            node = parent.branches.get(answer)
        grown: Node | Skeleton | Dead = leaf
        for question in reversed(rest):
            grown = Node(question, {question.answer: grown})
        if parent is None:
            self.root = grown
        else:
            parent.branches[answer] = grown
        self.size += 1
        return True
