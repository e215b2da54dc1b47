"""Which tokens a sample is trained on: one rule, for the plan's count and the labels built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Encoding

    from packidx.processor.template import Rendered


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """What contributes to the loss. There is one policy so far; the fingerprint holds it."""

    roles: tuple[str, ...] = ("assistant",)
    """Turns that are trained on."""
    end_of_turn: bool = True
    """The special token that directly follows such a turn's content is trained on too."""

    def describe(self) -> dict[str, Any]:
        """The policy as JSON, for `processor_fingerprint`."""
        return {"roles": list(self.roles), "end_of_turn": self.end_of_turn}


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
