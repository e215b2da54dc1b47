"""Which tokens a sample is trained on: one rule, for the plan's count and the labels built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packidx.errors import OptionError

if TYPE_CHECKING:
    from tokenizers import Encoding

    from packidx.processor.template import Rendered
    from packidx.records.conversation import Turn


_WORDS: dict[str, tuple[str, Any]] = {
    "all": ("turns", "all"),
    "last": ("turns", "last"),
    "thinking": ("thinking", True),
    "no-thinking": ("thinking", False),
    "tool-calls": ("tool_calls", True),
    "no-tool-calls": ("tool_calls", False),
    "eot": ("end_of_turn", True),
    "no-eot": ("end_of_turn", False),
    "newline": ("newline", True),
    "no-newline": ("newline", False),
}
"""A policy in words, as the command line takes it."""


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """What contributes to the loss; part of the processor's fingerprint.

    A trained turn is what the model would have to write after the generation prompt: its reasoning,
    content and tool calls with the template's words between them, and the token that ends it. The
    words around a medium never are. Where the template has ``{% generation %}`` blocks, they decide
    what a turn is instead, and the other fields only take something away.

    Raises:
        OptionError: a field has a value it cannot have.
    """

    roles: tuple[str, ...] = ("assistant",)
    """Turns that may be trained on; a tool's response never is."""
    end_of_turn: bool = True
    """The special token that ends a turn is trained on too. It goes with what stands before it: an
    untrained tool call ends without. False takes it off a ``{% generation %}`` block that ends with
    it (and the white space after it); True adds none to a block that leaves it out."""
    turns: str = "all"
    """``"all"``, or ``"last"`` for the last turn of `roles` alone. A record's own flag
    (`Turn.train`) overrides it, either way."""
    thinking: bool = True
    """Reasoning is trained on: ``<think>…</think>`` and the like, or a message's
    ``reasoning_content`` with the template's words around it."""
    tool_calls: bool = True
    """Tool calls are trained on: ``<tool_call>…</tool_call>``, or a message's ``tool_calls``."""
    newline: bool = False
    """White space that the template writes after the end-of-turn token is trained on too, as by
    templates whose ``{% generation %}`` blocks hold it."""

    def __post_init__(self) -> None:
        if self.turns not in ("all", "last"):
            raise OptionError(f"label policy: turns is {self.turns!r}, not 'all' or 'last'")
        if "tool" in self.roles:
            raise OptionError("label policy: a tool's response cannot be trained on")

    @classmethod
    def parse(cls, words: str) -> LabelPolicy:
        """A policy from words such as ``"last,no-thinking,no-eot"``; what is not named is default.

        Raises:
            OptionError: a word is unknown, or two of them contradict each other.
        """
        named: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for word in (part.strip() for part in words.split(",")):
            if not word:
                continue
            if word not in _WORDS:
                known = ", ".join(_WORDS)
                raise OptionError(f"label policy: unknown word {word!r}; it knows {known}")
            field, value = _WORDS[word]
            if fields.setdefault(field, value) != value:
                raise OptionError(
                    f"label policy: {named[field]!r} and {word!r} contradict each other: keep one"
                )
            named[field] = word
        return cls(**fields)

    def __str__(self) -> str:
        """The words that `parse` takes; ``"all"`` for the default."""
        changed = [
            word
            for word, (field, value) in _WORDS.items()
            if getattr(self, field) == value != getattr(DEFAULT_POLICY, field)
        ]
        return ",".join(changed) or "all"

    def describe(self) -> dict[str, Any]:
        """The policy as JSON, for `processor_fingerprint`.

        Fields added later are there only where they are not default: plans keep their fingerprint.
        """
        described: dict[str, Any] = {"roles": list(self.roles), "end_of_turn": self.end_of_turn}
        for field in ("turns", "thinking", "tool_calls", "newline"):
            if getattr(self, field) != getattr(DEFAULT_POLICY, field):
                described[field] = getattr(self, field)
        return described

    def trains(self, turns: Sequence[Turn]) -> list[bool]:
        """Per turn whether it is trained on."""
        mine = [number for number, turn in enumerate(turns) if turn.role in self.roles]
        chosen = set(mine[-1:] if self.turns == "last" else mine)
        return [
            number in chosen if turn.train is None else turn.train and turn.role in self.roles
            for number, turn in enumerate(turns)
        ]


DEFAULT_POLICY = LabelPolicy()


def token_at(encoding: Encoding, char: int, num_chars: int) -> int:
    """The first token that reaches beyond character `char`; the number of text tokens at the end.

    A character may belong to no token: a normaliser that composes characters (NFC) leaves the
    combining ones without. Then the next one that has a token decides.
    """
    for position in range(char, num_chars):
        token: int | None = encoding.char_to_token(position)
        if token is not None:
            return token
    end = len(encoding)
    while end and encoding.token_to_chars(end - 1) is None:  # added after the text, e.g. </s>
        end -= 1
    return end


def label_ranges(
    encoding: Encoding, rendered: Rendered, media_tokens: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Token ranges ``[start, end)`` that are trained on, sorted, in `encoding`'s own numbering.

    A token counts iff it lies wholly in a label span, so one that begins before the span
    (``"\\n\\n"`` across the border of header and content) does not. Media placeholders never count.

    Only the tokens at the borders are looked up: no list of all offsets is built (building one
    takes longer than the rest of the count). Where a character is spelled by several tokens,
    ``char_to_token`` gives the first, which is right for both borders.

    Args:
        encoding: `rendered.text` encoded, with character offsets, placeholders not yet expanded.
        rendered: the text and its label spans in characters.
        media_tokens: positions of the media placeholders in `encoding`, ascending.
    """
    num_chars = len(rendered.text)
    ranges: list[tuple[int, int]] = []
    for start_char, end_char in rendered.label_spans:
        end = token_at(encoding, end_char, num_chars)
        start = token_at(encoding, start_char, num_chars)
        while start < end and _starts_before(encoding, start, start_char):
            start += 1
        for token in media_tokens:
            if start <= token < end:
                ranges.append((start, token))
                start = token + 1
        ranges.append((start, end))
    return [(start, end) for start, end in ranges if start < end]


def _starts_before(encoding: Encoding, token: int, char: int) -> bool:
    span = encoding.token_to_chars(token)
    return span is not None and span[0] < char


def count_labels(ranges: Sequence[tuple[int, int]]) -> int:
    """Tokens that contribute to the loss: those in `ranges` but token 0, which nothing predicts."""
    return sum(end - max(start, 1) for start, end in ranges if end > 1)


def expand_ranges(
    ranges: Sequence[tuple[int, int]], media_tokens: Sequence[int], num_tokens: Sequence[int]
) -> list[tuple[int, int]]:
    """`ranges` in the numbering where medium i's placeholder is ``num_tokens[i]`` tokens."""
    expanded = []
    for start, end in ranges:  # no placeholder lies in a range, so its length stays
        before = sum(n - 1 for at, n in zip(media_tokens, num_tokens, strict=True) if at < start)
        expanded.append((start + before, end + before))
    return expanded
