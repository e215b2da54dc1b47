"""What follows from a tokenizer alone, made once in a process: loading one takes seconds."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

import packidx
from packidx import digests
from packidx.arrays import Int64s
from packidx.digests import digest
from packidx.io.cache import kept
from packidx.processor import fingerprint
from packidx.recent import Recent
from packidx.software import installed

_METASPACE = "\u2581"
_TRIAL = "TT\u0307T\u0316T's"
"""Shows a character (T) that composes or changes places with a mark, or is a letter, for one of two
libraries alone."""
_GAP = 32
"""Code points between two odd characters that are odd, too: pairs of a script are not tried."""
_SET = ("dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges")  # of a model


class Vocabulary:
    """A tokenizer that nobody changes, neither padding nor truncating; and its tokens.

    Args:
        content: SHA-256 of the ``tokenizer.json`` that it was read from, if it was.
        is_cut: whether that says where texts are cut or padded.
    """

    def __init__(
        self, tokenizer: Tokenizer, content: str | None = None, is_cut: bool = False
    ) -> None:
        self.tokenizer = tokenizer
        self.is_cut = is_cut
        self._content = content
        self._state = _state(tokenizer)

    @property
    def is_unchanged(self) -> bool:
        """Return whether the tokenizer is as it was: whoever holds it may have set a truncation."""
        return _state(self.tokenizer) == self._state

    @cached_property
    def normalised(self) -> dict[str, Any]:
        """Return the part of the tokenizer that goes into a processor's fingerprint."""
        if self._content is None:
            return fingerprint.normalise_tokenizer(self.tokenizer.to_str())
        return _kept(
            fingerprint.__file__,
            [self._content],
            lambda: fingerprint.normalise_tokenizer(self.tokenizer.to_str()),
        )

    @cached_property
    def gigatoken(self) -> Any:
        """The same as a tokenizer of `gigatoken`, which raises what it likes."""
        import gigatoken

        return gigatoken.Tokenizer.from_json(self.tokenizer.to_str())

    @cached_property
    def odd_ranges(self) -> list[list[int]]:
        """First and last code points of runs of characters of which `gigatoken` makes other tokens:
        the two know letters and marks of other versions of Unicode. Tried are all that came after
        its version 3.2, or may come."""
        if self._content is None:
            return self._odd_ranges()["ranges"]
        parts = [self._content, str(installed("gigatoken"))]
        odd: list[list[int]] = _kept(__file__, parts, self._odd_ranges)["ranges"]
        return odd

    def _odd_ranges(self) -> dict[str, list[list[int]]]:
        points = itertools.chain(range(0x80, 0xD800), range(0xE000, 0x33500))
        known = unicodedata.ucd_3_2_0.category
        tried = [char for char in map(chr, points) if known(char) == "Cn"]
        odd: list[list[int]] = []
        for first in range(0, len(tried), 1 << 14):
            run = tried[first : first + (1 << 14)]
            texts = [_TRIAL.replace("T", char) for char in run]
            ours = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            lists = self.gigatoken.encode_batch(texts).layout
            ids, ends = lists.content.data, lists.offsets.data
            for number, encoding in enumerate(ours):
                if encoding.ids != ids[ends[number] : ends[number + 1]].tolist():
                    point = ord(run[number])
                    if odd and point - odd[-1][1] <= _GAP:
                        odd[-1][1] = point
                    else:
                        odd.append([point, point])
        return {"ranges": odd}

    @cached_property
    def odd_text(self) -> re.Pattern[str] | None:
        """Return a pattern that finds one of them in a text; None where there are none."""
        odd = "".join(f"{chr(first)}-{chr(last)}" for first, last in self.odd_ranges)
        return re.compile(f"[{odd}]") if odd else None

    @cached_property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the tokenizer's post-processor puts before and after a text."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        ids = self.tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(ids) + 1) if ids[i : i + len(plain)] == plain)
        return tuple(ids[:at]), tuple(ids[at + len(plain) :])

    @cached_property
    def normalizers(self) -> set[str]:
        """Types of the normaliser's steps."""
        normalizer = _config(self.tokenizer.normalizer) or {}
        return {step["type"] for step in normalizer.get("normalizers", [normalizer]) if step}

    @cached_property
    def token_bytes(self) -> Int64s | None:
        """Return how many bytes of text each id spells; None where ids do not say."""
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
        table = np.zeros(ids.max(initial=-1) + 1, np.int64)
        if self._spells_bytes:  # one character per byte
            table[ids] = np.fromiter(map(len, vocabulary), np.int64, len(vocabulary))
        elif _METASPACE in json.dumps(_config(self.tokenizer.normalizer), ensure_ascii=False):
            table[ids] = [_spelled_bytes(token) for token in vocabulary]
        else:
            return None
        for token in self.tokenizer.get_added_tokens_decoder().values():
            table[vocabulary[token.content]] = len(token.content.encode())
        return table

    @property
    def knows_bytes(self) -> bool:
        """Return whether `token_bytes` is made already."""
        return "token_bytes" in vars(self)

    @property
    def _spells_bytes(self) -> bool:
        """Return whether tokens are written in GPT-2's map of bytes."""
        steps = _config(self.tokenizer.pre_tokenizer) or {}
        kinds = {step.get("type") for step in steps.get("pretokenizers", [steps])}
        return "ByteLevel" in kinds


def _state(tokenizer: Tokenizer) -> list[Any]:
    """All of a tokenizer that can be set, but for its merges."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor)
    model = tokenizer.model
    return [
        (tokenizer.padding, tokenizer.truncation, tokenizer.encode_special_tokens),
        [None if part is None else part.__getstate__() for part in parts],
        (type(model), [getattr(model, name, None) for name in _SET]),
        (tokenizer.get_vocab_size(), repr(tokenizer.get_added_tokens_decoder())),
    ]


def _config(part: Any) -> Any:
    """The normaliser or the pre-tokenizer, as tokenizer.json has it."""
    return None if part is None else orjson.loads(part.__getstate__())


def _spelled_bytes(token: str) -> int:
    """Bytes of text that a token of a SentencePiece vocabulary spells."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace(_METASPACE, " ").encode())


_KEPT: Recent[str, Vocabulary] = Recent(2)
"""By the digest of the tokenizer's file."""


def read_tokenizer(content: bytes) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``, without its padding and truncation.

    It is shared until somebody changes it: then the next one is loaded anew.

    Raises:
        Exception: of `tokenizers`, which has no class of its own.
    """
    key = digest(content)
    known = _KEPT.get(key)
    if known is None or not known.is_unchanged:
        tokenizer = Tokenizer.from_buffer(content)
        is_cut = tokenizer.padding is not None or tokenizer.truncation is not None
        tokenizer.no_padding()
        tokenizer.no_truncation()
        known = Vocabulary(tokenizer, key, is_cut)
        _KEPT.put(key, known, 1)
    return known.tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return what is known of a tokenizer: the one kept, where `read_tokenizer` gave it."""
    for _, known in _KEPT.items():
        if known.tokenizer is tokenizer and known.is_unchanged:
            return known
    return Vocabulary(tokenizer)


def _kept(code: str, parts: Sequence[str], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`packidx.io.kept.kept` of what follows from a tokenizer by the code in the file `code`."""
    try:
        of_code = digests.file_digest(code)
    except OSError:  # not a file, as in an archive
        return make()
    release = str(installed("tokenizers"))
    return kept("tokenizers", [*parts, release, packidx.__version__, of_code], make)


_READERS = ("transformers", "torch", "torchvision", "sentencepiece", "tiktoken", "mistral-common")
_AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take the file as it is."""
_QWEN2 = {
    "model": {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {
                    "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                },
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ],
    },
}
"""What `Qwen2Tokenizer` builds whatever the file says: a file that says the same is taken as it
is."""
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer, and what else of it decides a sample's tokens."""

    tokenizer: Tokenizer | None
    special_tokens: dict[str, str] = field(default_factory=dict)
    """By the names that templates have for them."""
    limit: int | None = None
    """Tokens that the processor cuts samples at."""
    doubt: str | None = None
    """Why training may have another tokenizer."""


def load_tokenizer(
    folder: Path,
    content: Sequence[str],
    takes_media: bool,
    trusts_code: bool,
    tokenizer_of: Callable[[str, bool, bool], dict[str, Any]],
) -> Loaded | None:
    """Return what transformers makes of a folder; None where it is not installed.

    Args:
        content: of all files that it may read.
        takes_media: whether there is more to the processor than a tokenizer.
        trusts_code: whether code of the folder is run.
        tokenizer_of: loads it (`packidx.encode.loading.tokenizer_of`).

    Raises:
        Exception: transformers cannot load it.
    """
    if installed("transformers") is None:
        return None
    versions = [f"{name} {installed(name)}" for name in _READERS]
    made = _kept(
        __file__,
        [*versions, str((takes_media, trusts_code)), *content],
        lambda: tokenizer_of(str(folder), takes_media, trusts_code),
    )
    path = folder / "tokenizer.json"
    given = path.read_bytes() if made["tokenizer"] is None else made["tokenizer"].encode()
    return Loaded(read_tokenizer(given), made["special_tokens"], made["limit"])


def doubt_of(tokenizer: Tokenizer, beside: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return why transformers may make another tokenizer of a file; None where it does not.

    Args:
        beside: the files beside it by their names, empty where there is none.
    """
    config = {**beside["special_tokens_map.json"], **beside["tokenizer_config.json"]}
    vocabulary = vocabulary_of(tokenizer)
    content = vocabulary.normalised
    named = str(config.get("tokenizer_class"))
    built = {name: content[name] for name in ("normalizer", "pre_tokenizer")}
    options = content["model"].items()
    built["model"] = {key: value for key, value in options if key not in ("vocab", "merges")}
    if named.removesuffix("Fast") == "Qwen2Tokenizer" or beside["config.json"].get("model_type"):
        stated = {"unk_token", "eos_token", "pad_token"} <= config.keys()
        added = config.get("added_tokens_decoder")
        whole = added is None or len(added) == len(content["added_tokens"])
        known = built == _QWEN2 and stated and whole
    else:
        known = True
    if named not in (*_AS_THEY_ARE, "Qwen2Tokenizer", "Qwen2TokenizerFast") or not known:
        return f"its class, {named}, may build another tokenizer of it"
    if vocabulary.is_cut or any(config.get(key) for key in ("truncation", "max_length", "padding")):
        return "it states a truncation or padding"
    options = ("split_special_tokens", "add_prefix_space", "add_bos_token", "add_eos_token")
    adds = content["post_processor"] is not None or "add_prefix_space': True" in repr(built)
    for option in options:
        if config.get(option) or (adds and config.get(option) is not None):
            return f"its {option} is {config[option]}"
    own = {token["content"]: token for token in content["added_tokens"]}
    for token in _named(config, beside["added_tokens.json"]):
        if any(own.get(token["content"], {}).get(key) != value for key, value in token.items()):
            return f"{token['content']} is named beside it, and is another one in it"
    return None


def _named(config: Mapping[str, Any], added: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Tokens that are named beside a file, as it has them."""
    given = [value for key, value in config.items() if key.endswith("_token") and value]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        several = config.get(name) or []
        given += several.values() if isinstance(several, Mapping) else several
    for token in given:
        flags = token if isinstance(token, Mapping) else {"content": token}
        if isinstance(flags["content"], str):
            plain: dict[str, Any] = dict.fromkeys(_FLAGS, False)
            stated = {key: flags[key] for key in ("content", *_FLAGS) if key in flags}
            yield {**plain, **stated, "special": True}
    for ident, token in (config.get("added_tokens_decoder") or {}).items():
        stated = {key: token[key] for key in ("content", "special", *_FLAGS) if key in token}
        yield {**stated, "id": int(ident)}
    for text, ident in added.items():
        yield {"content": text, "id": ident}
