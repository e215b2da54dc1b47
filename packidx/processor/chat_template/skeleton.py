"""What a template makes of all records of one shape.

A record's shape is all that the template may tell it from others by: the `structure` of its
messages, and of each text the template's own words in it (`packidx.processor.chat_template.asked`).
The template is rendered for a shape with marks in place of the stretches of texts between these
words; where the marks come out, the record's own stretches are put: its rendering, without Jinja.
Marks of several kinds, short and long, bare and with white space around them, must come out alike,
and what is put together must be Jinja's rendering of the record that the shape was learned from.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from packidx.processor.chat_template.asked import MARKS, Asked
from packidx.processor.chat_template.turns.rendering import (
    CharPosition,
    CharStretch,
    Hole,
    Region,
    Rendering,
    Span,
    join_stop,
    subtract,
    trained_spans,
)
from packidx.processor.labels import LabelPolicy

MAX_WORDS = 32
"""Words in one text; one with more is rendered by Jinja."""
_OPEN, _CLOSE, _BEGIN, _END = tuple(MARKS)
_LONG = "aZ \"9\\\n\t<&'{%é " * 200
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}|([{_BEGIN}{_END}])")

Segment = str | tuple[str, ...]
"""A stretch of a text: words of the template, and white space beside them; or anything else, of
which is said what words it holds."""
Shape = tuple[Segment, ...]
PLAIN: Shape = ((),)
KEPT = ""
Strip = str | None
"""What is stripped from an end of a text: these characters, white space (None), or nothing."""


class Unlike(Exception):
    """Texts, or a template, that marks cannot stand for."""


def shapes_of(
    texts: Sequence[str], asked: Asked
) -> tuple[tuple[tuple[int, Shape], ...], dict[int, list[str]]]:
    """What the template may ask of `texts`, none empty: number and shape of those that hold words
    of its own, and by their number their stretches.

    Raises:
        Unlike: there are too many of these, or two texts are equal where that matters.
    """
    together = "\0".join(texts)
    held = [word for word in asked.held if word in together]
    cut = [word for word in held if word in asked.cut]
    is_edged = any(c in together for c in asked.edges)
    shapes: list[tuple[int, Shape]] = []
    segments: dict[int, list[str]] = {}
    for number, text in enumerate(texts):
        shape: Shape
        bare = text.strip()
        if not bare or bare in asked.equal:
            shape, segments[number] = (text,), [text]
        elif is_edged or cut:
            shape, segments[number] = _shape(text, held, asked)
        elif held:
            shape = (tuple([word for word in held if word in text]),)
        else:
            continue
        if shape != PLAIN:
            shapes.append((number, shape))
    if asked.distinct and len({text.strip() for text in texts}) < len(texts):
        raise Unlike
    return tuple(shapes), segments


def _shape(text: str, held: Sequence[str], asked: Asked) -> tuple[Shape, list[str]]:
    """A text's shape, and its stretches."""
    cuts = [word for word in asked.cut if word in text]
    tail = asked.tail.match(text) if asked.tail else None
    head = asked.head.search(text) if asked.head else None
    words = "|".join(map(re.escape, cuts))
    found = [m.span() for m in re.finditer(f"(?:\\s*(?:{words}))+\\s*", text)] if cuts else []
    if tail and not any(start < tail.end() for start, _ in found):
        found.insert(0, tail.span())
    if head and not any(end > head.start() for _, end in found):
        found.append(head.span())
    bounds = sorted({0, len(text), *(at for span in found for at in span)})
    segments = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    if len(segments) > MAX_WORDS:
        raise Unlike
    words_at = {start for start, _ in found}
    shape: list[Segment] = []
    for at, segment in zip(bounds, segments, strict=False):
        bare = segment.strip()
        if at in words_at or not bare or bare in asked.equal:
            shape.append(segment)
        else:
            shape.append(tuple(word for word in held if word not in cuts and word in segment))
    for word in cuts:  # none lies across two of them
        if text.count(word) != sum(s.count(word) for s in shape if isinstance(s, str)):
            raise Unlike
    return tuple(shape), segments


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a hole takes: segments of a text."""

    text: int
    first: int
    past: int
    is_whole: bool
    """Whether these are all."""
    cuts: tuple[Strip, Strip]
    """What is stripped of its ends."""
    is_json: bool
    """Whether it is written as JSON writes it."""

    def of(self, texts: Sequence[str], segments: dict[int, list[str]]) -> str:
        text = texts[self.text]
        if not self.is_whole:
            text = "".join(segments[self.text][self.first : self.past])
        left, right = self.cuts
        if left != KEPT:
            text = text.lstrip(left)
        if right != KEPT:
            text = text.rstrip(right)
        return _quoted(text) if self.is_json else text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(slots=True)
class Skeleton:
    """A template's words, and where its labels and media are."""

    holes: tuple[Stretch, ...]
    parts: list[str]
    """The literals, with an empty text for each hole between them."""
    plain: bool
    """Whether the holes take the record's texts as they are, each once and in order."""
    dates: tuple[tuple[str, str], ...] = ()
    """What it writes of today: layout, and what that gave."""
    spans: tuple[CharStretch, ...] | None = None
    """What is trained on; None where that takes a look at the text (`turns`)."""
    turns: tuple[Region[CharPosition], ...] = ()
    media: tuple[CharPosition, ...] | None = None
    """Where the media are; None where that takes a look at the text."""
    lost: bool = False
    """Whether it takes other ways (`packidx.processor.chat_template.turns.fallback`) to find the
    trained turns."""

    def fill(self, texts: Sequence[str], segments: dict[int, list[str]]) -> tuple[str, list[int]]:
        """The text, and where each border (`rendering.CharPosition`) is in it."""
        parts = self.parts.copy()
        if self.plain:
            parts[1::2] = texts
        else:
            parts[1::2] = [hole.of(texts, segments) for hole in self.holes]
        return "".join(parts), [0, *accumulate(map(len, parts))]

    def open_turns(
        self, owners: Sequence[Sequence[Hole]], shapes: Sequence[Shape], has_header: bool
    ) -> set[int]:
        """Turns of texts that begin or end with words which no hole takes: it is not clear where
        they do.

        Args:
            has_header: what a template writes before a turn says where it begins.
        """
        ends = {(hole.text, hole.past) for hole in self.holes}
        starts = {(hole.text, hole.first) for hole in self.holes}
        return {
            owner.turn
            for text, shape in enumerate(shapes)
            for owner in owners[text]
            if (text, len(shape)) not in ends or not (has_header or (text, 0) in starts)
            if owner.kind == "content" and any(not isinstance(s, str) or s.strip() for s in shape)
        }

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


# -- learning --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Written:
    """A rendering of marks: ``literals[0] marks[0] literals[1] …``."""

    literals: list[str]
    marks: list[tuple[int, bool]]
    """Number of the mark, and whether it is written as JSON."""
    blocks: list[CharStretch]


class Marks:
    """The marks that stand for texts of given shapes."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = shapes
        self.places = [
            (text, number)
            for text, shape in enumerate(shapes)
            for number, segment in enumerate(shape)
            if not isinstance(segment, str)
        ]
        self._number = {place: number for number, place in enumerate(self.places)}

    def hole(self, number: int, is_json: bool) -> Stretch:
        text, segment = self.places[number]
        is_whole = len(self.shapes[text]) == 1
        return Stretch(text, segment, segment + 1, is_whole, (KEPT, KEPT), is_json)

    def mark(self, number: int, filler: str) -> str:
        text, segment = self.places[number]
        words = "\0".join(self.shapes[text][segment])
        return f"{_OPEN}{number}{_CLOSE}{words}{filler}{_CLOSE}"

    def segments(self, text: int, filler: str = "") -> list[str]:
        """The stretches of a text, of marks and words."""
        return [
            segment if isinstance(segment, str) else self.mark(self._number[text, number], filler)
            for number, segment in enumerate(self.shapes[text])
        ]

    def texts(self, filler: str = "", before: str = "", after: str = "") -> list[str]:
        """The texts, with white space around them."""
        made = []
        for text, shape in enumerate(self.shapes):
            parts = self.segments(text, filler)
            starts, ends = (not isinstance(shape[end], str) for end in (0, -1))
            made.append(before * starts + "".join(parts) + after * ends)
        return made

    def read(self, rendering: str, filler: str = "") -> _Written:
        """Where marks came out.

        Raises:
            Unlike: one came out changed.
        """
        written = _Written([""], [], [])
        begun: list[CharPosition] = []
        at = 0
        while found := _MARK.search(rendering, at):
            written.literals[-1] += rendering[at : found.start()]
            position = (2 * len(written.marks), len(written.literals[-1]))
            at = found.end()
            if found[2] == _BEGIN:
                begun.append(position)
            elif found[2] == _END:
                written.blocks.append((begun.pop(), position))
            else:
                mark = self.mark(int(found[1]), filler)
                forms = (mark, _quoted(mark))
                here = [rendering.startswith(form, found.start()) for form in forms]
                if not any(here):
                    raise Unlike
                written.marks.append((int(found[1]), not here[0]))
                written.literals.append("")
                at = found.start() + len(forms[here.index(True)])
        written.literals[-1] += rendering[at:]
        if any(mark in literal for literal in written.literals for mark in MARKS):
            raise Unlike
        return written


def learn(
    render: Callable[[Sequence[str]], str],
    shapes: Sequence[Shape],
    owners: Sequence[Sequence[Hole]],
    asked: Asked,
) -> tuple[Skeleton, Rendering, Sequence[Shape]]:
    """What the template makes of all texts of these shapes; and the shapes that its holes are of,
    with as few of the template's words as this allows.

    Args:
        render: texts as the template writes them, blocks between the last two of `MARKS`.
        owners: whose each text is; of one that several turns have, these.

    Raises:
        Unlike: marks do not show that.
    """
    whole = [_whole(shape, asked) for shape in shapes]
    cut = [
        one if all(isinstance(segment, str) for segment in shape) else shape
        for one, shape in zip(whole, shapes, strict=True)
    ]
    marks = Marks(shapes)
    texts = marks.texts()
    for tried in (whole, cut):
        if list(tried) == list(shapes):
            break
        with contextlib.suppress(Unlike):
            skeleton, rendering = _learned(render, tried, owners, asked)
            segments = {text: marks.segments(text) for text in range(len(shapes))}
            plain = render(texts).replace(_BEGIN, "").replace(_END, "")
            if skeleton.fill(texts, segments)[0] == plain:
                return skeleton, rendering, tried
    return *_learned(render, shapes, owners, asked), shapes


def _whole(shape: Shape, asked: Asked) -> Shape:
    """A shape of one stretch, which holds the same words."""
    said = "".join(segment if isinstance(segment, str) else "" for segment in shape)
    held = {word for segment in shape if not isinstance(segment, str) for word in segment}
    return (tuple(word for word in asked.held if word in said or word in held),)


def _learned(
    render: Callable[[Sequence[str]], str],
    shapes: Sequence[Shape],
    owners: Sequence[Sequence[Hole]],
    asked: Asked,
) -> tuple[Skeleton, Rendering]:
    marks = Marks(shapes)
    filler = "".join(c for c in _LONG if c not in asked.held)
    if any(word in filler for word in asked.held):
        raise Unlike
    bare = marks.read(render(marks.texts()))
    long = marks.read(render(marks.texts(filler)), filler)
    numbers = [number for number, _ in bare.marks]
    if long.literals != bare.literals or numbers != [number for number, _ in long.marks]:
        raise Unlike
    holes = [marks.hole(number, is_json) for number, is_json in long.marks]
    edges = _Edges(marks, holes, bare.literals, asked.strips)
    for space in dict.fromkeys((char or "\n")[0] for char in asked.strips):
        before, after = space + "\t", "\t" + space
        spaced = marks.read(render(marks.texts("", before, after)))
        if numbers != [number for number, _ in spaced.marks]:
            raise Unlike
        edges.see(spaced.literals, before, after)
    made = _joined(marks, edges.holes(), bare)
    seen: set[tuple[int, int, int]] = set()
    stated: list[Hole] = []
    for hole in made.holes:
        name = (hole.text, hole.first, hole.past)
        turn = stated[-1].turn if stated else 0
        owner = next((own for own in owners[hole.text] if own.turn >= turn), owners[hole.text][-1])
        stated.append(Hole(owner.turn, owner.kind, name in seen))
        seen.add(name)
    parts = [part for literal in made.literals for part in (literal, "")][:-1]
    plain = [hole.text for hole in made.holes] == list(range(len(shapes))) and all(
        hole.is_whole and hole.cuts == (KEPT, KEPT) and not hole.is_json for hole in made.holes
    )
    blocks = tuple(sorted(made.blocks))
    return Skeleton(tuple(made.holes), parts, plain), Rendering(
        tuple(made.literals), tuple(stated), blocks
    )


class _Edges:
    """Finds out what a template leaves of the white space at the ends of texts."""

    def __init__(
        self,
        marks: Marks,
        holes: list[Stretch],
        literals: list[str],
        strips: Sequence[str | None],
    ) -> None:
        self._holes, self._literals = holes, literals
        ways: list[Strip] = [KEPT, *strips]
        lengths = [len(marks.shapes[hole.text]) for hole in holes]
        ends = [hole.past == past for hole, past in zip(holes, lengths, strict=True)]
        rights = [ways if is_end else [KEPT] for is_end in ends]
        lefts = [[KEPT] if hole.first else ways for hole in holes]
        self._around = [
            (h > 0 and ends[h - 1], h < len(holes) and not holes[h].first)
            for h in range(len(literals))
        ]
        self._ways: list[list[tuple[Strip, Strip]]] = [
            [(a, b) for a in (rights[h - 1] if h else [KEPT]) for b in [*lefts, [KEPT]][h]]
            for h in range(len(literals))
        ]

    def see(self, spaced: list[str], before: str, after: str) -> None:
        """Keep the ways that explain a rendering of marks between `before` and `after`."""
        for h, (literal, ways) in enumerate(zip(self._literals, self._ways, strict=True)):
            is_json = [hole.is_json for hole in self._holes]
            jsons = (h > 0 and is_json[h - 1], h < len(is_json) and is_json[h])
            self._ways[h] = [
                (left, right)
                for left, right in ways
                if spaced[h]
                == _left(after, left, 1, jsons[0]) * self._around[h][0]
                + literal
                + _left(before, right, 0, jsons[1]) * self._around[h][1]
            ]

    def holes(self) -> list[Stretch]:
        """The holes, cut so.

        Raises:
            Unlike: that is not clear.
        """
        if any(len(ways) != 1 for ways in self._ways):
            raise Unlike
        (found, after) = [ways[0] for ways in self._ways], range(1, len(self._ways))
        return [
            replace(hole, cuts=(found[h - 1][1], found[h][0]))
            for h, hole in zip(after, self._holes, strict=True)
        ]


def _left(space: str, way: Strip, side: int, is_json: bool) -> str:
    """What is left of white space before (0) or after (1) a text."""
    if way != KEPT:
        space = space.rstrip(way) if side else space.lstrip(way)
    return _quoted(space) if is_json else space


def is_deaf(render: Callable[[Sequence[str]], str], size: int, asked: Asked) -> bool:
    """Whether it does not matter to the template if `size` texts hold words that it looks for, but
    for cutting there: none of them, each alone, and all together lead to the same rendering."""
    words = [word for word in asked.held if word not in asked.cut]
    held = [(), *((word,) for word in words), tuple(words)]
    written = []
    for one in dict.fromkeys(held):
        marks = Marks([(one,)] * size)
        written.append(marks.read(render(marks.texts())))
    return all(other == written[0] for other in written)


@dataclass(frozen=True, slots=True)
class _Made:
    literals: list[str]
    holes: list[Stretch]
    blocks: list[CharStretch]


def _joined(marks: Marks, holes: list[Stretch], written: _Written) -> _Made:
    """`holes`, with the words of their own texts that stand beside them in the rendering."""
    literals, joined = written.literals[:1], list[Stretch]()
    borders = {position for block in written.blocks for position in block}
    moved: dict[CharPosition, CharPosition] = {}
    for h, (hole, literal) in enumerate(zip(holes, written.literals[1:], strict=True), 1):
        shape = marks.shapes[hole.text]
        own = [at for at in sorted(borders) if at[0] == 2 * h]
        last = joined[-1] if joined else None
        between = literals[-1]
        if (
            last is not None
            and (last.text, last.past + 1) == (hole.text, hole.first)
            and between == shape[last.past]
            and not last.is_json | hole.is_json
            and not any(at[0] == 2 * (h - 1) for at in borders)
        ):
            literals.pop()
            joined.pop()
            hole = replace(hole, first=last.first, cuts=(last.cuts[0], hole.cuts[1]))
        shift = 0
        if hole.past == len(shape) - 1 and not hole.is_json and literal.startswith(str(shape[-1])):
            shift = len(str(shape[-1]))
            hole = replace(hole, past=len(shape))
            if any(offset < shift for _, offset in own):
                raise Unlike
        joined.append(replace(hole, is_whole=(hole.first, hole.past) == (0, len(shape))))
        literals.append(literal[shift:])
        moved |= {(border, offset): (2 * len(joined), offset - shift) for border, offset in own}
    moved |= {at: at for at in borders if not at[0]}
    return _Made(literals, joined, [(moved[a], moved[b]) for a, b in written.blocks])
