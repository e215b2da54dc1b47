"""The words that a template writes around messages, and label spans in a rendering with marks.

A message begins after the words that the template ends a prompt with (``<|im_start|>assistant\\n``)
and ends with the token that it ends a message with; both are learned from small renderings, once
per template. A message that does not show is an error, never a guess.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import REASONING, Lost, Shown, Span, Stretch, find_gaps
from packidx.processor.labels import ROLE, LabelPolicy
from packidx.records.conversation import Conversation, Turn

THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|think|>", "<|/think|>"),
    ("◁think▷", "◁/think▷"),
)
_CALL_ENDS = ("</tool_call>", "<tool_call|>")
_SAID = "Answer\ue0b4"

Render = Callable[..., str]
"""A conversation as text; ``prompt=True`` with the generation prompt. Raises BadRecord."""


@dataclass(frozen=True, slots=True)
class TurnWords:
    """The words that a template writes around messages."""

    header: str
    """The end of a prompt, before the words of the model; empty if unknown."""
    opened: str
    """The tag of reasoning that a prompt ends with; answers may leave it out."""
    stop: str
    """The token that ends a message; empty if unknown or there is none."""
    call_stop: str
    """The text that ends a message that calls a tool, where that is not `stop`; empty as well."""
    control: re.Pattern[str] | None
    """Any special token but tags of reasoning."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""

    def begun(self, text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Return spans, without what a prompt ends with where they begin right behind a header."""
        if not self.opened or not self.header:
            return tuple(spans)
        whole, size = self.header + self.opened, len(self.header)
        is_opened = [text.startswith(whole, max(start - size, 0)) for start, _ in spans]
        return tuple(
            (start + len(self.opened) * is_one, end)
            for (start, end), is_one in zip(spans, is_opened, strict=True)
        )


def block_spans(
    shown: Shown, turns: Sequence[Turn], words: TurnWords, policy: LabelPolicy
) -> tuple[Span, ...]:
    """Return the ``{% generation %}`` blocks of trained messages in a rendering.

    Raises:
        Lost: a block belongs to no message.
    """
    wanted = policy.trains(turns)
    mine = [number for number, turn in enumerate(turns) if turn.role == ROLE]
    spans: list[Span] = []
    for number, (start, end) in enumerate(shown.blocks):
        before = [-1, *(each.turn for each in shown.stretches if each.end <= start)][-1]
        inside = [each for each in shown.stretches if start <= each.start and each.end <= end]
        owners = [each.turn for each in inside if each.turn in mine]
        owners += [turn for turn in mine if turn >= before]  # a block without texts of its own
        if len(shown.blocks) == len(mine):
            owners = mine[number:]
        if not owners or not (shown.stretches or len(shown.blocks) == len(mine)):
            raise Lost("which message a generation block belongs to")
        own = inside[-1].end if inside else start
        tail = shown.text[own:end].rstrip()
        stops = list(words.control.finditer(tail)) if words.control else []
        if not policy.end_of_turn and stops and stops[-1].end() == len(tail):
            end = own + stops[-1].start()
        if wanted[owners[0]]:
            spans.append((start, end))
    return tuple(spans)


def marked_spans(
    shown: Shown, turns: Sequence[Turn], words: TurnWords, policy: LabelPolicy
) -> tuple[Span, ...]:
    """Return the label spans of a rendering with marks around texts.

    Raises:
        Lost: a message has no text that shows, or the template takes it apart.
    """
    bare = [*shown.bare, *(repr(turn.extra) for turn in turns if turn.extra)]
    known = {word for word in (words.header.strip(), words.stop, words.call_stop) if word}
    if any(word in text for text in bare for word in known):
        raise Lost("a message holds a word of the template's own")
    spans: list[Span] = []
    for number, is_wanted in enumerate(policy.trains(turns)):
        if is_wanted:
            spans += _marked_message(shown, number, turns, words, policy.end_of_turn)
    return words.begun(shown.text, spans)


def _marked_message(
    shown: Shown, number: int, turns: Sequence[Turn], words: TurnWords, end_of_turn: bool
) -> list[Span]:
    text, stretches, turn = shown.text, shown.stretches, turns[number]
    places = [n for n, each in enumerate(stretches) if each.turn == number]
    own = [stretches[n] for n in places]
    above = (n for n, each in enumerate(stretches) if each.turn > number)
    first = places[0] if places else next(above, len(stretches))
    earlier, later = stretches[:first], stretches[first + len(own) :]
    is_sorted = bool(own) or all(a.turn <= b.turn for a, b in itertools.pairwise(stretches))
    if stretches[first : first + len(own)] != own or not is_sorted:
        raise Lost(f"where turn {number} is")
    low, before = (earlier[-1].end, earlier[-1].turn) if earlier else (0, -1)
    high, behind = (later[0].start, later[0].turn) if later else (len(text), len(turns))
    if not own:
        at = _find_silent_begin(text[low:high], number, turns, before, behind, words) + low
        own = [Stretch(-1, number, at, at, begins=True, ends=True)]
    start, at = _find_begin(shown, own, low, turn, words), own[-1].end
    if start is None:
        raise Lost(f"where turn {number} begins and ends")
    following = sum(turn.role == ROLE for turn in turns[number + 1 : behind + 1])
    heads = [at + offset for offset in _find_headers(text[at:high], words)]
    limit = heads[-following] if 0 < following <= len(heads) else high
    end, stop = _find_end(text, at, limit, high, turn, words)
    if stop and turn.extra.get("tool_calls") and behind > number + 1:
        _, called, rest = text[at:end].rpartition(words.call_stop or "\0")
        if called and rest.strip():
            raise Lost(f"where turn {number} ends: the next one has no text")
    inner = [at for each in own for at in (each.start, each.end)]
    cuts = []  # the borders of the template's words around media, between texts
    if token := words.placeholder:
        gaps = zip([start, *inner[1::2]], [*inner[::2], end], strict=True)
        cuts = [at for gap in gaps if token.search(text, *gap) for at in gap]
    borders = [start, *cuts, end]
    spans = [*zip(borders[::2], borders[1::2], strict=True)]
    if cuts:
        if turn.extra.keys() & {*REASONING, "tool_calls"}:
            raise Lost(f"what stands beside media in turn {number}")
        spans = [span for span in spans if span[0] < span[1]]
    if stop is not None and end_of_turn:
        first = spans.pop()[0] if spans and spans[-1][1] == stop[0] else stop[0]
        spans.append((first, stop[1]))
    return spans


def _find_silent_begin(
    gap: str, number: int, turns: Sequence[Turn], before: int, behind: int, words: TurnWords
) -> int:
    """Return where a message without a text begins in the `gap` between two texts, those of the
    turns `before` and `behind`."""
    silent = [n for n in range(before + 1, min(behind + 1, len(turns))) if turns[n].role == ROLE]
    heads = _find_headers(gap, words)
    if len(heads) != len(silent) or turns[number].extra or _visible_texts(turns[number]):
        raise Lost(f"where turn {number} is")
    return heads[silent.index(number)] + len(words.header)


def _find_begin(
    shown: Shown, own: Sequence[Stretch], low: int, turn: Turn, words: TurnWords
) -> int | None:
    """Return where a message begins whose texts are `own`, the first of them behind `low`; None if
    this, or one of its texts, does not show."""
    seen = {each.number for each in own} - shown.further.keys()
    ended = {each.number for each in own if each.ends} - shown.further.keys()
    # Some templates write no text beside calls.
    if len(ended) < (len(seen) if turn.extra.get("tool_calls") else len(_visible_texts(turn))):
        return None
    if not own[-1].ends:
        return None
    head = shown.text.rfind(words.header, low, own[0].start) if words.header else -1
    if head >= 0:
        return head + len(words.header)
    return own[0].start if own[0].begins and own[0].number not in shown.further else None


def _find_headers(text: str, words: TurnWords) -> list[int]:
    """Return where headers begin."""
    header = words.header
    return [found.start() for found in re.finditer(re.escape(header), text)] if header else []


def _find_end(
    text: str, at: int, limit: int, high: int, turn: Turn, words: TurnWords
) -> tuple[int, Span | None]:
    """Return where a message ends whose last text ends `at`, and its end-of-turn token.

    Args:
        limit: where the next message of the assistant begins, or `high`.
        high: where the next text begins.
    """
    calls = bool(turn.extra.get("tool_calls"))
    for word in (words.stop, words.call_stop if calls else ""):
        if word and (first := text.find(word, at, limit)) >= 0:
            return first, (first, first + len(word))
    if calls or (turn.parts and not isinstance(turn.parts[-1], str)):
        raise Lost("where a message with calls or media ends")
    first = high - len(text[at:high].lstrip())
    find = words.control and (words.control.match if _visible_texts(turn) else words.control.search)
    token = find(text, first, high) if find else None
    if token:
        return token.start(), token.span()
    return (at if _visible_texts(turn) or limit < len(text) else max(at, len(text.rstrip()))), None


def _visible_texts(turn: Turn) -> list[str]:
    """Return the texts of a message that are more than white space."""
    return [text for text in turn.texts if text.strip()]


def compile_any(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of any of these tokens, the longest that is there; None for none."""
    longest_first = sorted(set(tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def learn_words(
    render: Render, control_tokens: Collection[str], placeholder: re.Pattern[str] | None
) -> TurnWords:
    """Return the words around messages, from small renderings; what they do not show is empty."""
    control = compile_any({*control_tokens} - {tag for pair in THINKING for tag in pair})
    user, assistant = Turn("user", ("Text",)), Turn("assistant", ("Text",))
    _, between, tail = find_gaps(render, user, assistant) or ("", "", "")
    _, asked = find_gaps(render, user) or ("", "")
    _, prompted = find_gaps(partial(render, prompt=True), user) or ("", "")
    header = prompted[len(os.path.commonprefix([asked, prompted])) :]
    if not header and asked.strip() and between.strip() == asked.strip():
        header = asked  # there is no prompt: the end of a user's message (``[/INST]``)
    elif not header and between.startswith(asked):
        begun = between[len(asked) :]  # by what follows a user's message, if it says anything
        header = begun if begun.strip() else ""
    tag = next((tag for tag, _ in THINKING if tag in header), "")
    opened = header[header.index(tag) :] if tag else ""
    header = header.removesuffix(opened)
    token = control.search(tail) if control else None
    stop = token.group() if token else ""
    return TurnWords(header, opened, stop, _learn_call_stop(render, control), control, placeholder)


def _learn_call_stop(render: Render, control: re.Pattern[str] | None) -> str:
    """Return what closes a tool call at the end of a conversation, or its last special token."""
    called = {"name": "look", "arguments": {"what": _SAID}}
    calls = [{"id": "call00001", "type": "function", "function": called}]
    turns = (Turn("user", ("Text",)), Turn("assistant", (), {"tool_calls": calls}))
    try:
        text = render(Conversation(turns))
    except BadRecord:
        return ""
    tail = text.rpartition(_SAID)[2] if _SAID in text else ""
    tokens = [*(control.findall(tail) if control else ()), *(t for t in _CALL_ENDS if t in tail)]
    return tokens[-1] if tokens else ""
