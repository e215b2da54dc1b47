"""Where each trained turn is in a rendering.

A rendering of marks is a row of the template's own words (*literals*) and what it made of the
record's texts (*holes*), each of which belongs to one turn. A turn's region begins after the words
that the template ends a prompt with (``<|im_start|>assistant\\n``) and ends with the token that it
ends a turn with; both are learned from small renderings, once per template. Where marks do not show
a turn, it is what follows the rendering of all before it (`by_prefix`), or an error: never a guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from packidx.errors import BadRecord
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Turn


def find_turns(
    rendering: Rendering,
    turns: Sequence[Turn],
    words: TurnWords,
    policy: LabelPolicy,
    has_blocks: bool,
) -> list[Region[CharPosition]]:
    """The regions of all turns that are trained on, in order.

    Args:
        has_blocks: the template has ``{% generation %}`` blocks: they are the turns, of all that
            `policy.roles` names.

    Raises:
        Lost: a turn is not there, or not to be told from its neighbours.
    """
    wanted = [turn.role in policy.roles for turn in turns] if has_blocks else policy.trains(turns)
    finder = _Finder(rendering, turns, words, policy, wanted)
    return finder.from_blocks() if has_blocks else finder.from_words()


def trailing_media(turn: Turn) -> int:
    """The media that follow a turn's last text."""
    parts = [part for part in turn.parts if part != ""]
    texts = [number for number, part in enumerate(parts) if isinstance(part, str)]
    return len(parts) - 1 - texts[-1] if texts else len(parts)


class _Finder:
    def __init__(
        self,
        rendering: Rendering,
        turns: Sequence[Turn],
        words: TurnWords,
        policy: LabelPolicy,
        wanted: Sequence[bool],
    ) -> None:
        self.rendering, self.turns, self.words, self.policy = rendering, turns, words, policy
        self.mine = [number for number, chosen in enumerate(wanted) if chosen]
        self._is_mine = frozenset(self.mine)
        self.starts: dict[int, CharPosition] = {}
        self.ends: dict[int, tuple[CharPosition, CharStretch | None]] = {}

    # -- templates that say it --------------------------------------------------------------------

    def from_blocks(self) -> list[Region[CharPosition]]:
        """A region per block; blocks without a text of their own go by order."""
        regions: list[Region[CharPosition]] = []
        turn = -1
        if not self.rendering.holes and len(self.rendering.blocks) != len(self.mine):
            raise Lost("it is not clear whose a block is")
        spoken = {hole.turn for hole in self.rendering.holes if hole}
        for start, end in self.rendering.blocks:
            inside = [
                hole.turn
                for number, hole in enumerate(self.rendering.holes)
                if hole and hole.turn in self.mine and start <= (2 * number + 1, 0) < end
            ]
            if inside:
                turn = inside[0]
            else:
                silent = [n for n in self.mine if n > turn and n not in spoken]
                turn = silent[0] if silent else turn
            if turn < 0:
                raise Lost("a generation block belongs to no turn")
            body, stop = self._block_end(start, end)
            regions.append(self._region(turn, start, body, [], stop))
        return regions

    def _region(
        self,
        turn: int,
        start: CharPosition,
        end: CharPosition,
        media: list[CharStretch],
        stop: CharStretch | None,
    ) -> Region[CharPosition]:
        cuts = self._cuts(turn, start, end)
        if any(high == end for _, high in cuts):
            stop = None  # it goes with what stands before it
        return Region(turn, start, end, (*media, *cuts), stop)

    def _block_end(
        self, start: CharPosition, end: CharPosition
    ) -> tuple[CharPosition, CharStretch | None]:
        border, offset = end
        if border % 2 or self.words.control is None:
            return end, None
        literal = self.rendering.literals[border // 2]
        first = start[1] if start[0] == border else 0
        tail = literal[first:offset].rstrip()
        for token in self.words.control.finditer(tail):
            if token.end() == len(tail):
                body = (border, first + token.start())
                return body, (body, end)
        return end, None

    # -- templates that do not ---------------------------------------------------------------------

    def from_words(self) -> list[Region[CharPosition]]:
        owners = [-1, *map(self._turn, range(len(self.rendering.holes))), len(self.turns)]
        for h in reversed(range(1, len(owners) - 1)):
            if owners[h] != owners[h + 1] and self._is_ahead(h - 1):
                owners[h] = owners[h + 1]
        for h, literal in enumerate(self.rendering.literals):
            before, after = owners[h : h + 2]
            if before != after:
                self._between(h, literal, before, after)
        regions = []
        for turn in self.mine:
            if turn not in self.starts or turn not in self.ends:
                raise Lost(f"turn {turn}")
            start, (end, stop) = self.starts[turn], self.ends[turn]
            if start > end:
                raise Lost(f"turn {turn} ends before it starts")
            regions.append(self._region(turn, start, end, self._media_cuts(start, end), stop))
        return regions

    def _turn(self, hole: int) -> int:
        owner = self.rendering.holes[hole]
        if owner is None:
            raise Lost("a text belongs to several turns")
        if owner.kind == "other" and owner.turn in self._is_mine:
            raise Lost("a trained message's other keys are written")
        return owner.turn

    def _is_ahead(self, hole: int) -> bool:
        """Return whether a tool call's text is written in the header of the next turn: behind the
        end of its own, or again."""
        stated, literal, words = (
            self.rendering.holes[hole],
            self.rendering.literals[hole],
            self.words,
        )
        if stated is None or stated.kind != "tool":
            return False
        _, ended, header = literal.partition(words.stop) if words.stop else ("", "", "")
        follows = hole > 0 and self._turn(hole - 1) == stated.turn
        if ended and follows and without_thinking(words.header) not in header:
            return True
        return bool(stated.is_again and words.control and words.control.search(literal))

    def _between(self, h: int, literal: str, before: int, after: int) -> None:
        """Turn `before` ends and turn `after` begins in literal `h`; those between have no hole."""
        silent = self.mine[bisect_right(self.mine, before) : bisect_left(self.mine, after)]
        begin = [*silent, after] if after in self._is_mine else silent
        header = self.words.header
        if begin and header not in literal:
            header = without_thinking(header)  # a prompt may open what the history leaves out
        heads = [m.end() for m in re.finditer(re.escape(header), literal)] if header else []
        if silent and len(heads) != len(begin):
            raise Lost("turns without text")
        heads = heads[-len(begin) :] if begin else []
        if begin and not heads and (behind := self.rendering.holes[h]) and behind.is_late:
            raise Lost("the beginning of a text")
        for number, turn in enumerate(begin):
            if turn in self.starts:
                raise Lost("turns are mixed")
            self.starts[turn] = (2 * h, heads[number]) if heads else (2 * h + 1, 0)
        stops = [*(head - len(header) for head in heads), len(literal)]
        if before in self._is_mine:
            if before in self.ends:
                raise Lost("turns are mixed")
            hole = self.rendering.holes[h - 1]
            assert hole is not None
            spoke = hole.kind == "content"
            media = trailing_media(self.turns[before]) if spoke else 0
            self.ends[before] = self._end(h, 0, stops[0], media, hole.kind)
        for number, turn in enumerate(silent):
            said = self.turns[turn]
            media = 0 if said.texts else trailing_media(said)
            self.ends[turn] = self._end(h, heads[number], stops[number + 1], media, "silent")

    def _end(
        self, h: int, at: int, limit: int, media: int, kind: str
    ) -> tuple[CharPosition, CharStretch | None]:
        """Return where a turn ends whose last text, or header, ends at `at` of literal `h`."""
        literal, words = self.rendering.literals[h], self.words
        for _ in range(media):
            placeholder = words.placeholder and words.placeholder.search(literal, at, limit)
            if not placeholder:
                raise Lost("a turn's media")
            at = placeholder.end()
        here = None
        if kind == "content" and not media:
            if words.stop and literal.startswith(words.gap + words.stop, at):
                here = (at + len(words.gap), at + len(words.gap) + len(words.stop))
            elif words.control and (token := words.control.match(literal, at)):
                here = token.span()
        elif words.stop and (first := literal.find(words.stop, at, limit)) >= 0:
            here = (first, first + len(words.stop))
        elif kind == "tool" and words.call_stop and words.call_stop in literal[at:limit]:
            first = literal.index(words.call_stop, at)
            here = (first, first + len(words.call_stop))
        elif not media and words.control and (token := words.control.search(literal, at, limit)):
            here = token.span()
        if here is None and kind in ("tool", "reasoning"):
            if h < len(self.rendering.holes) or limit < len(literal):
                raise Lost("the end of a turn")
            return (2 * h, limit), None  # the text ends with it
        if here is None:
            return (2 * h, at), None
        past = skip_space(literal, here[1], len(literal)) if self.policy.newline else here[1]
        return (2 * h, here[0]), ((2 * h, here[0]), (2 * h, past))

    # -- what is not trained on --------------------------------------------------------------------

    def _media_cuts(self, start: CharPosition, end: CharPosition) -> list[CharStretch]:
        """The template's words around media."""
        cuts = []
        for border, low, high in self._literals(start, end):
            text = self.rendering.literals[border // 2]
            if self.words.placeholder and self.words.placeholder.search(text, low, high):
                cuts.append(((border, low), (border, high)))
        return cuts

    def _literals(self, start: CharPosition, end: CharPosition) -> list[tuple[int, int, int]]:
        """The literals from `start` to `end`: border, and from and to which character."""
        parts = []
        for h in range((start[0] + 1) // 2, end[0] // 2 + 1):
            border = 2 * h
            low = start[1] if start[0] == border else 0
            high = end[1] if end[0] == border else len(self.rendering.literals[h])
            parts.append((border, low, high))
        return parts

    def _cuts(self, turn: int, start: CharPosition, end: CharPosition) -> list[CharStretch]:
        """Reasoning and tool calls that the message holds by themselves, if not trained on."""
        cuts: list[CharStretch] = []
        if self.policy.tool_calls and self.policy.thinking:
            return cuts
        for number in range(start[0] // 2, min(end[0] // 2 + 1, len(self.rendering.holes))):
            hole = self.rendering.holes[number]
            if hole is None or hole.turn != turn or not start <= (2 * number + 1, 0) <= end:
                continue
            low, high = self._other(number, -1, hole, start), self._other(number, 1, hole, end)
            if hole.kind == "tool" and not self.policy.tool_calls:
                before = low[0] // 2 - 1
                closed = self._closed(before) if low != start and before >= 0 else None
                cuts.append((max(low, closed or low), high))
            if hole.kind == "reasoning" and not self.policy.thinking:
                cuts.append((low, min(high, self._closed(number) or high)))
        return cuts

    def _other(self, number: int, way: int, hole: Hole, edge: CharPosition) -> CharPosition:
        """Return where the turn's next hole of another kind is, that way; or the region's edge."""
        holes = self.rendering.holes
        while 0 <= number + way < len(holes) and (nearby := holes[number + way]):
            number += way
            if nearby.turn != hole.turn:
                break
            if nearby.kind != hole.kind:
                return (2 * number + 1, 0) if way > 0 else (2 * number + 2, 0)
        return edge

    def _closed(self, number: int) -> CharPosition | None:
        """After the tag that closes the reasoning in hole `number`, if there is one."""
        literal = self.rendering.literals[number + 1]
        for _, closing in THINKING:
            if (at := literal.find(closing)) >= 0:
                past = skip_space(literal, at + len(closing), len(literal))
                return (2 * number + 2, past)
        return None


def without_thinking(header: str) -> str:
    """Return a prompt's end up to the tag that opens the model's reasoning."""
    return next((header.partition(tag)[0] for tag, _ in THINKING if tag in header), header)


def by_prefix(
    render: Render,
    conversation: Conversation,
    text: str,
    wanted: Sequence[bool],
    control: re.Pattern[str] | None,
    policy: LabelPolicy,
) -> list[Region[int]]:
    """The wanted turns of the rendering `text`, each found by rendering the turns before it with
    the generation prompt: what follows, up to the next special token, the model would generate.

    Args:
        render: conversations as the template writes them.
        wanted: per turn whether it is trained on.
        control: any special token.

    Raises:
        BadRecord: ``template`` if the text does not show that.
    """
    turns, regions = conversation.turns, list[Region[int]]()
    for number, turn in enumerate(turns):
        if not wanted[number]:
            continue
        prefix = render(replace(conversation, turns=turns[:number]), prompt=True)
        start = len(prefix)
        late = bool(regions) and start < regions[-1].end
        texts = [part for part in turn.parts if isinstance(part, str)]
        said = any(part.strip() for part in texts)
        forged = any(control and control.search(part) for part in texts)
        token = control.search(text, start) if control else None
        silent = token is not None and said and token.start() == start
        if token is not None and turn.extra.get("tool_calls"):
            # It must end there, and its calls must be told from what else it says.
            until = render(replace(conversation, turns=turns[: number + 1])).rstrip()
            told = policy.tool_calls or any(tag in until for tag, _ in TOOL_CALLS)
            silent |= not (told and len(until) == token.end() and text.startswith(until))
        if late or forged or token is None or silent or not text.startswith(prefix):
            raise BadRecord(
                "template",
                "the chat template does not show which tokens "
                f"turn {number} ({turn.role}) is made of",
            )
        past = skip_space(text, token.end(), len(text)) if policy.newline else token.end()
        regions.append(Region(number, start, token.start(), stop=(token.start(), past)))
    return regions


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
    """A text of the record in a rendering: whose it is, and of which kind."""

    turn: int
    kind: str
    """``"content"``, ``"reasoning"``, ``"tool"`` or ``"other"``."""
    is_again: bool = False
    """Whether the same text stands in the rendering before."""
    is_late: bool = False
    """Whether words of its text may stand before it."""


@dataclass(frozen=True, slots=True)
class TurnWords:
    """The words that a template writes around turns."""

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
) -> TurnWords:
    """The words around turns, from small renderings; what they do not show is empty."""
    both = _try(render, (("user", _ASKED), ("assistant", _SAID)))
    tail = both.rpartition(_SAID)[2] if both else ""
    between = both.partition(_ASKED)[2].partition(_SAID)[0]
    gap, stop = "", ""
    token = control.search(tail) if control else None
    if token and not tail[: token.start()].strip():
        gap, stop = tail[: token.start()], token.group()
    header, call_stop = _header(render, between), _call_stop(render, control)
    return TurnWords(header, gap, stop, call_stop, control, placeholder)


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
    """Return what closes a tool call at the end of a conversation, or its last special token."""
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
