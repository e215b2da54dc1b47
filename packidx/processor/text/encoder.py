"""Texts as token ids, and the tokens that lie inside ranges of characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from tokenizers import Encoding, Tokenizer

from packidx.arrays import Int64s
from packidx.processor.chat_template.marks import Span
from packidx.processor.text.gigatoken import Gigatoken, encode_by_reference


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
        steps = _config_of(self.tokenizer.pre_tokenizer)
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
        normalizer = _config_of(self.tokenizer.normalizer)
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
            ids, offsets = encode_by_reference(self.tokenizer, texts)
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
        reaches beyond it is outside, except that a span's first word may begin with the space
        before it (``ASSISTANT: ``).

        Args:
            batch: `texts` encoded.
            texts: the texts.
            spans: per text, ascending ranges of characters ``[start, end)``.

        Returns:
            First token, and one past the last, of each span, as positions in ``batch.ids``, in
            order; the span holds no token if the first is not below the second.
        """
        # Tokens as ranges of bytes in all texts, one behind the other.
        known = self.token_bytes
        width = np.zeros_like(batch.ids) if known is None else known[batch.ids]
        for number in np.flatnonzero(batch.prefix + batch.suffix).tolist():  # added ones are none
            begin, end = batch.offsets[number : number + 2].tolist()
            width[begin : begin + batch.prefix[number]] = 0
            width[end - batch.suffix[number] : end] = 0
        total = np.concatenate([[0], np.cumsum(width)])
        begins = total[batch.offsets].tolist()
        limits: list[tuple[int, int, int]] = []
        apart: list[tuple[int, int, tuple[Int64s, Int64s]]] = []
        for number, (text, ranges) in enumerate(zip(texts, spans, strict=True)):
            base, size = begins[number], begins[number + 1] - begins[number]
            own = [(start - _is_after_space(text, start), start, end) for start, end in ranges]
            if own and not self._is_spelled(text, size):
                offsets = np.maximum.accumulate(self._offsets_of(batch, number, text), axis=0)
                found = _find_tokens_inside(offsets[:, 0], offsets[:, 1], np.array(own))
                apart.append((len(limits), number, found))
            elif own and not text.isascii():
                raw = np.frombuffer(text.encode(), np.uint8)
                places = np.append(np.flatnonzero(raw & 0xC0 != 0x80), len(raw))
                own = places[np.array(own)].tolist()
            limits += [(base + space, base + start, base + end) for space, start, end in own]
        first, last = _find_tokens_inside(
            total[:-1], total[1:], np.array(limits, np.int64).reshape(-1, 3)
        )
        for at, number, found in apart:
            for borders, values in zip((first, last), found, strict=True):
                borders[at : at + len(values)] = values + batch.offsets[number]
        return first, last

    def _is_spelled(self, text: str, size: int) -> bool:
        """Return True if a text's tokens spell `size` bytes that are the text's own."""
        if self.token_bytes is None or text.isascii():
            return self.token_bytes is not None and size == len(text)
        if "NFC" in self._normalizers and not unicodedata.is_normalized("NFC", text):
            return False
        return size == len(text.encode())

    def _offsets_of(self, batch: TokenBatch, number: int, text: str) -> Int64s:
        """Return the characters that a text's tokens are made of by `tokenizers`, ``[t, 2]``."""
        encodings = batch.encodings or {number: self.tokenizer.encode(text, None, False, False)}
        encoding = encodings[number]
        offsets = np.zeros((int(batch.lengths[number]), 2), np.int64)
        before = int(batch.prefix[number])
        offsets[before : before + len(encoding)] = np.array(encoding.offsets).reshape(-1, 2)
        offsets[before + len(encoding) :] = len(text)
        return offsets


def _config_of(part: Any) -> dict[str, Any]:
    """Return a normalizer or pre-tokenizer as tokenizer.json has it; empty for None."""
    config: dict[str, Any] = {} if part is None else orjson.loads(part.__getstate__())
    return config


def _find_tokens_inside(starts: Int64s, stops: Int64s, limits: Int64s) -> tuple[Int64s, Int64s]:
    """Return the first token, and one past the last, inside of limits ``[k, 3]`` (start with the
    space before it, start, end) of tokens that begin and end at `starts` and `stops`."""
    space, start, end = limits.T
    first, last = np.searchsorted(stops, start, "right"), np.searchsorted(starts, end, "left")
    return (
        np.maximum(np.searchsorted(starts, space, "left"), first),
        np.minimum(np.searchsorted(stops, end, "right"), last),
    )


def _is_after_space(text: str, at: int) -> bool:
    """Return True if a word begins at `at`, and a space stands before it."""
    return text[at - 1 : at] == " " and not text[at : at + 1].isspace()
