"""Which tokens lie in a span of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from packidx.arrays import Int64s
from packidx.processor.chat_template.turns.spans import Span


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of n texts, one after the other."""

    ids: Int64s
    """``[total]``"""
    offsets: Int64s
    """``[n + 1]``; text i's tokens are ``ids[offsets[i]:offsets[i + 1]]``."""
    prefix: Int64s
    """``[n]`` tokens before the text's own (``<s>``)."""
    suffix: Int64s
    """``[n]`` tokens after the text's own (``</s>``)."""

    @property
    def lengths(self) -> Int64s:
        """``[n]`` tokens of each text."""
        return np.diff(self.offsets)


def token_at(encoding: Encoding, char: int, num_chars: int) -> int:
    """The first token that reaches beyond character `char`; the number of tokens at the end.

    A character may belong to no token: a normaliser that composes characters (NFC) leaves the
    combining ones without. Then the next one that has a token decides.
    """
    for position in range(char, num_chars):
        token: int | None = encoding.char_to_token(position)
        if token is not None:
            return token
    return len(encoding)


def affixed(batch: TokenBatch) -> NDArray[np.bool_]:
    """``[total]`` whether a token is a prefix or suffix and spells nothing."""
    mask = np.zeros(len(batch.ids), bool)
    if batch.prefix.any() or batch.suffix.any():
        for begin, end, head, tail in zip(
            batch.offsets[:-1], batch.offsets[1:], batch.prefix, batch.suffix, strict=True
        ):
            mask[begin : begin + head] = True
            mask[end - tail : end] = True
    return mask


def to_bytes(text: str, ranges: Sequence[Span]) -> list[Span]:
    """Ranges of characters as ranges of the text's UTF-8 bytes."""
    if text.isascii():
        return list(ranges)
    converted = []
    char = byte = 0
    for start, end in ranges:
        byte += len(text[char:start].encode())
        size = len(text[start:end].encode())
        converted.append((byte, byte + size))
        byte, char = byte + size, end
    return converted
