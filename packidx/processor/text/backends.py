"""What tokenizes: gigatoken or tokenizers, compared on the data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from packidx.errors import MismatchError, OptionError
from packidx.processor.text.encoder import TextEncoder

_NEIGHBOURS = ("aTb", "1T2", " T  T ", ".T!", "\nT\r\n", "TT", "éT漢", "T", "_T-", "\u0301T\u0301")
_MOST_ODD = 5000
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
    if len(encoder.vocabulary.odd_characters) > _MOST_ODD:
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
