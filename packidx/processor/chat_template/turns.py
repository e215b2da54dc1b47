"""Where each trained turn is in a rendering.

A rendering is the template's own words with the record's texts (`Stretch`) between them. A turn
begins after the words that the template ends a prompt with (``<|im_start|>assistant\n``) and ends
with the token that it ends a turn with; both are learned from small renderings, once per template.
A turn that does not show is an error, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import Lost, Shown, Span, Stretch, gaps
from packidx.processor.labels import ROLE, LabelPolicy
from packidx.records.conversation import Conversation, Turn

THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|think|>", "<|/think|>"),
    ("◁think▷", "◁/think▷"),
)
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an assistant's message that hold its thoughts."""
TOOL_CALLS = (("<tool_call>", "</tool_call>"), ("<|tool_call>", "<tool_call|>"))
CALLS = ("tool_calls", "function_call")
"""Keys of one that hold what it calls."""
_SAID = "Answer\ue0b4"

Render = Callable[..., str]
"""A conversation as text; ``prompt=True`` with the generation prompt. Raises BadRecord."""


@dataclass(frozen=True, slots=True)
class Region:
    """One turn in a rendering."""

    turn: int
    start: int
    end: int
    """Of what the turn says: where its end-of-turn token begins, if it has one."""
    cuts: tuple[Span, ...] = ()
    """Inside it, the template's words around media."""
    stop: Span | None = None
    """The end-of-turn token."""


@dataclass(frozen=True, slots=True)
class TurnWords:
    """The words that a template writes around turns."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    stop: str
    """The token that ends a turn; empty if unknown or there is none."""
    call_stop: str
    """What ends a turn which calls a tool, where that is not `stop`; empty as well."""
    control: re.Pattern[str] | None
    """Any special token."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""


def find_turns(
    shown: Shown,
    turns: Sequence[Turn],
    words: TurnWords,
    policy: LabelPolicy,
    has_blocks: bool,
) -> list[Region]:
    """Return the regions of all turns that are trained on, in order.

    Args:
        has_blocks: the template has ``{% generation %}`` blocks: they are the turns, of all
            messages of the assistant.

    Raises:
        Lost: a turn is not there, or not to be told from its neighbours.
    """
    wanted = policy.trains(turns)
    if not has_blocks:
        return _Finder(shown, turns, words, wanted).from_words()
    of_role = [turn.role == ROLE for turn in turns]
    regions = _Finder(shown, turns, words, of_role).from_blocks()
    return [region for region in regions if wanted[region.turn]]


class _Finder:
    def __init__(
        self,
        shown: Shown,
        turns: Sequence[Turn],
        words: TurnWords,
        wanted: Sequence[bool],
    ) -> None:
        self.text, self.stretches, self.blocks = shown.text, shown.stretches, shown.blocks
        self.turns, self.words = turns, words
        self.mine = [number for number, chosen in enumerate(wanted) if chosen]
        self.spoken = {stretch.turn for stretch in self.stretches}
        self.has_control = False
        """Whether a special token is in what has no marks."""
        self.starts: dict[int, int] = {}
        self.ends: dict[int, tuple[int, Span | None]] = {}

    # -- templates that say it --------------------------------------------------------------------

    def from_blocks(self) -> list[Region]:
        """A region per block."""
        if not self.stretches and len(self.blocks) != len(self.mine):
            raise Lost("which turn a generation block belongs to")
        regions: list[Region] = []
        for number, (start, end) in enumerate(self.blocks):
            inside = [each for each in self.stretches if start <= each.start and each.end <= end]
            turn = self._owner(start, inside) if self.stretches else self.mine[number]
            own = inside[-1].end if inside else start
            body, stop = self._block_end(own, end)
            regions.append(Region(turn, start, body, (), stop))
        return regions

    def _owner(self, start: int, inside: Sequence[Stretch]) -> int:
        """Whose a block is that starts at `start`, by the texts in it, or the last one before."""
        before = [-1, *(each.turn for each in self.stretches if each.end <= start)][-1]
        later = [turn for turn in self.mine if turn >= before]
        owners = [each.turn for each in inside if each.turn in self.mine] or later
        if not owners:
            raise Lost("which turn a generation block belongs to")
        return owners[0]

    def _block_end(self, start: int, end: int) -> tuple[int, Span | None]:
        """Where a block's words end whose last text ends at `start`, and its end-of-turn token."""
        tail = self.text[start:end].rstrip()
        for token in self.words.control.finditer(tail) if self.words.control else ():
            if token.end() == len(tail):
                body = start + token.start()
                return body, (body, end)
        return end, None

    # -- templates that do not ---------------------------------------------------------------------

    def from_words(self) -> list[Region]:
        """A region per turn, by the words around turns."""
        self._refuse_forged()
        ends = [None, *self.stretches, None]
        for left, right in pairwise(ends):
            if left is None or right is None or left.turn != right.turn:
                self._between(left, right)
        regions = []
        for turn in self.mine:
            if turn not in self.starts or turn not in self.ends:
                raise Lost(f"where turn {turn} begins and ends")
            start, (end, stop) = self.starts[turn], self.ends[turn]
            if start > end:
                raise Lost(f"turn {turn} ends before it starts")
            cuts = self._media_cuts(start, end)
            if cuts and _says_more(self.turns[turn]):
                raise Lost(f"what stands beside media in turn {turn}")
            regions.append(Region(turn, start, end, cuts, stop))
        return regions

    def _refuse_forged(self) -> None:
        """What has no marks, such as further keys of messages, may hold no word that turns are
        found by; a turn's texts have none if the template changes them."""
        told = {self.words.stop, self.words.header.strip()}
        told.add(_without_thinking(self.words.header).strip())
        if any(turn.extra.get("tool_calls") for turn in self.turns):
            told.add(self.words.call_stop)
        bare: list[str] = []
        for number, turn in enumerate(self.turns):
            texts = _spoken(turn)
            own = [each for each in self.stretches if each.turn == number]
            ended = {each.number for each in own if each.ends}
            if own and len(ended) < len(texts) and number in self.mine:
                raise Lost(f"where turn {number} ends")
            if self.stretches and not own and number not in self.mine:  # it is left out, it seems
                bare += [text for text in texts if text.strip() in self.text]
            elif len({each.number for each in own if each.begins} & ended) < len(texts):
                bare += texts
            if turn.extra:
                bare.append(repr(turn.extra))
        for text in bare:
            if any(word and word in text for word in told):
                raise Lost("a message holds a word of the template's own")
            self.has_control |= bool(self.words.control and self.words.control.search(text))

    def _between(self, left: Stretch | None, right: Stretch | None) -> None:
        """Between two texts a turn ends and another begins; those between them have no text."""
        low, before = (left.end, left.turn) if left else (0, -1)
        high, after = (right.start, right.turn) if right else (len(self.text), len(self.turns))
        silent = [n for n in self.mine if before < n < after and n not in self.spoken]
        begin = [*silent, after] if after in self.mine else silent
        header = self.words.header
        literal = self.text[low:high]
        if begin and header not in literal:
            header = _without_thinking(header)  # a prompt may open what the history leaves out
        heads = [low + m.end() for m in re.finditer(re.escape(header), literal)] if header else []
        says_more = any(_says_more(self.turns[turn]) for turn in begin)
        if begin == [before + 1] and says_more:
            heads = heads[:1]  # it may have several parts
        if begin and (silent or says_more) and len(heads) != len(begin):
            raise Lost(f"where turns {begin} begin")
        heads = heads[-len(begin) :] if begin else []
        opened = self.words.header[len(header) :]  # which may be a text's own, too
        for number, turn in enumerate(begin):
            if turn in self.starts or not (heads or (right and right.begins)):
                raise Lost(f"where turn {turn} begins")
            self.starts[turn] = heads[number] if heads else high
            if heads and opened and self.text.startswith(opened, heads[number]):
                self.starts[turn] += len(opened)
        stops = [*(head - len(header) for head in heads), high]
        if before in self.mine:
            if before in self.ends:
                raise Lost(f"turn {before} is in several places")
            self.ends[before] = self._end(before, low, stops[0], high)
        for number, turn in enumerate(silent):
            self.ends[turn] = self._end(turn, heads[number], stops[number + 1], high)

    def _end(self, turn: int, at: int, limit: int, high: int) -> tuple[int, Span | None]:
        """Return where a turn ends whose last text, or header, ends at `at`.

        Args:
            limit: where the next turn begins at the latest.
            high: where the template's words end.
        """
        text, said, token = self.text, self.turns[turn], self.words.placeholder
        calls, media = said.extra.get("tool_calls"), _trailing_media(said)
        if turn not in self.spoken and _spoken(said) and _num_media(said):
            raise Lost(f"where the media of turn {turn} are")
        for _ in range(media):
            placeholder = token and token.search(text, at, limit)
            if not placeholder:
                raise Lost(f"where the media of turn {turn} are")
            at = placeholder.end()
        stop = self._stop(turn, at, limit, high, is_next=turn in self.spoken and not media)
        if stop is None and (calls or (_spoken(said) and turn not in self.spoken)):
            if limit < len(text):
                raise Lost(f"where turn {turn} ends")
            return limit, None  # the text ends with it
        if stop is None:
            return at, None
        return stop[0], stop

    def _stop(self, turn: int, at: int, limit: int, high: int, *, is_next: bool) -> Span | None:
        """The token that ends a turn: what follows `at`, if it `is_next`; else the first behind."""
        words, text, said = self.words, self.text, self.turns[turn]
        calls = said.extra.get("tool_calls")
        if is_next and not calls:
            first = skip_space(text, at, high)
            token = words.control.match(text, first, high) if words.control else None
            return token.span() if token else None
        for word in (words.stop, words.call_stop if calls else ""):
            if word and (first := text.find(word, at, limit)) >= 0:
                return first, first + len(word)
        if calls or not words.control or _spoken(said) or _num_media(said):
            return None
        if self.has_control:
            raise Lost("a message holds a special token")
        token = words.control.search(text, at, limit)
        return token.span() if token else None

    def _media_cuts(self, start: int, end: int) -> tuple[Span, ...]:
        """The template's words around media."""
        inside = [each for each in self.stretches if start <= each.start and each.end <= end]
        lows = [start, *(each.end for each in inside)]
        highs = [*(each.start for each in inside), end]
        token = self.words.placeholder
        between = zip(lows, highs, strict=True)
        return tuple([gap for gap in between if token and token.search(self.text, *gap)])


def _says_more(turn: Turn) -> bool:
    """Return whether a message says something besides its content."""
    return any(turn.extra.get(key) for key in (*REASONING, *CALLS))


def _spoken(turn: Turn) -> list[str]:
    """Return the texts of a turn that are more than white space."""
    return [text for text in turn.texts if text.strip()]


def _num_media(turn: Turn) -> int:
    """Return how many media a turn has."""
    return sum(not isinstance(part, str) for part in turn.parts)


def _trailing_media(turn: Turn) -> int:
    """The media that follow a turn's last text."""
    parts = [part for part in turn.parts if not isinstance(part, str) or part.strip()]
    texts = [number for number, part in enumerate(parts) if isinstance(part, str)]
    return len(parts) - 1 - texts[-1] if texts else len(parts)


def _without_thinking(header: str) -> str:
    """Return a prompt's end up to the tag that opens the model's reasoning."""
    return next((header.partition(tag)[0] for tag, _ in THINKING if tag in header), header)


# -- what is trained on ----------------------------------------------------------------------------


def trained_spans(regions: Iterable[Region], policy: LabelPolicy) -> tuple[Span, ...]:
    """Return the characters that `policy` trains on in `regions` of trained turns."""
    spans: list[Span] = []
    for region in regions:
        stop = region.stop if policy.end_of_turn else None
        own = _subtract(region.start, region.end, region.cuts)
        if stop and own and own[-1][1] == stop[0]:
            stop = own.pop()[0], stop[1]
        spans += [*own, stop] if stop else own
    return tuple(spans)


def _subtract(start: int, end: int, cuts: Iterable[Span]) -> list[Span]:
    """``[start, end)`` without `cuts`; without any, as it is, empty or not."""
    left: list[Span] = []
    at, uncut = start, True
    for low, high in sorted(cuts):
        uncut = False
        if at < low:
            left.append((at, min(low, end)))
        at = max(at, high)
    if at < end or uncut:
        left.append((at, end))
    return left


def tags_of(header: str) -> list[str]:
    """Return the tags around reasoning that a prompt ends with."""
    return [tag for pair in THINKING if pair[0] in header for tag in pair]


def skip_space(text: str, at: int, end: int) -> int:
    """The first position from `at` that holds no white space, at most `end`."""
    while at < end and text[at].isspace():
        at += 1
    return at


# -- the words around turns ------------------------------------------------------------------------


def learn_words(
    render: Render, control: re.Pattern[str] | None, placeholder: re.Pattern[str] | None
) -> TurnWords:
    """The words around turns, from small renderings; what they do not show is empty."""
    user, assistant = Turn("user", ("Text",)), Turn("assistant", ("Text",))
    _, between, tail = gaps(render, user, assistant) or ("", "", "")
    _, asked = gaps(render, user) or ("", "")
    _, prompted = gaps(partial(render, prompt=True), user) or ("", "")
    header = prompted[len(os.path.commonprefix([asked, prompted])) :]
    if not header and asked.strip() and between.strip() == asked.strip():
        header = asked  # there is no prompt: the end of a user's turn (``[/INST]``)
    elif not header and between.startswith(asked):
        begun = between[len(asked) :]  # by what follows a user's turn, if it says anything
        header = begun if begun.strip() else ""
    token = control.match(tail.lstrip()) if control else None
    stop = token.group() if token else ""
    return TurnWords(header, stop, _call_stop(render, control), control, placeholder)


def _call_stop(render: Render, control: re.Pattern[str] | None) -> str:
    """Return what closes a tool call at the end of a conversation, or its last special token."""
    called = {"name": "look", "arguments": {"what": _SAID}}
    calls = [{"id": "call00001", "type": "function", "function": called}]
    turns = (Turn("user", ("Text",)), Turn("assistant", (), {"tool_calls": calls}))
    try:
        text = render(Conversation(turns))
    except BadRecord:
        return ""
    tail = text.rpartition(_SAID)[2] if _SAID in text else ""
    tokens = [*(control.findall(tail) if control else ()), *(t for _, t in TOOL_CALLS if t in tail)]
    return tokens[-1] if tokens else ""
