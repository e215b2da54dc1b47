"""`ProcessorEncoder`: what the plan counted, built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.loading import files_of, import_torch, load_image_processor
from packidx.encode.mrope import mrope_positions
from packidx.errors import BadRecord, OptionError
from packidx.processor.counter import Counter, media_token_in_text
from packidx.processor.folder import ProcessorFiles, load_processor
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.sequence import locate_runs, trained_tokens
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.dialects import parse
from packidx.records.media import open_image

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Label of a token that is not trained on."""


class ProcessorEncoder:
    """One record in, one sample's tensors out: the same tokens as the processor's own.

    Ids are those of `processor.apply_chat_template(messages, tokenize=True)`, and the processor's
    own image processor makes the pixels; labels follow `packidx.processor.labels`.

    Args:
        processor: a transformers processor or tokenizer, or a folder or model name to load it from.
        policy: which tokens are trained on; the plan was counted with one, and only that will do.

    Raises:
        SourceError: the folder or model has nothing usable.
        OptionError: the processor lacks a fast tokenizer or a chat template.
        MissingExtraError: a package is missing (on first use: torch for tensors, transformers for
            the pixels of a processor given by name).
    """

    def __init__(self, processor: Any, policy: LabelPolicy = DEFAULT_POLICY) -> None:
        if isinstance(processor, str | os.PathLike):
            self.files = load_processor(processor, policy)
            self._image_processor: Any = None
        else:
            self.files = files_of(processor, policy)
            self._image_processor = getattr(processor, "image_processor", None)
        if self.files.tokenizer is None or self.files.template is None:
            lacking = "tokenizer.json" if self.files.tokenizer is None else "chat template"
            raise OptionError(f"processor {self.files.name} has no {lacking}: samples need one")
        if self._image_processor is not None and self.files.vision is None:
            raise OptionError(
                f"{type(processor).__name__} is of no family packidx knows: "
                "pass your own encode(record) callable instead"
            )
        self._counter = Counter(self.files)

    @property
    def media_token_ids(self) -> dict[str, int]:
        """Token id of each kind of medium, ``{"image": 151655}``: finds a cut sample's media."""
        if self.files.vision is None or self.files.tokenizer is None:
            return {}
        ids = {
            kind: self.files.tokenizer.token_to_id(token)
            for kind, token in self.files.vision.feature_tokens.items()
        }
        return {kind: ident for kind, ident in ids.items() if ident is not None}

    def fingerprint(self) -> str:
        """Equal to ``load_processor(folder).fingerprint()`` of the processor's folder."""
        return self.files.fingerprint()

    def count(self, record: Mapping[str, Any]) -> int:
        """The length of the sample that `record` becomes, without decoding pixels.

        Raises:
            BadRecord: `record` cannot become a sample.
        """
        conversation = parse(record)
        _refuse_unsupported(conversation, self.files)
        infos = [_info(medium) for medium in conversation.media]
        counts = self._counter.count([conversation], [infos])
        for error in counts.errors.values():
            raise error
        return int(counts.length[0])

    def __call__(self, record: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """One sample's tensors.

        Args:
            record: a raw record of any dialect, images opened (`records.media.open_media`).

        Returns:
            ``input_ids`` int64 ``[T]``; ``labels`` int64 ``[T]``, not shifted, -100 where not
            trained on and always at 0; ``position_ids`` int64 ``[3, T]`` (mRoPE) or ``[T]``; and
            with images the image processor's: ``pixel_values`` float32 ``[patches, dim]``,
            ``image_grid_thw`` int64 ``[n, 3]``.

        Raises:
            BadRecord: `record` cannot become a sample.
        """
        torch = import_torch()
        conversation = parse(record)
        _refuse_unsupported(conversation, self.files)
        sample = self._encode_text(conversation)
        pixels = self._encode_images(conversation)
        return {**{key: torch.from_numpy(value) for key, value in sample.items()}, **pixels}

    def _encode_images(self, conversation: Conversation) -> dict[str, torch.Tensor]:
        vision = self.files.vision
        images = [_open(medium) for medium in conversation.media if medium.kind == "image"]
        if not images or vision is None:
            return {}
        if self._image_processor is None:
            self._image_processor = load_image_processor(str(self.files.folder))
        try:
            features = self._image_processor(images=images, return_tensors="pt")
        except (OSError, SyntaxError) as cause:  # PIL, on decoding a broken file
            raise BadRecord("broken_media", f"an image cannot be decoded: {cause}") from cause
        return {name: features[name] for name in vision.model_inputs if name in features}

    def _encode_text(self, conversation: Conversation) -> dict[str, np.ndarray]:
        counter, text, files = self._counter, self._counter.text, self.files
        assert text is not None  # see __init__
        media = counter.count_media([conversation], [[_info(one) for one in conversation.media]])
        for number in sorted(media.errors):
            raise media.errors[number]
        expanded = counter.expand(conversation, 0, media)
        batch = text.encode([expanded.text], [files.adds_special_tokens(expanded.text)])
        runs = locate_runs(batch, [expanded], files.feature_ids)
        if runs.mismatched:
            raise media_token_in_text()
        repeats = np.ones(len(batch.ids), np.int64)
        repeats[runs.tokens] = runs.repeats
        input_ids = np.repeat(batch.ids, repeats)
        trained = np.repeat(trained_tokens(batch, text, [expanded], runs), repeats)
        positions = np.arange(len(input_ids))
        if files.vision is not None and files.vision.mrope:
            positions = mrope_positions(
                len(input_ids), runs.at.tolist(), media.grid, files.vision.merge_size
            )
        return {
            "input_ids": input_ids,
            "labels": np.where(trained, input_ids, IGNORED),
            "position_ids": positions,
        }


def _info(medium: Media) -> MediaInfo:
    width, height = _open(medium).size
    return MediaInfo(height, width)


def _open(medium: Media) -> Any:
    if hasattr(medium.ref, "size") and hasattr(medium.ref, "convert"):  # a PIL image
        return medium.ref
    if isinstance(medium.ref, str | bytes):
        return open_image(medium.ref)
    raise BadRecord("missing_media", f"an image is given as {type(medium.ref).__name__}: open it")


def _refuse_unsupported(conversation: Conversation, files: ProcessorFiles) -> None:
    for medium in conversation.media:
        if medium.kind != "image" or files.vision is None:
            raise BadRecord("unsupported_media", f"{files.name} cannot encode {medium.kind} yet")
