"""Samples of processors that no family of ours knows: the real processor's own tensors.

It builds the whole sample, as a trainer without packs would have it. Its token ids must be ours,
which were counted; labels are ours, and positions are the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.imports import import_torch, transformers_class
from packidx.encode.media import decoded_image
from packidx.encode.positions import model_positions
from packidx.encode.probe import ProbedVision
from packidx.encode.whole import NotBuilt, build_sample, ids_of, tensors_of
from packidx.errors import MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.records.conversation import Conversation, Media

if TYPE_CHECKING:
    import torch

_ADVICE = "leave the record out, or pass your own encode(record) callable"


def encode_whole(
    files: ProcessorFiles, conversation: Conversation, arrays: Mapping[str, np.ndarray]
) -> dict[str, torch.Tensor]:
    """One sample's tensors.

    Tensors of media keep the processor's shapes. So a dimension of 1 in front is kept, too, where
    models count samples in it (Idefics, SmolVLM).

    Args:
        files: the processor as it was counted; its vision is `ProbedVision`.
        conversation: its media are opened, or bytes or paths.
        arrays: ours: ``input_ids`` int64 ``[T]``, ``labels``, and plain ``position_ids``, which
            the model's own replace where they have three rows.

    Raises:
        BadRecord: a medium cannot be decoded.
        MismatchError: the processor builds no sample, or one of other token ids.
        OptionError: how the model makes positions is unknown.
        MissingExtraError, SourceError: the processor cannot be loaded.
    """
    torch = import_torch()
    sample = {key: torch.from_numpy(value) for key, value in arrays.items()}
    if conversation.input_ids is not None:
        return sample  # its own ids, and no media
    assert isinstance(files.vision, ProbedVision)  # see `ProcessorEncoder`
    processor = files.vision.processor
    sample |= _tensors(processor, files, conversation, arrays["input_ids"].tolist())
    positions = model_positions(processor, files.folder, sample)
    return sample if positions is None else {**sample, "position_ids": positions}


def _tensors(
    processor: Any, files: ProcessorFiles, conversation: Conversation, counted: Sequence[int]
) -> dict[str, torch.Tensor]:
    """What the model takes besides token ids, labels and positions."""
    release = transformers_class("__version__")
    name = f"{type(processor).__name__} of transformers {release} ({files.name})"
    try:
        built = build_sample(
            processor,
            files.template_of(conversation),
            _opened(conversation),
            end_of_text=files.end_of_text,
        )
        tensors = tensors_of(built, type(processor).__name__)
    except NotBuilt as error:
        text = f"{name} does not build this sample, which was counted ({error})"
        raise MismatchError(f"{text}: {_ADVICE}") from error
    _check_ids(ids_of(built), counted, name)
    for key in [key for key in tensors if key.endswith("token_type_ids")]:
        tensors[key] = tensors[key].reshape(-1)
    return _masked(built.get("attention_mask")) | tensors


def _opened(conversation: Conversation) -> Conversation:
    """The conversation with its media decoded.

    Raises:
        BadRecord: one cannot be.
    """
    if not conversation.media:
        return conversation
    turns = []
    for turn in conversation.turns:
        parts = [_given(part) if isinstance(part, Media) else part for part in turn.parts]
        turns.append(replace(turn, parts=tuple(parts)))
    return replace(conversation, turns=tuple(turns))


def _given(medium: Media) -> Media:
    """The medium decoded, if it is an image; others are where they are given (`given.given`)."""
    return replace(medium, ref=decoded_image(medium)) if medium.kind == "image" else medium


def _check_ids(real: Sequence[int], counted: Sequence[int], name: str) -> None:
    """
    Raises:
        MismatchError: the processor's token ids are not those that were counted.
    """
    if real == counted:
        return
    pairs = zip(real, counted, strict=False)
    shared = min(len(real), len(counted))
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), shared)
    raise MismatchError(
        f"{name} makes {len(real)} tokens of this sample and {len(counted)} were counted, of which"
        f" number {first} (from 0) is the first that differs: {_ADVICE}"
    )


def _masked(mask: Any) -> dict[str, torch.Tensor]:
    """The attention mask, where the processor hides some token; most hide none."""
    given = import_torch().as_tensor([] if mask is None else mask).reshape(-1)
    return {} if bool(given.all()) else {"attention_mask": given}
