"""Texts → token ids and the places of their borders, by the fastest backend that is exact.

`tokenizers` is the reference. `gigatoken` reads the same `tokenizer.json`, gives the same ids some
ten times faster, and says nothing about where in the text a token stands. That follows from the
bytes that each id spells: where they add up to the text's, they are the text (no normaliser has
changed it), and borders are their running sum. Where they do not, `tokenizers` says it.
"""

from __future__ import annotations

import contextlib
import logging
import unicodedata
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from packidx.arrays import Int64s
from packidx.errors import MismatchError, OptionError
from packidx.processor.chat_template.marks import Span
from packidx.processor.text.vocabulary import Vocabulary, vocabulary_of

_log = logging.getLogger("packidx.encode")

LITTLE = 1 << 20
"""Bytes or characters of text that `tokenizers` has tokenized before `gigatoken` is loaded."""

NUM_TEXTS = 512
"""Texts that both backends tokenize before the faster one is trusted."""

_CHECK_EVERY = 1024
"""Texts of which one is tokenized by both backends, as long as `gigatoken` is used."""

_FEW = 1 << 15
"""Tokens that are looked for by `tokenizers`' own offsets before a table of all of them is made."""


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

    @property
    def lengths(self) -> Int64s:
        """``[n]`` tokens of each text."""
        return np.diff(self.offsets)


class TextEncoder:
    """A tokenizer with its backend and what is known of its tokens' bytes; picklable.

    Args:
        tokenizer: neither padding nor truncating.
        backend: ``'gigatoken'`` or ``'tokenizers'``; see `choose_backend`. None is `tokenizers`
            until so much text has come that loading the other one pays: the texts choose then.
    """

    def __init__(self, tokenizer: Tokenizer, backend: str | None = "tokenizers") -> None:
        self.tokenizer = tokenizer
        self.backend = backend
        self._recent: deque[str] = deque(maxlen=NUM_TEXTS)
        self._size = 0
        self._seen = 0
        self._located = 0

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's tokens and what they spell."""
        return vocabulary_of(self.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(TextEncoder(self.tokenizer, self.backend))}

    def warm(self) -> None:
        """Load both backends as far as they are there, and what ids spell."""
        with contextlib.suppress(Exception):  # whoever wants it will hear of it
            self.vocabulary.gigatoken  # noqa: B018
        self.vocabulary.token_bytes  # noqa: B018

    def encode(
        self, texts: Sequence[str], adds: Sequence[bool], ends: Sequence[int | None] = ()
    ) -> TokenBatch:
        """Tokens of texts as the processor has them.

        Args:
            texts: valid Unicode.
            adds: for each whether the tokenizer's own special tokens are put around it.
            ends: for each the token that it must end with, if any; it is added where it is not
                the last one already. None at all where this is empty.

        Raises:
            MismatchError: the backend's ids are not those of `tokenizers`.
        """
        ids, offsets = self._encode(list(texts))
        prefix, suffix = self.vocabulary.affixes if any(adds) else ((), ())
        num_prefix = np.asarray(adds, np.int64) * len(prefix)
        num_suffix = np.asarray(adds, np.int64) * len(suffix)
        if prefix or suffix or any(end is not None for end in ends):
            parts: list[Any] = []
            for number, add in enumerate(adds):
                own = ids[offsets[number] : offsets[number + 1]]
                sample = [*prefix, *own, *suffix] if add else own
                end = ends[number] if ends else None
                if end is not None and (len(sample) == 0 or sample[-1] != end):
                    sample = [*sample, end]
                    num_suffix[number] += 1
                parts.append(sample)
            ids = np.concatenate([np.asarray(part, np.int64) for part in parts])
            offsets = offsets + np.concatenate([[0], np.cumsum(num_prefix + num_suffix)])
        return TokenBatch(ids, offsets, num_prefix, num_suffix)

    def _encode(self, texts: list[str]) -> tuple[Int64s, Int64s]:
        if self.backend is None:
            self._choose(texts)
        if self.backend != "gigatoken" or not texts:
            return self._reference(texts)
        odd = self.vocabulary.odd_text
        if odd is not None and any(not text.isascii() and odd.search(text) for text in texts):
            return self._reference(texts)
        gigatoken = self.vocabulary.gigatoken
        if len(texts) == 1:  # as a reader has them: a batch costs 120 us, whatever is in it
            ids = gigatoken.encode(texts[0]).astype(np.int64)
            offsets = np.array([0, len(ids)])
        else:
            lists = gigatoken.encode_batch(texts).layout
            ids = np.asarray(lists.content.data, np.int64)
            offsets = np.asarray(lists.offsets.data, np.int64)
        self._check(texts, ids, offsets)
        return ids, offsets

    def _choose(self, texts: list[str]) -> None:
        """Choose the backend once there was that much text."""
        self._recent.extend(texts)
        self._size += sum(map(len, texts))
        if self._size >= LITTLE:
            self.backend, record = choose_backend(self, self._recent)
            _log.info("texts are tokenized by %s", record)
            self._recent.clear()

    def _reference(self, texts: list[str]) -> tuple[Int64s, Int64s]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists], dtype=np.int64)])
        flat = np.fromiter((ident for ids in lists for ident in ids), np.int64, offsets[-1])
        return flat, offsets

    def _check(self, texts: list[str], ids: Int64s, offsets: Int64s) -> None:
        """Tokenize every `_CHECK_EVERY`th text with the reference, too."""
        chosen = range(-self._seen % _CHECK_EVERY, len(texts), _CHECK_EVERY)
        self._seen += len(texts)
        for number in chosen:
            expected = self.tokenizer.encode(texts[number], add_special_tokens=False).ids
            if expected != ids[offsets[number] : offsets[number + 1]].tolist():
                raise MismatchError(
                    f"gigatoken and tokenizers disagree on {texts[number][:80]!r}: "
                    "use --text-engine tokenizers or uninstall gigatoken, and please report it"
                )

    def borders(
        self, batch: TokenBatch, texts: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> tuple[Int64s, Int64s]:
        """Tokens that lie wholly inside spans of characters.

        A token that begins before a span (``"\\n\\n"`` across the border of header and content) or
        reaches beyond it is outside.

        Args:
            batch: `texts` encoded.
            texts: the texts.
            spans: per text, ascending ranges of characters ``[start, end)``.

        Returns:
            First token, and one past the last, of each span, as positions in ``batch.ids``, in
            order; empty where the first is not below the second.
        """
        table = self._token_bytes(len(batch.ids))
        starts, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
        sizes = np.zeros(len(texts), np.int64)
        if table is not None:
            width = table[batch.ids]
            width[affixed(batch)] = 0
            ends = np.cumsum(width)
            starts = ends - width
            total = np.concatenate([[0], ends])
            sizes = total[batch.offsets[1:]] - total[batch.offsets[:-1]]
        borders: list[tuple[int, int]] = []
        wanted: list[tuple[int, int]] = []
        owners: list[int] = []
        for number, (text, ranges) in enumerate(zip(texts, spans, strict=True)):
            if not ranges:
                continue
            if table is not None and self._is_spelled(text, int(sizes[number])):
                base = int(total[batch.offsets[number]])
                wanted += [(base + a, base + b) for a, b in to_bytes(text, ranges)]
                owners += [number] * len(ranges)
                borders += [(-1, -1)] * len(ranges)
            else:
                borders += self._exact(batch, number, text, ranges)
        result = np.array(borders, np.int64).reshape(-1, 2)
        if wanted:
            limits = np.array(wanted, np.int64)
            at = np.array(owners, np.int64)
            low = batch.offsets[at] + batch.prefix[at]
            high = batch.offsets[at + 1] - batch.suffix[at]
            first = np.clip(np.searchsorted(starts, limits[:, 0], "left"), low, high)
            last = np.clip(np.searchsorted(ends, limits[:, 1], "right"), low, high)
            result[result[:, 0] < 0] = np.stack([first, last], axis=1)
        return result[:, 0], result[:, 1]

    def _token_bytes(self, num_tokens: int) -> Int64s | None:
        """Return what ids spell; None for few tokens, of which `tokenizers` says sooner where they
        are."""
        self._located += num_tokens
        if self._located <= _FEW and not self.vocabulary.knows_bytes:
            return None
        return self.vocabulary.token_bytes

    def _is_spelled(self, text: str, size: int) -> bool:
        """Return whether the tokens' bytes are the text's: then their running sum says where they
        are."""
        if text.isascii():
            return size == len(text)
        if self.vocabulary.normalizers - {"NFC", "Replace", "Prepend"}:
            return False
        if "NFC" in self.vocabulary.normalizers and not unicodedata.is_normalized("NFC", text):
            return False
        return size == len(text.encode())

    def _exact(
        self, batch: TokenBatch, number: int, text: str, ranges: Sequence[Span]
    ) -> list[tuple[int, int]]:
        """`borders` of one text, by `tokenizers`' own offsets."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        first = int(batch.offsets[number] + batch.prefix[number])
        borders = []
        for start_char, end_char in ranges:
            end = token_at(encoding, end_char, len(text))
            start = token_at(encoding, start_char, len(text))
            while start < end:
                span = encoding.token_to_chars(start)
                if span is None or span[0] >= start_char:
                    break
                start += 1
            borders.append((first + start, first + end))
        return borders


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


_NEIGHBOURS = ("aTb", "1T2", " T  T ", ".T!", "\nT\r\n", "TT", "éT漢", "T", "_T-", "\u0301T\u0301")
_MOST_ODD = 20_000
BACKENDS = ("gigatoken", "tokenizers")


def choose_backend(
    encoder: TextEncoder, texts: Sequence[str], wanted: str | None = None
) -> tuple[str, dict[str, Any]]:
    """The backend for these texts, and the record of why for the manifest.

    `gigatoken` is taken where it is installed, loads the tokenizer and gives the ids of
    `tokenizers` for every one of `texts`.

    Args:
        texts: a sample of what is to be encoded.
        wanted: one of `BACKENDS`, or None for the faster one that agrees.

    Raises:
        MismatchError: ``'gigatoken'`` is wanted and does not serve.
    """
    reason = "asked for"
    if wanted != "tokenizers":
        reason, name = _try_gigatoken(encoder, texts)
        if not reason:
            record = {"name": name, "texts_checked": len(texts)}
            return "gigatoken", record
        if wanted == "gigatoken":
            raise MismatchError(f"gigatoken cannot be used: {reason}; leave --text-engine out")
    return reference_backend(reason)


def reference_backend(reason: str) -> tuple[str, dict[str, Any]]:
    """`tokenizers` itself, and the record of why for the manifest."""
    return "tokenizers", {"name": f"tokenizers {version('tokenizers')}", "reason": reason}


def _try_gigatoken(encoder: TextEncoder, texts: Sequence[str]) -> tuple[str, str]:
    """(why it cannot be used or an empty string, its name and version)."""
    try:
        loaded = encoder.vocabulary.gigatoken
    except ImportError:
        return 'gigatoken is not installed (pip install "packidx[fast]")', ""
    except Exception as error:  # what it cannot load it refuses with whatever it has
        return f"gigatoken cannot load the tokenizer: {str(error)[:200]}", ""
    name = f"gigatoken {version('gigatoken')}"
    beside = [
        form.replace("T", str(token.content))
        for token in encoder.tokenizer.get_added_tokens_decoder().values()
        for form in _NEIGHBOURS
    ]
    for what, given in (("the data's text", list(texts)), ("text around its added tokens", beside)):
        expected, offsets = encoder._reference(given)
        lists = loaded.encode_batch(given).layout if given else None
        if lists is not None and not (
            np.array_equal(lists.offsets.data, offsets)
            and np.array_equal(lists.content.data, expected)
        ):
            return f"gigatoken gives other ids than tokenizers for {what}", name
    if sum(last - first for first, last in encoder.vocabulary.odd_ranges) > _MOST_ODD:
        return "gigatoken gives other ids than tokenizers for many characters", name
    return "", name


def check_backend(wanted: str | None) -> str | None:
    """A backend's name as an option; ``'auto'`` is None.

    Raises:
        OptionError: there is no such backend.
    """
    if wanted is None or wanted == "auto":
        return None
    if wanted not in BACKENDS:
        known = ", ".join(("auto", *BACKENDS))
        raise OptionError(f"text-engine is {wanted!r}: choose one of {known}")
    return wanted
