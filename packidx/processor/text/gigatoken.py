"""gigatoken: the faster tokenizer, used where it gives the ids of `tokenizers`.

It is compared with `tokenizers` once, before anything is counted: on texts of the data, and on
texts around the tokenizer's added tokens. The two libraries know different versions of Unicode, so
each character that was assigned since Unicode 3.2 is tried when it first occurs. A text with one
on which they differ is counted by `tokenizers`.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from packidx.arrays import Int64s

LITTLE = 1 << 20
"""Bytes of data below which loading gigatoken takes longer than it saves."""
NUM_TEXTS = 512
"""Texts of the data that both engines tokenize before gigatoken is trusted."""
_NEIGHBOURS = ("aTb", "1T2", " T  T ", ".T!", "\nT\r\n", "TT", "éT漢", "T", "_T-", "\u0301T\u0301")
_TRIAL = "TT\u0307T\u0316T's"
"""Text that shows whether two libraries treat a character T alike: as a letter, as a mark that
combines, as one that is reordered."""


class Gigatoken:
    """A gigatoken tokenizer beside the tokenizer that it stands for.

    Raises:
        Exception: gigatoken is not installed or cannot load the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        self._own: Any = gigatoken.Tokenizer.from_json(tokenizer.to_str())
        self._reference = tokenizer
        self._equal, self._different = set[str](), set[str]()

    def knows(self, text: str) -> bool:
        """Return True if `text` has no character on which the two libraries differ."""
        if text.isascii() or self._equal.issuperset(text):
            return True
        for char in set(text) - self._equal - self._different:
            trial = [_TRIAL.replace("T", char)]
            is_old = unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Co")
            is_equal = is_old or np.array_equal(
                self.encode(trial)[0], encode_by_reference(self._reference, trial)[0]
            )
            (self._equal if is_equal else self._different).add(char)
        return self._different.isdisjoint(text)

    def encode(self, texts: Sequence[str]) -> tuple[Int64s, Int64s]:
        """Return ids, int64 ``[total]``, and offsets, int64 ``[n + 1]``, of texts."""
        lists = self._own.encode_batch(list(texts)).layout
        return np.asarray(lists.content.data, np.int64), np.asarray(lists.offsets.data, np.int64)


def encode_by_reference(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return ids and offsets of texts by `tokenizers`, as `Gigatoken.encode`."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    lists = [encoding.ids for encoding in encodings]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists], dtype=np.int64)])
    flat = np.fromiter(itertools.chain.from_iterable(lists), np.int64, offsets[-1])
    return flat, offsets


def choose_engine(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[Gigatoken | None, dict[str, Any]]:
    """Return gigatoken if it can count these texts of the data, and the manifest's record of the
    choice."""
    made, reason = _try_gigatoken(tokenizer, texts) if texts else (None, "little data")
    if made is not None:
        return made, {"name": f"gigatoken {version('gigatoken')}", "texts_checked": len(texts)}
    return None, {"name": f"tokenizers {version('tokenizers')}", "reason": reason}


def _try_gigatoken(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Gigatoken | None, str]:
    """Return gigatoken, or None and why it cannot be used."""
    try:
        made = Gigatoken(tokenizer)
    except ImportError:
        return None, 'gigatoken is not installed (pip install "packidx[fast]")'
    except Exception as error:  # it raises classes of its own
        return None, f"gigatoken cannot load the tokenizer: {str(error)[:200]}"
    beside = [
        form.replace("T", str(token.content))
        for token in tokenizer.get_added_tokens_decoder().values()
        for form in _NEIGHBOURS
    ]
    for what, given in (("the data's text", texts), ("text around its added tokens", beside)):
        given = [text for text in given if made.knows(text)]
        expected = encode_by_reference(tokenizer, given)
        if given and not all(map(np.array_equal, made.encode(given), expected)):
            return None, f"gigatoken gives other ids than tokenizers for {what}"
    return made, ""
