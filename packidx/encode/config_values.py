"""A model's configuration, as far as its processor tells it."""

from __future__ import annotations

from typing import Any

from packidx.errors import OptionError

_FROM_MEDIA = {"spatial_merge_size": "merge_size", "downsample_mode": "downsample_mode"}
"""Name in the model's configuration → in that of the image or video processor."""
_PARTS = ("image_processor", "video_processor")
_ALSO = {"_start": "_bos", "_end": "_eos"}
"""How processors name what configurations name otherwise."""
_WRITTEN = {"newline": "\n"}
"""Tokens of the vocabulary that no processor has a name for."""


class Unknown(OptionError):
    """A value of the configuration that the processor does not tell."""


class InferredConfig:
    """Stands for a configuration whose file is not there.

    Ids of tokens and the merge size come from the processor. Other numbers are the default ones
    and are noted in `unknown`; with `other` they are different ones, so that the two results are
    equal only where such numbers do not count.

    Args:
        default: the default configuration of the model.
        unknown: of the configuration that this one is inside of.
    """

    def __init__(
        self, default: Any, processor: Any, other: bool = False, unknown: set[str] | None = None
    ) -> None:
        self._default, self._processor, self._other = default, processor, other
        self.unknown: set[str] = set() if unknown is None else unknown
        self._tokens: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _FROM_MEDIA:
            return self._of_media(name)
        if name.endswith(("_token_id", "_id")):
            if name not in self._tokens:
                self._tokens[name] = self._of_token(name)
            return self._tokens[name]
        default = getattr(self._default, name)
        if hasattr(default, "to_dict"):
            return InferredConfig(default, self._processor, self._other, self.unknown)
        if not isinstance(default, int | float) or isinstance(default, bool):
            raise self._missing(name)
        self.unknown.add(name)
        return 2 * default + 1 if self._other else default

    def _of_media(self, name: str) -> Any:
        for part in _PARTS:
            value = getattr(getattr(self._processor, part, None), _FROM_MEDIA[name], None)
            if value is not None:
                return value
        raise self._missing(name)

    def _of_token(self, name: str) -> int:
        stem = name.removesuffix("_id").removesuffix("_token")
        owners = (self._processor, getattr(self._processor, "tokenizer", None))
        stems = [stem]
        for ending, other in _ALSO.items():
            if stem.endswith(ending):
                stems.append(stem.removesuffix(ending) + other)
        for each in stems:
            for owner in owners:
                ident = getattr(owner, f"{each}_token_id", None)
                if not isinstance(ident, int):
                    ident = self._ident(getattr(owner, f"{each}_token", None))
                if ident is not None:
                    return ident
        ident = self._ident(_WRITTEN.get(stem, f"<|{stem}|>"))
        if ident is None:
            raise self._missing(name)
        return ident

    def _ident(self, token: Any) -> int | None:
        """Of a string that is one token."""
        tokenizer = getattr(self._processor, "tokenizer", None)
        if tokenizer is None or not isinstance(token, str):
            return None
        ids = tokenizer.encode(token, add_special_tokens=False)
        return int(ids[0]) if len(ids) == 1 else None

    def _missing(self, name: str) -> Unknown:
        kind, model = type(self._processor).__name__, type(self._default).__name__
        return Unknown(
            f"{kind} does not tell {name} of its model ({model}), which positions hang on: give a"
            " folder with the checkpoint's config.json"
        )
