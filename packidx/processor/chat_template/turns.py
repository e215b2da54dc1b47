"""Where each trained message is in a rendering with marks.

A message begins after the words that the template ends a prompt with (``<|im_start|>assistant\n``)
and ends with the token that it ends a message with; both are learned from small renderings, once
per template. A message that does not show is an error, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
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
_Region = tuple[list[int], Span | None]
"""Start of a message, borders of the template's words around its media, its end; its end-of-turn
token."""


@dataclass(frozen=True, slots=True)
class TurnWords:
    """The words that a template writes around messages."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    stop: str
    """The token that ends a message; empty if unknown or there is none."""
    call_stop: str
    """What ends a message that calls a tool, where that is not `stop`; empty as well."""
    control: re.Pattern[str] | None
    """Any special token."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""


def find_spans(
    shown: Shown, turns: Sequence[Turn], words: TurnWords, policy: LabelPolicy, has_blocks: bool
) -> tuple[Span, ...]:
    """Return the label spans of a rendering.

    Args:
        shown: the rendering.
        turns: the messages.
        words: the words that the template writes around messages.
        policy: the rule for what is trained on.
        has_blocks: the template has ``{% generation %}`` blocks: they are the assistant's messages.

    Raises:
        Lost: a message is not there, or not to be told from its neighbours.
    """
    wanted = policy.trains(turns)
    if has_blocks:
        regions = _find_blocks(shown, turns, wanted, words)
    else:
        regions = _Finder(shown, turns, words, wanted).find()
    spans: list[Span] = []
    for borders, stop in regions:
        own = list(zip(borders[::2], borders[1::2], strict=True))
        if len(own) > 1:
            own = [span for span in own if span[0] < span[1]]
        if stop and policy.end_of_turn:
            start = own.pop()[0] if own and own[-1][1] == stop[0] else stop[0]
            own.append((start, stop[1]))
        spans += own
    return tuple(spans)


def _find_blocks(
    shown: Shown, turns: Sequence[Turn], wanted: Sequence[bool], words: TurnWords
) -> list[_Region]:
    """Return the ``{% generation %}`` blocks of trained messages."""
    mine = [number for number, turn in enumerate(turns) if turn.role == ROLE]
    if not shown.stretches and len(shown.blocks) != len(mine):
        raise Lost("which message a generation block belongs to")
    regions: list[_Region] = []
    for number, (start, end) in enumerate(shown.blocks):
        inside = [each for each in shown.stretches if start <= each.start and each.end <= end]
        before = [-1, *(each.turn for each in shown.stretches if each.end <= start)][-1]
        owners = [each.turn for each in inside if each.turn in mine]
        owners += [turn for turn in mine if turn >= before]  # a block without texts of its own
        if not owners:
            raise Lost("which message a generation block belongs to")
        if not wanted[owners[0] if shown.stretches else mine[number]]:
            continue
        own = inside[-1].end if inside else start
        tail = shown.text[own:end].rstrip()
        tokens = words.control.finditer(tail) if words.control else ()
        stops = [own + token.start() for token in tokens if token.end() == len(tail)]
        regions.append(([start, stops[0]], (stops[0], end)) if stops else ([start, end], None))
    return regions


class _Finder:
    """Finds regions by the words around messages."""

    def __init__(
        self, shown: Shown, turns: Sequence[Turn], words: TurnWords, wanted: Sequence[bool]
    ) -> None:
        self.text, self.stretches = shown.text, shown.stretches
        self.turns, self.words = turns, words
        self.mine = [number for number, chosen in enumerate(wanted) if chosen]
        self.spoken = {stretch.turn for stretch in self.stretches}
        self.has_control = False
        """True if a special token is in what has no marks."""
        self.starts: dict[int, int] = {}
        self.ends: dict[int, tuple[int, Span | None]] = {}

    def find(self) -> list[_Region]:
        """Return a region per trained message."""
        self._refuse_forged()
        for left, right in pairwise([None, *self.stretches, None]):
            if left is None or right is None or left.turn != right.turn:
                self._between(left, right)
        regions: list[_Region] = []
        for turn in self.mine:
            if turn not in self.starts or turn not in self.ends:
                raise Lost(f"where turn {turn} begins and ends")
            start, (end, stop) = self.starts[turn], self.ends[turn]
            if start > end:
                raise Lost(f"turn {turn} ends before it starts")
            cuts = self._media_cuts(start, end)
            if cuts and _says_more(self.turns[turn]):
                raise Lost(f"what stands beside media in turn {turn}")
            regions.append(([start, *cuts, end], stop))
        return regions

    def _refuse_forged(self) -> None:
        """Raise if what has no marks, such as further keys of messages, holds a word that messages
        are found by; the texts of a message have none if the template changes them."""
        header = self.words.header
        told = {self.words.stop, header.strip(), _without_thinking(header).strip()}
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
        if any(word and word in text for text in bare for word in told):
            raise Lost("a message holds a word of the template's own")
        control = self.words.control
        self.has_control = control is not None and any(map(control.search, bare))

    def _between(self, left: Stretch | None, right: Stretch | None) -> None:
        """Find where a message ends and another begins between two texts; those between them have
        no text."""
        low, before = (left.end, left.turn) if left else (0, -1)
        high, after = (right.start, right.turn) if right else (len(self.text), len(self.turns))
        silent = [n for n in self.mine if before < n < after and n not in self.spoken]
        begin = [*silent, after] if after in self.mine else silent
        header, literal = self.words.header, self.text[low:high]
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
        """Return where a message ends, and its end-of-turn token.

        Args:
            turn: its number.
            at: where its last text, or its header, ends.
            limit: where the next message begins at the latest.
            high: where the template's words end.
        """
        said, token = self.turns[turn], self.words.placeholder
        calls, speaks = said.extra.get("tool_calls"), bool(_spoken(said))
        parts = [part for part in said.parts if not isinstance(part, str) or part.strip()]
        texts = [number for number, part in enumerate(parts, 1) if isinstance(part, str)]
        media = parts[texts[-1] :] if texts else parts
        if turn not in self.spoken and speaks and len(parts) > len(texts):
            raise Lost(f"where the media of turn {turn} are")
        for _ in media:
            placeholder = token and token.search(self.text, at, limit)
            if not placeholder:
                raise Lost(f"where the media of turn {turn} are")
            at = placeholder.end()
        if turn in self.spoken and not media and not calls:
            stop = self._next_token(at, high)
        else:
            has_content = speaks or bool(media)
            stop = self._first_token(at, limit, calls=bool(calls), has_content=has_content)
        if stop is None and (calls or (speaks and turn not in self.spoken)):
            if limit < len(self.text):
                raise Lost(f"where turn {turn} ends")
            return limit, None  # the text ends with it
        return (at, None) if stop is None else (stop[0], stop)

    def _next_token(self, at: int, high: int) -> Span | None:
        """Return the special token that follows `at`, white space between them or not."""
        literal = self.text[at:high]
        first = at + len(literal) - len(literal.lstrip())
        token = self.words.control.match(self.text, first, high) if self.words.control else None
        return token.span() if token else None

    def _first_token(self, at: int, limit: int, *, calls: bool, has_content: bool) -> Span | None:
        """Return the first token behind `at` that may end a message."""
        words = self.words
        for word in (words.stop, words.call_stop if calls else ""):
            if word and (first := self.text.find(word, at, limit)) >= 0:
                return first, first + len(word)
        if calls or has_content or not words.control:
            return None
        if self.has_control:
            raise Lost("a message holds a special token")
        token = words.control.search(self.text, at, limit)
        return token.span() if token else None

    def _media_cuts(self, start: int, end: int) -> list[int]:
        """Return the borders of the template's words around media."""
        inside = [each for each in self.stretches if start <= each.start and each.end <= end]
        lows = [start, *(each.end for each in inside)]
        highs = [*(each.start for each in inside), end]
        token = self.words.placeholder
        between = zip(lows, highs, strict=True)
        return [at for gap in between if token and token.search(self.text, *gap) for at in gap]


def _says_more(turn: Turn) -> bool:
    """Return True if a message says something besides its content."""
    return any(turn.extra.get(key) for key in (*REASONING, *CALLS))


def _spoken(turn: Turn) -> list[str]:
    """Return the texts of a message that are more than white space."""
    return [text for text in turn.texts if text.strip()]


def _without_thinking(header: str) -> str:
    """Return a prompt's end up to the tag that opens the model's reasoning."""
    return next((header.partition(tag)[0] for tag, _ in THINKING if tag in header), header)


def learn_words(
    render: Render, control: re.Pattern[str] | None, placeholder: re.Pattern[str] | None
) -> TurnWords:
    """Return the words around messages, from small renderings; what they do not show is empty."""
    user, assistant = Turn("user", ("Text",)), Turn("assistant", ("Text",))
    _, between, tail = gaps(render, user, assistant) or ("", "", "")
    _, asked = gaps(render, user) or ("", "")
    _, prompted = gaps(partial(render, prompt=True), user) or ("", "")
    header = prompted[len(os.path.commonprefix([asked, prompted])) :]
    if not header and asked.strip() and between.strip() == asked.strip():
        header = asked  # there is no prompt: the end of a user's message (``[/INST]``)
    elif not header and between.startswith(asked):
        begun = between[len(asked) :]  # by what follows a user's message, if it says anything
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
