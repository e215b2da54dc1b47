"""`ProcessorEncoder`: what the plan counted, built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.imports import import_torch, transformers_class
from packidx.encode.loading import files_of, load_part, load_processor
from packidx.encode.media import (
    check_patches,
    decoded_image,
    encode_videos,
    info_of,
    refuse_unsupported,
    told_as_not_built,
    video_of,
)
from packidx.encode.positions import model_positions, mrope_positions, video_positions
from packidx.encode.probe import ProbedVision
from packidx.encode.whole import NotBuilt, build_sample, ids_of, tensors_of
from packidx.errors import MismatchError, OptionError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import MediaColumns
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.sequence import trained_tokens
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.dialects.parse import parse
from packidx.records.media.video import Video

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
        policy: which tokens are trained on, also in words (``"last,no-thinking"``); the plan was
            counted with one, and only that will do.
        settings: in place of the folder's own, as ``{"images.max_pixels": 602112}``
            (`packidx.processor.folder.Given`); an object is loaded with its own.
        trust_remote_code: run code that the folder holds, as the plan was counted with.
        tokens_per_second: of Qwen2.5-VL's videos, from the ``vision_config`` of the model.

    Raises:
        SourceError: the folder or model has nothing usable.
        OptionError: the processor lacks a fast tokenizer or a chat template, or has no setting of
            a name.
        MissingExtraError: a package is missing (on first use: torch for tensors, transformers for
            the pixels of a processor given by name).
    """

    def __init__(
        self,
        processor: Any,
        policy: LabelPolicy | str = DEFAULT_POLICY,
        *,
        settings: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        tokens_per_second: float = 2.0,
    ) -> None:
        policy = LabelPolicy.parse(policy) if isinstance(policy, str) else policy
        self.tokens_per_second = tokens_per_second
        self._parts: dict[str, Any] = {}
        if isinstance(processor, str | os.PathLike):
            self.files = load_processor(processor, policy, settings, trust_remote_code)
        elif settings:
            raise OptionError("settings are for a folder: load the processor object with them")
        else:
            self.files = files_of(processor, policy)
            self._parts["image"] = getattr(processor, "image_processor", None)
            self._parts["video"] = getattr(processor, "video_processor", None)
        if self.files.tokenizer is None or self.files.template is None:
            lacking = "tokenizer.json" if self.files.tokenizer is None else "chat template"
            raise OptionError(f"processor {self.files.name} has no {lacking}: samples need one")
        if self.files.image_settings is not None and self.files.vision is None:
            raise OptionError(
                f"processor {self.files.name} cannot be used: {self.files.unknown}; "
                "pass your own encode(record) callable instead"
            )
        self._counter = ConversationCounter(self.files)

    def __getstate__(self) -> dict[str, Any]:
        """Without what another process loads again: a pickle that names transformers' classes would
        import them before torchvision is dealt with."""
        state = self.__dict__.copy()
        if self.files.folder is not None:
            state["_parts"] = {}
        return state

    @property
    def media_token_ids(self) -> dict[str, int]:
        """Token id of each kind of medium, ``{"image": 151655}``: finds a cut sample's media."""
        return self.files.media_token_ids

    @property
    def pad_token_id(self) -> int | None:
        """What fills padding and holes; None where the tokenizer has no pad token."""
        if self.files.pad_token is None or self.files.tokenizer is None:
            return None
        ident: int | None = self.files.tokenizer.token_to_id(self.files.pad_token)
        return ident

    def fingerprint(self) -> str:
        """Equal to ``load_processor(folder).fingerprint()`` of the processor's folder."""
        return self.files.fingerprint()

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what the fingerprint is of, by name: ``{"images.max_pixels": 602112}``."""
        return self.files.settings

    def count(self, record: Mapping[str, Any]) -> int:
        """The length of the sample that `record` becomes, without decoding pixels.

        Raises:
            BadRecord: `record` cannot become a sample.
        """
        conversation = parse(record)
        refuse_unsupported(conversation, self.files)
        infos = [info_of(medium) for medium in conversation.media]
        counts = self._counter.count([conversation], [infos])
        for error in counts.errors.values():
            raise error
        return int(counts.length[0])

    def __call__(self, record: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """One sample's tensors.

        Args:
            record: a raw record of any dialect, images opened (`records.media.opener.open_media`).

        Returns:
            ``input_ids`` int64 ``[T]``; ``labels`` int64 ``[T]``, not shifted, -100 where not
            trained on and always at 0; ``position_ids`` int64 ``[3, T]`` (mRoPE) or ``[T]``; and
            with images the image processor's: ``pixel_values`` float32 ``[patches, dim]``,
            ``image_grid_thw`` int64 ``[n, 3]``. Of a processor that is of no family of ours: all
            that it gives.

        Raises:
            BadRecord: `record` cannot become a sample.
            MismatchError: transformers makes other patches of its media, or other tokens, than were
                counted.
        """
        torch = import_torch()
        conversation = parse(record)
        refuse_unsupported(conversation, self.files)
        infos = [info_of(medium) for medium in conversation.media]
        media = self._counter.count_media([conversation], [infos])
        for number in sorted(media.errors):
            raise media.errors[number]
        if not self.files.is_known:
            return encode_whole(self.files, conversation, self._encode_text(conversation, media))
        pixels = self._encode_media(conversation.media, infos)
        check_patches(media, pixels, self.files)
        arrays = self._encode_text(conversation, media)
        sample = {**{key: torch.from_numpy(value) for key, value in arrays.items()}, **pixels}
        vision = self.files.vision
        if vision is not None and vision.rope_model is not None and "video_grid_thw" in sample:
            sample["position_ids"] = video_positions(
                sample, self.files, self.media_token_ids, self.tokens_per_second
            )
        return sample

    def _encode_media(
        self, media: Sequence[Media], infos: Sequence[MediaInfo]
    ) -> dict[str, torch.Tensor]:
        """Return what the model takes besides tokens."""
        vision = self.files.vision
        if vision is None or not media:
            return {}
        images = [medium for medium in media if medium.kind == "image"]
        given = zip(media, infos, strict=True)
        videos = [(video_of(medium), info) for medium, info in given if medium.kind == "video"]
        if not vision.pixels_in_order:
            return self._encode_images(images) | self._encode_videos(videos)
        left = iter(videos)
        tensors = []
        for medium in media:
            if medium.kind == "image":
                tensors.append(self._encode_images([medium])["pixel_values"])
            else:
                tensors.append(self._encode_videos([next(left)])["pixel_values"])
        return {"pixel_values": import_torch().cat(tensors)}

    def _encode_images(self, images: Sequence[Media]) -> dict[str, torch.Tensor]:
        vision = self.files.vision
        if not images or vision is None:
            return {}
        opened = [decoded_image(medium) for medium in images]
        processor = self._part("image")
        with told_as_not_built(self.files.name, "images", [image.size for image in opened]):
            # One list of one sample's images, as the whole processor passes them on.
            features = processor(images=[opened], return_tensors="pt", **vision.image_options)
        return {name: features[name] for name in vision.model_inputs if name in features}

    def _encode_videos(self, videos: Sequence[tuple[Video, MediaInfo]]) -> dict[str, torch.Tensor]:
        vision = self.files.vision
        if not videos or vision is None:
            return {}
        sizes = [(info.width, info.height) for _, info in videos]
        with told_as_not_built(self.files.name, "videos", sizes):
            return encode_videos(videos, vision, self._part("video"))

    def _part(self, kind: str) -> Any:
        """The image or video processor, loaded when it is first needed."""
        if self._parts.get(kind) is None:
            self._parts[kind] = load_part(self.files, kind)
        return self._parts[kind]

    def _encode_text(
        self, conversation: Conversation, media: MediaColumns
    ) -> dict[str, np.ndarray]:
        if conversation.input_ids is not None:
            return _given(conversation)
        text, files = self._counter.text, self.files
        assert text is not None  # see __init__
        expanded, batch, runs = self._counter.tokenize(conversation, media)
        repeats = runs.repeats_of(batch)
        input_ids = np.repeat(batch.ids, repeats)
        trained = np.repeat(trained_tokens(batch, text, [expanded], runs), repeats)
        positions = np.arange(len(input_ids))
        merge_size = None if files.vision is None else files.vision.mrope_merge_size
        if merge_size is not None:
            ends = np.cumsum([len(medium) for medium in expanded.runs])[:-1]
            starts = [own.tolist() for own in np.split(runs.at, ends)] if expanded.runs else []
            grids = media.grid[list(expanded.order or range(len(starts)))].tolist()
            positions = mrope_positions(len(input_ids), starts, grids, merge_size)
        return {
            "input_ids": input_ids,
            "labels": np.where(trained, input_ids, IGNORED),
            "position_ids": positions,
        }


def _given(conversation: Conversation) -> dict[str, np.ndarray]:
    """A record's own ids, and its labels if it has any."""
    input_ids = np.array(conversation.input_ids, np.int64)
    labels = input_ids if conversation.labels is None else conversation.labels
    labels = np.array(labels, np.int64)
    labels[:1] = IGNORED
    return {"input_ids": input_ids, "labels": labels, "position_ids": np.arange(len(input_ids))}


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
    positions = model_positions(processor, files.folder or files.name, sample)
    return sample if positions is None else {**sample, "position_ids": positions}


def _tensors(
    processor: Any, files: ProcessorFiles, conversation: Conversation, counted: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Return what the model takes besides token ids, labels and positions."""
    release = transformers_class("__version__")
    name = f"{type(processor).__name__} of transformers {release} ({files.name})"
    try:
        built = build_sample(
            processor,
            files.template_of(conversation),
            conversation,
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
