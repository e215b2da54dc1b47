"""Counting: conversations and pixel sizes in, token counts out, many at a time.

What can be exact is: the template's rendering is tokenized, and images are expanded by the vision
family's arithmetic. What cannot falls back, and says so in `method`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from packidx.errors import BadRecord
from packidx.processor.folder import ProcessorFiles
from packidx.processor.labels import count_labels, label_ranges
from packidx.processor.template import Rendered
from packidx.records.conversation import Conversation, Media

METHODS = ("exact", "precomputed", "heuristic")
"""Strongest first; a row's is the weakest of its parts."""
CHARS_PER_TOKEN = 3
TOKENS_PER_MEDIUM = 500
"""Guesses where nothing better is known, as trainers make them."""

Size = tuple[int, int]


@dataclass(slots=True)
class Counted:
    """One sample's counts; a number that is not known is None."""

    text_tokens: int
    image_tokens: int
    video_tokens: int
    audio_tokens: int
    length: int
    label_tokens: int | None
    media: list[dict[str, Any]]
    """``{kind, tokens, patches, t, h, w, at}`` per medium, in order of appearance."""
    vision_patches: int | None
    vision_cost: int | None
    method: str


@dataclass(slots=True)
class _Text:
    """The text side of a count."""

    tokens: int
    method: str
    label_tokens: int | None = None
    media_tokens: list[int] = field(default_factory=list)
    """Positions of the placeholders among `tokens` plus the placeholders themselves."""


class Counter:
    """Counts what `ProcessorEncoder` with the same processor builds.

    Args:
        files: the processor; None counts from what records state, and guesses the rest.
    """

    def __init__(self, files: ProcessorFiles | None) -> None:
        self.files = files

    def fingerprint(self) -> str | None:
        """The processor's, or None where it cannot build samples (no tokenizer or no template)."""
        files = self.files
        if files is None or files.tokenizer is None or files.template is None:
            return None
        return files.fingerprint()

    def count(
        self, conversations: Sequence[Conversation], sizes: Sequence[Sequence[Size | None]]
    ) -> list[Counted | BadRecord]:
        """Count a batch: one call of the tokenizer and one of the vision family for all of it.

        Args:
            conversations: the samples.
            sizes: per sample and medium, in order of appearance, (height, width) in pixels after
                orientation, or None where unknown.

        Returns:
            Per sample its counts, or why it has none.
        """
        media = self._count_media(conversations, sizes)
        texts = self._count_texts(conversations)
        results: list[Counted | BadRecord] = []
        for text, parts in zip(texts, media, strict=True):
            if isinstance(text, BadRecord):
                results.append(text)
            elif isinstance(parts, BadRecord):
                results.append(parts)
            else:
                results.append(_combine(text, *parts))
        return results

    # -- text --------------------------------------------------------------------------------------

    def _count_texts(self, conversations: Sequence[Conversation]) -> list[_Text | BadRecord]:
        files = self.files
        if files is None or files.tokenizer is None or files.template is None:
            return [self._guess_text(conversation) for conversation in conversations]
        rendered: list[Rendered | BadRecord] = []
        for conversation in conversations:
            try:
                rendered.append(files.template.render(conversation))
            except BadRecord as error:
                rendered.append(error)
        good = [item for item in rendered if isinstance(item, Rendered)]
        encodings = iter(encode(files, files.tokenizer, [item.text for item in good]))
        return [
            item if isinstance(item, BadRecord) else _count_text(item, next(encodings))
            for item in rendered
        ]

    def _guess_text(self, conversation: Conversation) -> _Text:
        if conversation.text_tokens is not None:
            overhead = 0
            if self.files is not None and self.files.vision is not None:
                roles = [turn.role for turn in conversation.turns]
                overhead = self.files.vision.text_overhead(roles, len(conversation.media))
            return _Text(conversation.text_tokens + overhead, "precomputed")
        parts = (part for turn in conversation.turns for part in turn.parts)
        characters = sum(len(part) for part in parts if isinstance(part, str))
        return _Text(characters // CHARS_PER_TOKEN, "heuristic")

    # -- media -------------------------------------------------------------------------------------

    def _count_media(
        self, conversations: Sequence[Conversation], sizes: Sequence[Sequence[Size | None]]
    ) -> list[tuple[list[dict[str, Any]], str] | BadRecord]:
        vision = self.files.vision if self.files is not None else None
        known: list[Size] = []
        for conversation, stated in zip(conversations, sizes, strict=True):
            pairs = zip(conversation.media, stated, strict=True)
            known += [size for medium, size in pairs if _is_sized(medium, size) and size]
        grids: Iterator[list[int]] = iter(())
        tokens: Iterator[int] = iter(())
        if vision is not None and known:
            array = vision.image_grids(np.array(known, np.int64))
            grids, tokens = iter(array.tolist()), iter(vision.num_tokens(array).tolist())
        results: list[tuple[list[dict[str, Any]], str] | BadRecord] = []
        for conversation, stated in zip(conversations, sizes, strict=True):
            parts, method, error = [], "exact", None
            for medium, size in zip(conversation.media, stated, strict=True):
                if vision is not None and _is_sized(medium, size):
                    grid, count = next(grids), next(tokens)
                    parts.append(_medium("image", count, grid))
                    error = error or refuse_size(size, count)
                elif medium.tokens is not None:
                    parts.append(_medium(medium.kind, medium.tokens))
                    method = _weaker(method, "precomputed")
                else:
                    parts.append(_medium(medium.kind, TOKENS_PER_MEDIUM))
                    method = "heuristic"
            results.append(error or (parts, method))
        return results


def encode(files: ProcessorFiles, tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """Rendered texts tokenized as the processor does it, with character offsets, in one batch.

    Only where a tokenizer has a BOS token that some templates write and others do not, two.
    """
    adds = [files.adds_special_tokens(text) for text in texts]
    encodings: list[Encoding | None] = [None] * len(texts)
    for flag in (True, False):
        chosen = [i for i, add in enumerate(adds) if add is flag]
        batch = [texts[i] for i in chosen]
        if batch:
            done = tokenizer.encode_batch(batch, add_special_tokens=flag)
            for i, encoding in zip(chosen, done, strict=True):
                encodings[i] = encoding
    return [encoding for encoding in encodings if encoding is not None]


def find_media_tokens(rendered: Rendered, encoding: Encoding) -> list[int]:
    """Positions in `encoding` of the media placeholders, each of which is one added token."""
    tokens = [encoding.char_to_token(at) for at in rendered.media]
    return [token for token in tokens if token is not None]


def _count_text(rendered: Rendered, encoding: Encoding) -> _Text:
    media = find_media_tokens(rendered, encoding)
    labels = count_labels(label_ranges(encoding, rendered, media))
    return _Text(len(encoding) - len(media), "exact", labels, media)


def _is_sized(medium: Media, size: Size | None) -> bool:
    return medium.kind == "image" and size is not None


def refuse_size(size: Size | None, tokens: int) -> BadRecord | None:
    """Why an image of this (height, width) becomes no token, if it becomes none."""
    if tokens or size is None:
        return None
    height, width = size
    if height <= 0 or width <= 0:
        return BadRecord("broken_media", f"an image of {width}x{height} pixels")
    return BadRecord(
        "aspect_ratio", f"an image of {width}x{height} pixels: the longer side is over 200 times"
    )


def _medium(kind: str, tokens: int, grid: Sequence[int] | None = None) -> dict[str, Any]:
    t, h, w = grid if grid is not None else (None, None, None)
    patches = None if grid is None else grid[0] * grid[1] * grid[2]
    return {"kind": kind, "tokens": tokens, "patches": patches, "t": t, "h": h, "w": w, "at": None}


def _weaker(one: str, other: str) -> str:
    return max(one, other, key=METHODS.index)


def _combine(text: _Text, media: list[dict[str, Any]], method: str) -> Counted:
    method = _weaker(text.method, method)
    if method == "exact":
        before = 0
        for at, medium in zip(text.media_tokens, media, strict=True):
            medium["at"] = at + before
            before += medium["tokens"] - 1
    sums = {"image": 0, "video": 0, "audio": 0}
    for medium in media:
        sums[medium["kind"]] += medium["tokens"]
    patches = [medium["patches"] for medium in media]
    known = None not in patches
    return Counted(
        text_tokens=text.tokens,
        image_tokens=sums["image"],
        video_tokens=sums["video"],
        audio_tokens=sums["audio"],
        length=text.tokens + sum(sums.values()),
        label_tokens=text.label_tokens,
        media=media,
        vision_patches=sum(patches) if known else None,
        # An image is one attention span of the vision tower: t is 1.
        vision_cost=sum(number * number for number in patches) if known else None,
        method=method,
    )
