"""Texts as token ids, and the tokens that lie inside ranges of characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from packidx.arrays import Int64s
from packidx.processor.chat_template.marks import Span
from packidx.processor.text.gigatoken import Gigatoken, reference_ids


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
    """``[n]`` tokens after the text's own (``</s>``, and a document's end of text)."""
    encodings: Sequence[Encoding] | None = None
    """Encoding of each text by `tokenizers`, if ids do not spell bytes."""

    @property
    def lengths(self) -> Int64s:
        """``[n]`` tokens of each text."""
        return np.diff(self.offsets)


class TextEncoder:
    """A tokenizer as the processor calls it.

    Args:
        tokenizer: without padding and truncation; it must not be changed.
        fast: gigatoken of the same tokenizer, which encodes the texts that it knows.
    """

    def __init__(self, tokenizer: Tokenizer, fast: Gigatoken | None = None) -> None:
        self.tokenizer = tokenizer
        self.fast = fast

    @cached_property
    def affixes(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer's post-processor puts before and after a text."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        ids = self.tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(ids) + 1) if ids[i : i + len(plain)] == plain)
        return ids[:at], ids[at + len(plain) :]

    @cached_property
    def token_bytes(self) -> Int64s | None:
        """``[vocabulary]`` bytes of text that each id spells; None unless every byte of a text is
        in exactly one token (GPT-2's byte-level tokenizers)."""
        steps = _config(self.tokenizer.pre_tokenizer)
        kinds = {step.get("type") for step in steps.get("pretokenizers", [steps])}
        if "ByteLevel" not in kinds or self._normalizers - {"NFC"}:
            return None
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
        table = np.zeros(ids.max(initial=-1) + 1, np.int64)
        table[ids] = np.fromiter(map(len, vocabulary), np.int64, len(vocabulary))
        for token in self.tokenizer.get_added_tokens_decoder().values():
            table[vocabulary[token.content]] = len(token.content.encode())
        return table

    @cached_property
    def _normalizers(self) -> set[str]:
        normalizer = _config(self.tokenizer.normalizer)
        return {step["type"] for step in normalizer.get("normalizers", [normalizer]) if step}

    def encode(
        self, texts: Sequence[str], adds: Sequence[bool], ends: Sequence[int | None] = ()
    ) -> TokenBatch:
        """Encode texts as the processor does.

        Args:
            texts: valid Unicode.
            adds: for each text, True if the tokenizer's own special tokens are put around it.
            ends: for each text the token that it must end with, or None; the token is added where
                it is not the last one already. Empty for none at all.
        """
        encodings = None
        if self.fast is not None and all(map(self.fast.knows, texts)) and texts:
            ids, offsets = self.fast.encode(texts)
        elif self.token_bytes is not None:
            ids, offsets = reference_ids(self.tokenizer, texts)
        else:
            encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
            sizes = np.array([len(each) for each in encodings], np.int64)
            offsets = np.concatenate([[0], np.cumsum(sizes)])
            ids = np.array([ident for each in encodings for ident in each.ids], np.int64)
        prefix, suffix = self.affixes if any(adds) else ([], [])
        num_prefix = np.asarray(adds, np.int64) * len(prefix)
        num_suffix = np.asarray(adds, np.int64) * len(suffix)
        if prefix or suffix or any(end is not None for end in ends):
            parts = []
            for number, add in enumerate(adds):
                own = ids[offsets[number] : offsets[number + 1]].tolist()
                sample = [*prefix, *own, *suffix] if add else own
                end = ends[number] if ends else None
                if end is not None and sample[-1:] != [end]:
                    sample.append(end)
                    num_suffix[number] += 1
                parts.append(np.array(sample, np.int64))
            ids = np.concatenate(parts)
            offsets = offsets + np.concatenate([[0], np.cumsum(num_prefix + num_suffix)])
        return TokenBatch(ids, offsets, num_prefix, num_suffix, encodings)

    def borders(
        self, batch: TokenBatch, texts: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> tuple[Int64s, Int64s]:
        """Return the tokens that lie wholly inside spans of characters.

        A token that begins before a span (``"\\n\\n"`` across the border of header and content) or
        reaches beyond it is outside.

        Args:
            batch: `texts` encoded.
            texts: the texts.
            spans: per text, ascending ranges of characters ``[start, end)``.

        Returns:
            First token, and one past the last, of each span, as positions in ``batch.ids``, in
            order; the span holds no token if the first is not below the second.
        """
        table, total = self.token_bytes, np.zeros(len(batch.ids) + 1, np.int64)
        if table is not None:
            width = table[batch.ids]
            width[_affixed(batch)] = 0
            total[1:] = np.cumsum(width)
        sizes = total[batch.offsets[1:]] - total[batch.offsets[:-1]]
        borders: list[tuple[int, int]] = []
        wanted: list[tuple[int, int]] = []
        owners: list[int] = []
        for number, (text, ranges) in enumerate(zip(texts, spans, strict=True)):
            if not ranges:
                continue
            if table is not None and self._is_spelled(text, int(sizes[number])):
                base = int(total[batch.offsets[number]])
                wanted += [(base + a, base + b) for a, b in _to_bytes(text, ranges)]
                owners += [number] * len(ranges)
                borders += [(-1, -1)] * len(ranges)
            else:
                borders += self._borders_of(batch, number, text, ranges)
        result = np.array(borders, np.int64).reshape(-1, 2)
        if wanted:
            limits = np.array(wanted, np.int64)
            at = np.array(owners, np.int64)
            low = batch.offsets[at] + batch.prefix[at]
            high = batch.offsets[at + 1] - batch.suffix[at]
            first = np.clip(np.searchsorted(total[:-1], limits[:, 0], "left"), low, high)
            last = np.clip(np.searchsorted(total[1:], limits[:, 1], "right"), low, high)
            result[result[:, 0] < 0] = np.stack([first, last], axis=1)
        return result[:, 0], result[:, 1]

    def _is_spelled(self, text: str, size: int) -> bool:
        """Return True if a text's tokens spell `size` bytes that are the text's own."""
        if text.isascii():
            return size == len(text)
        if "NFC" in self._normalizers and not unicodedata.is_normalized("NFC", text):
            return False
        return size == len(text.encode())

    def _borders_of(
        self, batch: TokenBatch, number: int, text: str, ranges: Sequence[Span]
    ) -> list[tuple[int, int]]:
        """Return `borders` of one text by the offsets of `tokenizers`."""
        if batch.encodings is not None:
            encoding = batch.encodings[number]
        else:
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        first = int(batch.offsets[number] + batch.prefix[number])
        borders = []
        for start_char, end_char in ranges:
            end = _token_at(encoding, end_char, len(text))
            start = _token_at(encoding, start_char, len(text))
            while start < end:
                span = encoding.token_to_chars(start)
                if span is None or span[0] >= start_char:
                    break
                start += 1
            borders.append((first + start, first + end))
        return borders


def _config(part: Any) -> dict[str, Any]:
    """Return a normalizer or pre-tokenizer as tokenizer.json has it; empty for None."""
    config: dict[str, Any] = {} if part is None else orjson.loads(part.__getstate__())
    return config


def _token_at(encoding: Encoding, char: int, num_chars: int) -> int:
    """Return the first token that reaches beyond character `char`; the number of tokens at the end.

    A character may belong to no token: a normalizer that composes characters (NFC) leaves the
    combining ones without. Then the next character that has a token decides.
    """
    for position in range(char, num_chars):
        token: int | None = encoding.char_to_token(position)
        if token is not None:
            return token
    return len(encoding)


def _affixed(batch: TokenBatch) -> NDArray[np.bool_]:
    """``[total]`` True for the tokens of prefixes and suffixes."""
    mask = np.zeros(len(batch.ids), bool)
    for number in np.flatnonzero(batch.prefix + batch.suffix).tolist():
        begin, end = batch.offsets[number], batch.offsets[number + 1]
        mask[begin : begin + batch.prefix[number]] = True
        mask[end - batch.suffix[number] : end] = True
    return mask


def _to_bytes(text: str, ranges: Sequence[Span]) -> list[Span]:
    """Return ranges of characters as ranges of the text's UTF-8 bytes."""
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
