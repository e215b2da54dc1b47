"""Texts → token ids and the places of their borders, by the fastest engine that is exact.

`tokenizers` is the reference. `gigatoken` reads the same `tokenizer.json`, gives the same ids some
ten times faster, and says nothing about where in the text a token stands. That follows from the
bytes that each id spells: where they add up to the text's, they are the text (no normaliser has
changed it), and borders are their running sum. Where they do not, `tokenizers` says it.
"""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from packidx.arrays import Int64s
from packidx.errors import MismatchError

Span = tuple[int, int]

ENGINES = ("gigatoken", "tokenizers")
_CHECK_EVERY = 1024
"""Texts of which one is tokenized by both engines, as long as `gigatoken` is used."""
_METASPACE = "\u2581"


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


class TextEncoder:
    """A tokenizer with its engine and what is known of its tokens' bytes; picklable.

    Args:
        tokenizer: neither padding nor truncating.
        engine: ``'gigatoken'`` or ``'tokenizers'``; see `choose_engine`.
    """

    def __init__(self, tokenizer: Tokenizer, engine: str = "tokenizers") -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self._seen = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "engine": self.engine, "_seen": 0}

    def warm(self) -> None:
        """Load both engines as far as they are there, and what ids spell."""
        with contextlib.suppress(Exception):  # whoever wants it will hear of it
            self._gigatoken  # noqa: B018
        self._token_bytes  # noqa: B018

    def encode(self, texts: Sequence[str], adds: Sequence[bool]) -> TokenBatch:
        """Tokens of texts as the processor has them.

        Args:
            texts: valid Unicode.
            adds: for each whether the tokenizer's own special tokens are put around it.

        Raises:
            MismatchError: the engine's ids are not those of `tokenizers`.
        """
        ids, offsets = self._encode(list(texts))
        prefix, suffix = self._affixes if any(adds) else ((), ())
        num = np.asarray(adds, np.int64)
        num_prefix, num_suffix = num * len(prefix), num * len(suffix)
        if prefix or suffix:
            parts: list[Any] = []
            for number, add in enumerate(adds):
                own = ids[offsets[number] : offsets[number + 1]]
                parts += (prefix, own, suffix) if add else (own,)
            ids = np.concatenate([np.asarray(part, np.int64) for part in parts])
            offsets = offsets + np.concatenate([[0], np.cumsum(num_prefix + num_suffix)])
        return TokenBatch(ids, offsets, num_prefix, num_suffix)

    def _encode(self, texts: list[str]) -> tuple[Int64s, Int64s]:
        if self.engine == "tokenizers" or not texts:
            return self._reference(texts)
        lists = self._gigatoken.encode_batch(texts).layout
        ids = np.asarray(lists.content.data, np.int64)
        offsets = np.asarray(lists.offsets.data, np.int64)
        self._check(texts, ids, offsets)
        return ids, offsets

    def _reference(self, texts: list[str]) -> tuple[Int64s, Int64s]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(found) for found in lists], out=offsets[1:])
        flat = np.fromiter((ident for found in lists for ident in found), np.int64, offsets[-1])
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
                    "use --text-engine tokenizers, and please report it"
                )

    @cached_property
    def _gigatoken(self) -> Any:
        import gigatoken

        return gigatoken.Tokenizer.from_json(self.tokenizer.to_str())

    @cached_property
    def _affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the tokenizer's post-processor puts before and after a text."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        whole = self.tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(whole) + 1) if whole[i : i + len(plain)] == plain)
        return tuple(whole[:at]), tuple(whole[at + len(plain) :])

    # -- borders -----------------------------------------------------------------------------------

    @cached_property
    def _config(self) -> dict[str, Any]:
        """The normaliser and the pre-tokenizer, as tokenizer.json has them."""
        parts = (
            ("normalizer", self.tokenizer.normalizer),
            ("pre_tokenizer", self.tokenizer.pre_tokenizer),
        )
        return {
            name: None if part is None else orjson.loads(part.__getstate__())
            for name, part in parts
        }

    @cached_property
    def _normalizers(self) -> set[str]:
        """Types of the normaliser's steps."""
        normalizer = self._config.get("normalizer") or {}
        return {step["type"] for step in normalizer.get("normalizers", [normalizer]) if step}

    @cached_property
    def _token_bytes(self) -> Int64s | None:
        """How many bytes of text each id spells; None where ids do not say."""
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        added = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}
        kind = _spelling(self._config)
        if kind is None:
            return None
        ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
        table = np.zeros(ids.max(initial=-1) + 1, np.int64)
        if kind == "bytes":  # one character per byte
            table[ids] = np.fromiter(map(len, vocabulary), np.int64, len(vocabulary))
        else:
            table[ids] = [_spelled_bytes(token) for token in vocabulary]
        for token in added:
            table[vocabulary[token]] = len(token.encode())
        return table

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
        table = self._token_bytes
        starts, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
        sizes = np.zeros(len(texts), np.int64)
        if table is not None:
            width = table[batch.ids]
            width[_affixed(batch)] = 0
            ends = np.cumsum(width)
            starts = ends - width
            total = np.concatenate([[0], ends])
            sizes = total[batch.offsets[1:]] - total[batch.offsets[:-1]]
        found: list[tuple[int, int]] = []
        wanted: list[tuple[int, int]] = []
        owners: list[int] = []
        for number, (text, ranges) in enumerate(zip(texts, spans, strict=True)):
            if not ranges:
                continue
            if table is not None and self._is_spelled(text, int(sizes[number])):
                base = int(total[batch.offsets[number]])
                wanted += [(base + a, base + b) for a, b in _to_bytes(text, ranges)]
                owners += [number] * len(ranges)
                found += [(-1, -1)] * len(ranges)
            else:
                found += self._exact(batch, number, text, ranges)
        result = np.array(found, np.int64).reshape(-1, 2)
        if wanted:
            limits = np.array(wanted, np.int64)
            at = np.array(owners, np.int64)
            low = batch.offsets[at] + batch.prefix[at]
            high = batch.offsets[at + 1] - batch.suffix[at]
            first = np.clip(np.searchsorted(starts, limits[:, 0], "left"), low, high)
            last = np.clip(np.searchsorted(ends, limits[:, 1], "right"), low, high)
            result[result[:, 0] < 0] = np.stack([first, last], axis=1)
        return result[:, 0], result[:, 1]

    def _is_spelled(self, text: str, size: int) -> bool:
        """Whether the tokens' bytes are the text's: then their running sum says where they are."""
        if text.isascii():
            return size == len(text)
        if self._normalizers - {"NFC", "Replace", "Prepend"}:
            return False
        if "NFC" in self._normalizers and not unicodedata.is_normalized("NFC", text):
            return False
        return size == len(text.encode())

    def _exact(
        self, batch: TokenBatch, number: int, text: str, ranges: Sequence[Span]
    ) -> list[tuple[int, int]]:
        """`borders` of one text, by `tokenizers`' own offsets."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        first = int(batch.offsets[number] + batch.prefix[number])
        found = []
        for start_char, end_char in ranges:
            end = _token_at(encoding, end_char, len(text))
            start = _token_at(encoding, start_char, len(text))
            while start < end and _starts_before(encoding, start, start_char):
                start += 1
            found.append((first + start, first + end))
        return found


def _spelled_bytes(token: str) -> int:
    """Bytes of text that a token of a SentencePiece vocabulary spells."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace(_METASPACE, " ").encode())


def _starts_before(encoding: Encoding, token: int, char: int) -> bool:
    span = encoding.token_to_chars(token)
    return span is not None and span[0] < char


def _token_at(encoding: Encoding, char: int, num_chars: int) -> int:
    """The first token that reaches beyond character `char`; the number of tokens at the end.

    A character may belong to no token: a normaliser that composes characters (NFC) leaves the
    combining ones without. Then the next one that has a token decides.
    """
    for position in range(char, num_chars):
        token: int | None = encoding.char_to_token(position)
        if token is not None:
            return token
    return len(encoding)


def _affixed(batch: TokenBatch) -> NDArray[np.bool_]:
    """``[total]`` whether a token is a prefix or suffix and spells nothing."""
    mask = np.zeros(len(batch.ids), bool)
    if batch.prefix.any() or batch.suffix.any():
        for begin, end, head, tail in zip(
            batch.offsets[:-1], batch.offsets[1:], batch.prefix, batch.suffix, strict=True
        ):
            mask[begin : begin + head] = True
            mask[end - tail : end] = True
    return mask


def _to_bytes(text: str, ranges: Sequence[Span]) -> list[Span]:
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


def _spelling(config: dict[str, Any]) -> str | None:
    """How the vocabulary spells text: ``'bytes'`` (GPT-2's byte map), ``'spaces'`` (▁) or None."""
    steps = config.get("pre_tokenizer") or {}
    kinds = {step.get("type") for step in steps.get("pretokenizers", [steps])}
    if "ByteLevel" in kinds:
        return "bytes"
    if _METASPACE in json.dumps(config.get("normalizer"), ensure_ascii=False):
        return "spaces"
    return None


def choose_engine(
    encoder: TextEncoder, texts: Sequence[str], wanted: str | None = None
) -> tuple[str, dict[str, Any]]:
    """The engine for these texts, and the record of why for the manifest.

    `gigatoken` is taken where it is installed, loads the tokenizer and gives the ids of
    `tokenizers` for every one of `texts`.

    Args:
        encoder: of the tokenizer.
        texts: a sample of what is to be encoded.
        wanted: one of `ENGINES`, or None for the faster one that agrees.

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
    return "tokenizers", {"name": f"tokenizers {version('tokenizers')}", "reason": reason}


def _try_gigatoken(encoder: TextEncoder, texts: Sequence[str]) -> tuple[str, str]:
    """(why it cannot be used or an empty string, its name and version)."""
    try:
        loaded = encoder._gigatoken
    except ImportError:
        return 'gigatoken is not installed (pip install "packidx[fast]")', ""
    except Exception as error:  # what it cannot load it refuses with whatever it has
        return f"gigatoken cannot load the tokenizer: {str(error)[:200]}", ""
    name = f"gigatoken {version('gigatoken')}"
    expected, offsets = encoder._reference(list(texts))
    lists = loaded.encode_batch(list(texts)).layout if texts else None
    if lists is not None and not (
        np.array_equal(lists.offsets.data, offsets) and np.array_equal(lists.content.data, expected)
    ):
        return "gigatoken gives other ids than tokenizers for the data's text", name
    return "", name
