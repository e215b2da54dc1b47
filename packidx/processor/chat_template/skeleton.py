"""What a template makes of all records of one shape.

A record's shape is all that the template may tell it from others by: the `structure` of its
messages, and of each text the white space at its ends and the template's own words in it. The
template is rendered with marks in place of what else there is of the texts (their *cores*); where
the marks come out, the cores of any record of the shape are put: its rendering, without Jinja. A
mark holds letters of both cases, white space, quotes and what else filters change: it comes out as
it is, or as JSON writes it, or it does not stand for a text. Marks of two lengths, with and without
the words that are in the record's cores, must come out alike, and what is put together must be
Jinja's rendering of the record that the shape is learned of.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from packidx.processor.chat_template.asked import MARKS, AskedOfTexts
from packidx.processor.chat_template.turns import (
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

MAX_PIECES = 64
"""Pieces of one text; one with more is rendered by Jinja."""
_OPEN, _CLOSE, _BEGIN, _END = tuple(MARKS)
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}|([{_BEGIN}{_END}])")
FILLER = "aZ \"9\\\n\t<&'{%é "

Shape = tuple[str | None, ...]
"""A text's pieces: words of the template with the white space beside them, white space at its ends,
and None for a core."""
PLAIN: Shape = (None,)


class Unlike(Exception):
    """Texts, or a template, that marks cannot stand for."""


def shapes_of(
    texts: Sequence[str], asked: AskedOfTexts, *, marks_space: bool = False
) -> tuple[list[Shape], list[str]]:
    """Return what the template may ask of `texts`, none empty: the shape of each; and all cores.

    Args:
        marks_space: a text that is white space alone is a core, and not as it is in its shape.

    Raises:
        Unlike: marks cannot stand for a text, or two are equal where that matters.
    """
    if asked.distinct and len({text.strip() for text in texts}) < len(texts):
        raise Unlike
    together = "\0".join(texts) if asked.cut or asked.edges else ""
    is_cut = any(word in together for word in asked.cut)
    is_edged = any(char in together for char in asked.edges)
    shapes: list[Shape] = []
    cores: list[str] = []
    for text in texts:
        bare = text.strip()
        if not bare and marks_space:
            shapes.append(PLAIN)
            cores.append(text)
        elif not bare or bare in asked.equal:
            shapes.append((text,))
        elif is_cut or is_edged:
            shapes.append(_cut(text, asked, cores))
        elif len(bare) == len(text):
            shapes.append(PLAIN)
            cores.append(text)
        else:
            low = text.index(bare[0])
            shapes.append(_around(text[:low], text[low + len(bare) :]))
            cores.append(bare)
    return shapes, cores


@functools.lru_cache(maxsize=1024)
def _around(before: str, after: str) -> Shape:
    """The shape of a text that has one core, between white space."""
    return tuple([piece for piece in (before, None, after) if piece != ""])


def _cut(text: str, asked: AskedOfTexts, cores: list[str]) -> Shape:
    """The shape of a text that may hold words of the template, or make one together with what
    stands beside it; its cores are added to `cores`."""
    found = [m.span() for m in asked.pieces.finditer(text)] if asked.pieces else []
    tail = asked.tail.match(text) if asked.tail else None
    head = asked.head.search(text) if asked.head else None
    if tail and not any(start < tail.end() for start, _ in found):
        found.insert(0, tail.span())
    if head and not any(end > head.start() for _, end in found):
        found.append(head.span())
    shape: list[str | None] = []
    at = 0
    for start, end in [*found, (len(text), len(text))]:
        piece = text[at:start]
        core = piece.strip()
        if not core or core in asked.equal:
            shape.append(piece)
        else:
            before, _, after = piece.partition(core)
            shape += before, None, after
            cores.append(core)
        shape.append(text[start:end])
        at = end
    shape = [piece for piece in shape if piece != ""]
    said = [piece for piece in shape if piece is not None]
    if len(shape) > MAX_PIECES or any(
        text.count(word) != sum(piece.count(word) for piece in said) for word in asked.cut
    ):
        raise Unlike
    return tuple(shape)


@dataclass(frozen=True, slots=True)
class Taken:
    """The core that a hole takes."""

    core: int
    is_json: bool
    """Whether it is written as JSON writes it."""

    def of(self, cores: Sequence[str]) -> str:
        return _put(cores[self.core], self.is_json)


@dataclass(slots=True)
class Skeleton:
    """A template's words, and where its labels and media are."""

    holes: tuple[Taken, ...]
    parts: list[str]
    """The literals, with an empty text for each hole between them."""
    plain: bool
    """Whether the holes take the record's cores as they are, each once and in order."""
    dates: tuple[tuple[str, str], ...] = ()
    """What it writes of today: layout, and what that gave."""
    spans: tuple[CharStretch, ...] | None = None
    """What is trained on; None where that takes a look at the text (`turns`)."""
    turns: tuple[Region[CharPosition], ...] = ()
    media: tuple[CharPosition, ...] | None = None
    """Where the media are; None where that takes a look at the text."""
    lost: bool = False
    """Whether the trained turns must be looked for in each record by itself."""

    def fill(self, cores: Sequence[str]) -> tuple[str, list[int]]:
        """The text, and where each border (`rendering.CharPosition`) is in it."""
        parts = self.parts.copy()
        if self.plain:
            parts[1::2] = cores
        else:
            parts[1::2] = [hole.of(cores) for hole in self.holes]
        return "".join(parts), [0, *accumulate(map(len, parts))]

    def label_spans(self, text: str, borders: list[int], policy: LabelPolicy) -> tuple[Span, ...]:
        """The characters that are trained on."""
        if self.spans is None:
            regions = [region_at(turn, borders) for turn in self.turns]
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


def region_at(turn: Region[CharPosition], borders: list[int]) -> Region[int]:
    """A turn in the text whose borders (`Skeleton.fill`) these are."""

    def at(position: CharPosition) -> int:
        return borders[position[0]] + position[1]

    cuts = tuple((at(low), at(high)) for low, high in turn.cuts)
    stop = None if turn.stop is None else (at(turn.stop[0]), at(turn.stop[1]))
    return Region(turn.turn, at(turn.start), at(turn.end), cuts, stop)


# -- learning --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearntShape:
    """A template's rendering of a shape, twice: for filling in, and as turns are found in it.

    In `rendering` a hole is a whole text as far as the template leaves it whole, words included.
    """

    skeleton: Skeleton
    rendering: Rendering
    places: tuple[tuple[int, int, int], ...]
    """For each literal of `rendering` the skeleton's, and from and to which character of that."""
    open_texts: frozenset[int]
    """Texts of which it is not clear where they end."""

    def placed(self, position: CharPosition) -> CharPosition:
        """A position in the rendering as one in the skeleton."""
        literal, low, high = self.places[position[0] // 2]
        if position[0] % 2:  # the end of a literal, where a hole starts
            return 2 * literal, high
        return 2 * literal, low + position[1]

    def region(self, turn: Region[CharPosition]) -> Region[CharPosition]:
        """A turn of the rendering as one of the skeleton."""

        def moved(stretch: CharStretch) -> CharStretch:
            return self.placed(stretch[0]), self.placed(stretch[1])

        start, end = moved((turn.start, turn.end))
        cuts = tuple(map(moved, turn.cuts))
        return Region(turn.turn, start, end, cuts, None if turn.stop is None else moved(turn.stop))


@dataclass(frozen=True, slots=True)
class _Written:
    """A rendering of marks: ``literals[0] marks[0] literals[1] …``."""

    literals: list[str]
    marks: list[tuple[int, bool]]
    """Number of the mark, and whether it is written as JSON."""
    blocks: list[CharStretch]


def learn(
    render: Callable[[Sequence[str]], str],
    shapes: Sequence[Shape],
    owners: Sequence[Sequence[Hole]],
    fillers: Iterable[Sequence[str]],
) -> LearntShape:
    """Return what the template makes of all texts of these shapes.

    Args:
        render: texts as the template writes them, blocks between the last two of `MARKS`.
        owners: whose each text is; of one that several turns have, these.
        fillers: what the mark of each core holds, in two renderings or more; in all but the first
            the white space at the ends of texts stands twice, which shows whether it is kept.

    Raises:
        Unlike: marks do not show that.
    """
    once, *others = fillers
    written = _read(render(_texts(shapes, once)), once)
    spaced, *rest = (_read(render(_texts(shapes, own, twice=True)), own) for own in others)
    if spaced.marks != written.marks or any(
        (each.marks, each.literals) != (spaced.marks, spaced.literals) for each in rest
    ):
        raise Unlike
    return _joined(shapes, owners, written, spaced)


def _put(text: str, is_json: bool) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1] if is_json else text


def fillers_of(num_cores: int, asked: AskedOfTexts, words: Sequence[str]) -> list[list[str]]:
    """Return what marks hold that stand for cores which may hold `words`: nothing of the template,
    at two lengths; all words; and one each.

    Raises:
        Unlike: the template looks for something like that.
    """
    own = *asked.cut, *asked.held
    filler = "".join(char for char in FILLER if char not in own) * 2
    if any(word in filler for word in own):
        raise Unlike
    fillers = [[filler] * num_cores, [filler * 99 + "".join(words)] * num_cores]
    if len(words) > 1:
        fillers.append([filler + words[i % len(words)] for i in range(num_cores)])
    return fillers


def held_in(texts: Sequence[str], asked: AskedOfTexts) -> tuple[str, ...]:
    """Return which words of `asked.held` are in `texts`."""
    together = "\0".join(texts)
    return tuple([word for word in asked.held if word in together])


def _mark(number: int, filler: str) -> str:
    return f"{_OPEN}{number}{_CLOSE}{filler}{_CLOSE}"


def _texts(shapes: Sequence[Shape], fillers: Sequence[str], twice: bool = False) -> list[str]:
    """The texts, with marks in place of their cores."""
    texts, number = [], 0
    for shape in shapes:
        text = ""
        for piece in shape:
            text += _mark(number, fillers[number]) if piece is None else piece
            number += piece is None
        if twice and len(shape) > 1:
            first, last = shape[0] or "", shape[-1] or ""
            text = first * (first.isspace() and shape[1] is None) + text
            text += last * (last.isspace() and shape[-2] is None)
        texts.append(text)
    return texts


def _read(rendering: str, fillers: Sequence[str]) -> _Written:
    """Return where marks came out.

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
            written.blocks.append((begun.pop() if begun else (0, 0), position))
        elif int(found[1]) >= len(fillers):
            raise Unlike
        else:
            mark = _mark(int(found[1]), fillers[int(found[1])])
            is_json = not rendering.startswith(mark, found.start())
            if is_json and not rendering.startswith(mark := _put(mark, True), found.start()):
                raise Unlike
            written.marks.append((int(found[1]), is_json))
            written.literals.append("")
            at = found.start() + len(mark)
    written.literals[-1] += rendering[at:]
    if any(mark in literal for literal in written.literals for mark in MARKS):
        raise Unlike
    return written


@dataclass(frozen=True, slots=True)
class _Core:
    """A core's text, and what stands beside it in that text."""

    text: int
    before: str
    """Words from the text's beginning, if it is the first one."""
    after: str
    """Words up to the next core, or the text's end."""
    begins: bool
    """Whether it is the first one of the text."""
    ends: bool
    """Whether it is the last one of the text."""


def _cores(shapes: Sequence[Shape]) -> list[_Core]:
    cores = []
    for text, shape in enumerate(shapes):
        places = [number for number, piece in enumerate(shape) if piece is None]
        for place, past in zip(places, [*places, len(shape)][1:], strict=True):
            begins, ends = place == places[0], place == places[-1]
            before = "".join(map(str, shape[:place])) if begins else ""
            after = "".join(map(str, shape[place + 1 : past]))
            cores.append(_Core(text, before, after, begins, ends))
    return cores


@dataclass(frozen=True, slots=True)
class _Edge:
    """The characters that a literal and a text beside it share."""

    cut: int
    """Where the template's own characters begin, or end."""
    space: str = ""
    """White space of the text that stands there, and once more where it stands twice."""
    is_clear: bool = True
    """Whether the text is seen to end, or to begin, there."""


def _edges(
    literal: str, spaced: str, after: tuple[str, bool] | None, before: tuple[str, bool] | None
) -> tuple[_Edge, _Edge]:
    """Return what a literal shares with the text before it and with the one behind it.

    Args:
        spaced: the literal where white space at the ends of texts stands twice.
        after: words that the text before it ends with, and whether as JSON writes them; None where
            no text ends.
        before: words that the text behind it begins with, likewise.

    Raises:
        Unlike: that is not clear.
    """
    size = len(literal)
    ends, begins = [_Edge(0, is_clear=False)], [_Edge(size, is_clear=False)]
    if after is not None:
        words, least = _put(*after), len(_put(after[0].rstrip(), after[1]))
        kept = [n for n in range(least, len(words) + 1) if literal.startswith(words[:n])]
        ends = [_Edge(kept[-1])] if kept else ends
        if after[0].isspace() and literal.startswith(words):
            ends.append(_Edge(len(words), words))
    if before is not None and not before[0].strip():
        words = _put(*before)
        begins = [_Edge(size)]
        if words and literal.endswith(words):
            begins.append(_Edge(size - len(words), words))
    for left, right in product(ends, begins):
        if left.cut <= right.cut:
            middle = literal[left.cut : right.cut]
            parts = literal[: left.cut], left.space, middle, right.space, literal[right.cut :]
            if spaced == "".join(parts):
                return left, right
    raise Unlike


def _joined(
    shapes: Sequence[Shape],
    owners: Sequence[Sequence[Hole]],
    written: _Written,
    spaced: _Written,
) -> LearntShape:
    """Cores as parts of the texts that the template leaves whole."""
    cores = _cores(shapes)
    taken = [Taken(number, is_json) for number, is_json in written.marks]
    holes = [cores[number] for number, _ in written.marks]
    parts = [part for literal in written.literals for part in (literal, "")][:-1]
    plain = [Taken(number, False) for number in range(len(cores))] == taken
    skeleton = Skeleton(tuple(taken), parts, plain)
    borders = {position for block in written.blocks for position in block}
    said = {n for n, shape in enumerate(shapes) if any(p is None or p.strip() for p in shape)}
    open_texts = set(said)
    literals: list[str] = []
    places: list[tuple[int, int, int]] = []
    stated: list[Hole] = []
    seen: set[int] = set()
    for h, literal in enumerate(written.literals):
        inside = [offset for border, offset in borders if border == 2 * h]
        after = before = None
        if h:
            left, is_json = holes[h - 1], taken[h - 1].is_json
            follows = h < len(holes) and taken[h].core == taken[h - 1].core + 1
            if follows and not (is_json or left.ends or inside) and literal == left.after:
                continue  # one text goes on
            after = (left.after, is_json) if left.ends else None
        if h < len(holes) and holes[h].begins:
            before = holes[h].before, taken[h].is_json
        end, begin = _edges(literal, spaced.literals[h], after, before)
        if after is not None and end.is_clear:
            open_texts.discard(holes[h - 1].text)
        if any(not end.cut <= offset <= begin.cut for offset in inside):
            raise Unlike
        literals.append(literal[end.cut : begin.cut])
        places.append((h, end.cut, begin.cut))
        if h < len(holes):
            theirs, turn = owners[holes[h].text], stated[-1].turn if stated else 0
            owner = next((each for each in theirs if each.turn >= turn), theirs[-1])
            is_again = taken[h].core in seen
            stated.append(Hole(owner.turn, owner.kind, is_again, not begin.is_clear))
            seen.add(taken[h].core)
    back = {literal: (number, low) for number, (literal, low, _) in enumerate(places)}

    def moved(position: CharPosition) -> CharPosition:
        number, low = back[position[0] // 2]
        return 2 * number, position[1] - low

    blocks = tuple((moved(start), moved(end)) for start, end in sorted(written.blocks))
    rendering = Rendering(tuple(literals), tuple(stated), blocks)
    return LearntShape(skeleton, rendering, tuple(places), frozenset(open_texts))
