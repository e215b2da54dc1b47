"""The tokenizer that training has: what transformers makes of a folder, or its file alone.

Some classes of transformers take no more of ``tokenizer.json`` than the vocabulary, and put steps
of their own before it; tokens are named beside the file, too. So where transformers is installed
its tokenizer counts, kept in the cache. Where it is not, the file does, and what may be otherwise
in training is told: nothing is exact then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from packidx.processor.text.vocabulary import kept, read_tokenizer, vocabulary_of
from packidx.software import installed

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
    folder: Path, content: Sequence[str], takes_media: bool, trusts_code: bool
) -> Loaded | None:
    """What transformers makes of a folder; None where it is not installed.

    Args:
        content: of all files that it may read.
        takes_media: whether there is more to the processor than a tokenizer.
        trusts_code: whether code of the folder is run.

    Raises:
        Exception: transformers cannot load it.
    """
    if installed("transformers") is None:
        return None
    versions = [f"{name} {installed(name)}" for name in _READERS]
    made = kept(
        __file__,
        [*versions, str((takes_media, trusts_code)), *content],
        lambda: import_module("packidx.encode.loading").tokenizer_of(
            str(folder), takes_media, trusts_code
        ),
    )
    path = folder / "tokenizer.json"
    given = path.read_bytes() if made["tokenizer"] is None else made["tokenizer"].encode()
    return Loaded(read_tokenizer(given), made["special_tokens"], made["limit"])


def doubt_of(tokenizer: Tokenizer, beside: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why transformers may make another tokenizer of a file; None where it takes it as it is.

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
