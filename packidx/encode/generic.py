"""Images of processors that no family of ours knows: transformers' own class counts them.

Its `_get_num_multimodal_tokens` says how many tokens an image of some size becomes. It is not what
the processor does when it is called, only meant to agree with it: newlines around an image that
melt into the text beside it are not in it, nor a video's timestamps, and Pixtral's mistakes an
image three pixels high for one with the channels first. So such counts are never called exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.digests import digest
from packidx.encode.imports import transformers_class
from packidx.errors import BadRecord, SourceError
from packidx.processor.families import Expansion, MediaCounts, VisionFamily
from packidx.processor.families.base import VideoCount, no_pixels
from packidx.records.conversation import MediaInfo

METHOD = "_get_num_multimodal_tokens"


class GenericVision(VisionFamily):
    """A `VisionFamily` that asks a transformers processor; it counts images and nothing else.

    Its counts are `precomputed`, not `exact`, and patches are not known: all grids are 0.

    Args:
        processor: a transformers processor of any class.
        folder: where it was loaded from; another process loads it there again.

    Raises:
        SourceError: it cannot say how many tokens an image becomes, or has no token for images.
    """

    def __init__(self, processor: Any, folder: str | None = None) -> None:
        name = type(processor).__name__
        if not callable(getattr(processor, METHOD, None)):
            raise SourceError(
                f"{name} is of no family packidx knows, and has no {METHOD}: state each image's "
                "tokens in the data, or count with your own encoder (--encode MODULE:NAME)"
            )
        self.processor = processor
        self.folder = folder
        self._name = f"{name}.{METHOD}"
        self._token, self._feature = _image_tokens(processor, name)
        self._ask = lru_cache(maxsize=1 << 20)(self._compute)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is not None:
            return load_generic, (self.folder,)
        return GenericVision, (self.processor,)

    @property
    def counted_by(self) -> str:
        return self._name

    @property
    def settings(self) -> dict[str, str]:
        """What the fingerprint must hold, besides the tokenizer: the arithmetic is not ours."""
        import transformers

        settings = self.processor.to_json_string()
        return {"processor": digest(settings.encode()), "transformers": transformers.__version__}

    @property
    def placeholders(self) -> Mapping[str, str]:
        return {"image": self._token}

    @property
    def feature_tokens(self) -> Mapping[str, str]:
        return {"image": self._feature}

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        """See `VisionFamily.count_images`; the processor is asked once per distinct size."""
        array = np.asarray(sizes, np.int64).reshape(-1, 2)
        distinct, which = np.unique(array, axis=0, return_inverse=True)
        answers = [self._ask(height, width) for height, width in distinct.tolist()]
        counts = np.array([n if isinstance(n, int) else 0 for n in answers], np.int64)
        chosen = which.reshape(-1).tolist()
        errors = {
            number: error
            for number, size in enumerate(chosen)
            if isinstance(error := answers[size], BadRecord)
        }
        tokens = counts[chosen]
        expansions = [Expansion(self._feature, (n,)) if n else None for n in tokens.tolist()]
        return MediaCounts(np.zeros((len(array), 3), np.int64), tokens, expansions, errors)

    def _compute(self, height: int, width: int) -> int | BadRecord:
        """Tokens of an image of this size, in pixels, or why it has none."""
        if height <= 0 or width <= 0:
            return no_pixels(height, width)
        detail = f"{self.counted_by} gives no tokens for an image of {width}x{height} pixels"
        try:
            answer = getattr(self.processor, METHOD)(image_sizes=[(height, width)])
            [tokens] = answer["num_image_tokens"]
            return int(tokens) if tokens > 0 else BadRecord("media_not_counted", detail)
        except Exception as error:  # a foreign class: whatever it raises is its verdict
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return BadRecord("media_not_counted", f"{detail} ({reason})")

    def _count_video(self, video: MediaInfo) -> VideoCount:
        """Refuses each: what is asked leaves timestamps and markers of videos out."""
        raise BadRecord("unsupported_media", f"{self.counted_by} does not count a video's tokens")


def _image_tokens(processor: Any, name: str) -> tuple[str, str]:
    """What stands for an image in a rendered text, and the token that is repeated in its place.

    Raises:
        SourceError: the processor does not say, or its tokenizer has no such token.
    """
    token = getattr(processor, "image_token", None)
    if not isinstance(token, str) or not token:
        raise SourceError(f"{name} does not say which token stands for an image (image_token)")
    backend = processor.tokenizer.backend_tokenizer
    added = {str(token.content) for token in backend.get_added_tokens_decoder().values()}
    ident = getattr(processor, "image_token_id", None)
    named = None if ident is None else backend.id_to_token(int(ident))
    for feature in (named, token):
        if feature in added:
            return token, str(feature)
    raise SourceError(f"the tokenizer of {name} has no added token {token} that stands for images")


def load_generic(folder: str) -> GenericVision:
    """`GenericVision` of a processor folder.

    Raises:
        MissingExtraError: transformers is not installed or cannot be used.
        SourceError: transformers cannot load the folder's processor, or it does not serve.
    """
    loader = transformers_class("AutoProcessor")
    try:
        processor = loader.from_pretrained(folder)
    except Exception as error:  # transformers raises whatever the folder makes it stumble over
        reason = " ".join(str(error).split())[:300]
        raise SourceError(
            f"processor folder {folder} is of no family packidx knows, and transformers cannot "
            f"load it: {reason}"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise SourceError(
            f"transformers makes {type(processor).__name__} of processor folder {folder}, which "
            "takes no images"
        )
    return GenericVision(processor, folder)
