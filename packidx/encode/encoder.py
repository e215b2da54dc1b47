"""`ProcessorEncoder`: what the plan counted, built."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.arrays import Int64s
from packidx.encode.imports import import_torch, load_real
from packidx.encode.loading import files_of, load_processor
from packidx.encode.media import (
    NotBuilt,
    as_requested,
    decoded_image,
    info_of,
    media_tensors,
    refuse_unsupported,
)
from packidx.encode.patches import FORMS, Allocate, ImagePatches, patches_of
from packidx.encode.positions import model_positions, mrope_positions, video_positions
from packidx.encode.prober import ProbedMedia
from packidx.encode.whole import IGNORED, media_of_whole, whole_sample, with_labels
from packidx.errors import BadRecord, MismatchError, OptionError, PackidxError
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import MediaColumns
from packidx.processor.families.base import FamilyMedia
from packidx.processor.kinds import record_kind
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.read import parse_record

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("packidx.encode")


class ProcessorEncoder:
    """One record in, one sample's tensors out: the same tokens as the processor's own.

    Ids are those of `processor.apply_chat_template(messages, tokenize=True)`, and pixels are the
    processor's own to the last bit; labels follow `packidx.processor.labels`. Of families that cut
    images into patches (Qwen-VL, GLM-V) the patches are made here, in less time, as long as the
    images with which that is tried become what the processor makes of them; else by the processor.

    Args:
        processor: a transformers processor or tokenizer, or a folder or model name to load it from.
        policy: which tokens are trained on, also in words (``"last,no-eot"``); the plan was
            counted with one, and only that will do.
        settings: in place of the folder's own, as ``{"images.max_pixels": 602112}``
            (`packidx.processor.folder.Given`); an object is loaded with its own.
        trust_remote_code: run code that the folder holds, as the plan was counted with.
        tokens_per_second: of Qwen2.5-VL's videos, from the ``vision_config`` of the model.
        pixels: ``"float32"``, as the processor makes them; ``"bfloat16"``, rounded to that; or
            ``"uint8"``, the bytes of the resized images, of which `packidx.torch.normalise_pixels`
            makes those floats on the device: an eighth of the memory where a patch repeats its
            frame. Videos stay floats, and so do the images of families without patches.

    Raises:
        SourceError: the folder or model has nothing usable.
        OptionError: the processor lacks a fast tokenizer or a chat template, or has no setting of
            a name; or `pixels` is none of the three.
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
        pixels: str = "float32",
    ) -> None:
        if pixels not in FORMS:
            raise OptionError(f"pixels is {pixels!r}: say one of {', '.join(FORMS)}")
        self.pixels = pixels
        policy = LabelPolicy.parse(policy) if isinstance(policy, str) else policy
        self.tokens_per_second = tokens_per_second
        self._parts: dict[str, Any] = {}
        self._built_kinds: set[str] = set()
        self._real = None if isinstance(processor, str | os.PathLike) else processor
        if isinstance(processor, str | os.PathLike):
            self.files = load_processor(processor, policy, settings, trust_remote_code)
        elif settings:
            raise OptionError("settings are for a folder: load the processor object with them")
        else:
            self.files = files_of(processor, policy)
            self._parts["image"] = getattr(processor, "image_processor", None)
            self._parts["video"] = getattr(processor, "video_processor", None)
        if self.files.image_settings is not None and self.files.vision is None:
            raise OptionError(
                f"processor {self.files.name} cannot be used: {self.files.unknown}; "
                "pass your own encode(record) callable instead"
            )
        self._counter = ConversationCounter(self.files)
        if isinstance(self.files.vision, FamilyMedia):
            with contextlib.suppress(PackidxError):  # forked workers share what is imported here
                self._load_part("image")

    def __getstate__(self) -> dict[str, Any]:
        """Without what another process loads again: a pickle that names transformers' classes would
        import them before torchvision is dealt with."""
        state = {name: value for name, value in vars(self).items() if name != "_patches"}
        if self.files.folder is not None:
            state |= {"_parts": {}, "_real": None}
        return state

    @property
    def name(self) -> str:
        """The processor's folder or name."""
        return self.files.name

    @property
    def media_token_ids(self) -> dict[str, int]:
        """Token id of each kind of medium, ``{"image": 151655}``."""
        return self.files.media_token_ids

    @property
    def pad_token_id(self) -> int | None:
        """The token id that fills padding and holes; None if the tokenizer has no pad token."""
        return self.files.named_id("pad_token")

    def fingerprint(self) -> str:
        """Equal to ``load_processor(folder).fingerprint()`` of the processor's folder."""
        return self.files.fingerprint()

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what the fingerprint is of, by name: ``{"images.max_pixels": 602112}``."""
        return self.files.settings

    def count(self, record: Mapping[str, Any] | Conversation) -> int:
        """Return the length of the sample that `record` becomes.

        Pixels are decoded only where samples are built whole, by a processor of no family.

        Raises:
            BadRecord: `record` cannot become a sample.
        """
        conversation, infos = self._read_record(record)
        media = self._count_media(conversation, infos)
        if self._is_built(conversation):
            return len(self._build_whole(conversation, media)["input_ids"])
        counts = self._counter.count([conversation], [infos])
        for error in counts.errors.values():
            raise error
        return int(counts.length[0])

    @property
    def takes_conversations(self) -> bool:
        """True if the reader gives it records as it has read them: not to one that does more."""
        own = (type(self).__call__, type(self).count)
        return own == (ProcessorEncoder.__call__, ProcessorEncoder.count)

    def __call__(
        self,
        record: Mapping[str, Any] | Conversation,
        allocate: Allocate | None = None,
    ) -> dict[str, torch.Tensor]:
        """One sample's tensors.

        Args:
            record: a raw record of any dialect, media opened, or one that is read
                (`records.read.encoder_input`).
            allocate: gives the tensor that patches of images are written into.

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
        library, files, vision = import_torch(), self.files, self.files.vision
        conversation, infos = self._read_record(record)
        if conversation.input_ids is not None:  # its own ids, and no media
            ids = np.array(conversation.input_ids, np.int64)
            labels = np.array(ids if conversation.labels is None else conversation.labels, np.int64)
            labels[:1] = IGNORED
            return _to_tensors(input_ids=ids, labels=labels, position_ids=np.arange(len(ids)))
        media = self._count_media(conversation, infos)
        if self._is_built(conversation):
            return self._build_whole(conversation, media)
        ids, trained, starts, order = self._counter.tokens_of(conversation, media)
        positions = np.arange(len(ids))
        if vision is not None and vision.merge_size is not None:
            grids = media.grid[list(order)].tolist()
            positions = mrope_positions(len(ids), starts, grids, vision.merge_size)
        labels = np.where(trained, ids, IGNORED)
        sample = _to_tensors(input_ids=ids, labels=labels, position_ids=positions)
        if not isinstance(vision, FamilyMedia) or not conversation.media:
            return sample

        def make_patches(
            images: Sequence[Any], grids: np.ndarray
        ) -> dict[str, torch.Tensor] | None:
            make = allocate or (lambda shape, dtype: library.empty(shape, dtype=dtype))
            return None if self._patches is None else self._patches(images, grids, make)

        made = media_tensors(files, conversation, media, self._load_part, make_patches)
        for name, value in made.items():
            is_float = name.startswith("pixel_values") and value.is_floating_point()
            sample[name] = value.bfloat16() if is_float and self.pixels == "bfloat16" else value
        if vision.rope_model and "video_grid_thw" in sample:
            sample["position_ids"] = video_positions(sample, files, vision, self.tokens_per_second)
        return sample

    def _read_record(
        self, record: Mapping[str, Any] | Conversation
    ) -> tuple[Conversation, list[MediaInfo]]:
        """Return a record's conversation, its media as their options ask for, and their sizes."""
        conversation = record if isinstance(record, Conversation) else parse_record(record)
        refuse_unsupported(conversation, self.files)
        conversation = as_requested(conversation, self.files)
        return conversation, [info_of(medium) for medium in conversation.media]

    def _count_media(self, conversation: Conversation, infos: Sequence[MediaInfo]) -> MediaColumns:
        media = self._counter.count_media([conversation], [infos])
        for number in sorted(media.errors):
            raise media.errors[number]
        return media

    def build_kinds(self, kinds: Collection[str]) -> None:
        """Build samples of these kinds of records whole from now on, as they were counted."""
        self._built_kinds |= {*kinds}

    def _is_built(self, conversation: Conversation) -> bool:
        """Return True if a sample is built whole: by a processor of no family, or of a kind that
        the rules do not count."""
        if conversation.input_ids is not None:
            return False
        if isinstance(self.files.vision, ProbedMedia) or self.files.builds_all:
            return True
        return bool(self._built_kinds) and record_kind(conversation) in self._built_kinds

    def _build_whole(
        self, conversation: Conversation, media: MediaColumns
    ) -> dict[str, torch.Tensor]:
        files = self.files
        if self._real is None:
            self._real = load_real(
                files.folder, files.auto_class, files.trusts_code, files.keywords
            )
        try:
            own = self._counter.tokens_of(conversation, media)[:2]
            built = whole_sample(self._real, files, conversation)
            built = with_labels(built, files, own, conversation)
            made = media_of_whole(built, type(self._real).__name__)
        except NotBuilt as error:
            raise MismatchError(
                f"processor {self.name} does not build a sample: {error}"
            ) from error
        sample = _to_tensors(input_ids=built["input_ids"], labels=built["labels"]) | made
        return {**sample, "position_ids": self._positions_of_whole(built["input_ids"], sample)}

    def _positions_of_whole(self, ids: Int64s, sample: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the positions of a whole sample, int64 ``[T]`` or ``[3, T]``."""
        files, vision = self.files, self.files.vision
        one_row: torch.Tensor = import_torch().arange(len(ids))
        if vision is None or (isinstance(vision, FamilyMedia) and vision.merge_size is None):
            return one_row
        if isinstance(vision, FamilyMedia) and "video_grid_thw" not in sample:
            stated = sample.get("image_grid_thw")
            grids = [] if stated is None else stated.tolist()
            edges = np.flatnonzero(np.diff(np.isin(ids, files.feature_ids), prepend=0, append=0))
            starts = [[start] for start in edges[::2].tolist()]
            if len(starts) == len(grids):
                assert vision.merge_size is not None
                rows = mrope_positions(len(ids), starts, grids, vision.merge_size)
                return one_row.new_tensor(rows)
        positions = model_positions(self._real, files.folder or files.name, sample)
        return one_row if positions is None else positions

    def resized(self, image: Any) -> Any:
        """Return `ImagePatches.resized` of a PIL image.

        Raises:
            BadRecord: it cannot be decoded or counted, or the processor does not take it.
            OptionError: the processor makes other pixels of the resized image.
        """
        processor = SimpleNamespace(image_processor=self._load_part("image"))
        decoded = decoded_image(Media("image", image), processor)
        try:
            return self.own_patches().resized(decoded)
        except NotBuilt as error:
            raise BadRecord("unsupported_media", f"{self.name} {error}") from None

    def own_patches(self) -> ImagePatches:
        """Return what makes the patches of images in the processor's place.

        Raises:
            OptionError: the processor makes the pixels itself.
        """
        if self._patches is None:
            raise OptionError(
                f"the images of processor {self.name} cannot be resized ahead of training: it does "
                "not leave an image of its own size alone, as Qwen-VL's and GLM-V's do"
            )
        return self._patches

    @cached_property
    def _patches(self) -> ImagePatches | None:
        """Makes the patches of images in the processor's place; None if that is not proven."""
        vision = self.files.vision
        if not isinstance(vision, FamilyMedia):
            return None
        return patches_of(self._load_part("image"), vision, self.pixels)

    def _load_part(self, kind: str) -> Any:
        """The image or video processor, loaded when it is first needed; it alone: the whole
        `AutoProcessor` cannot do without torchvision."""
        if self._parts.get(kind) is None:
            files, own = self.files, self.files.keywords.get(f"{kind}s")
            keywords = {f"{kind}s": own} if own else None
            name = f"Auto{kind.title()}Processor"
            self._parts[kind] = load_real(files.folder, name, False, keywords)
        return self._parts[kind]

    @property
    def pixel_table(self) -> np.ndarray | None:
        """float32 ``[frames, 256, 3]``: what the processor makes of a value of a channel in each of
        the frames that a patch repeats; None before the first image, or where `pixels` are floats.
        """
        made = vars(self).get("_patches")
        return made.table if self.pixels == "uint8" and made is not None else None


def _to_tensors(**arrays: Int64s) -> dict[str, torch.Tensor]:
    library = import_torch()
    return {name: library.from_numpy(array) for name, array in arrays.items()}
