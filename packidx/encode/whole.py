"""A whole transformers processor, called as a trainer calls it.

Most are called by their chat template. Some cannot be (`GotOcr2Processor`): these are given the
rendered text and the media, as one list or as a list of the sample's. So are documents, which no
chat template is for.

Of opened media images stay what they are, or become RGB. Sound becomes one channel at the
processor's rate. A video becomes frames and what is known of it (`VideoMetadata`), from which
processors sample frames and write times; its own sound is left out, whatever the processor could do
with it.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.blanks import MadeUpVideo
from packidx.encode.imports import import_torch
from packidx.encode.media import decoded_image, frames_of, info_of, metadata_of, video_of
from packidx.errors import PackidxError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn
from packidx.records.media.audio import Audio
from packidx.records.media.video import Video

if TYPE_CHECKING:
    import torch

_NO_RATE = 16000
"""What transformers takes where a processor states no sampling rate."""


@dataclass(frozen=True, slots=True)
class Given:
    """A conversation whose ``Media.ref`` are what a processor takes, and what it must know more."""

    conversation: Conversation
    options: dict[str, Any]


Build = Callable[[Any, Given], Any]
"""(processor, what it is given) → a sample; whatever it raises."""


def given(
    processor: Any, conversation: Conversation, build: Build, every_frame: bool = False
) -> Given:
    """A conversation's media, opened, as `processor` takes them.

    Args:
        build: how a sample is built of what this returns, to see which frames are taken.
        every_frame: whether it gets all frames of a video and samples them by itself, as it does
            with files; else it gets those alone that it would take.

    Raises:
        BadRecord: a medium cannot be decoded, or is not what the record says.
        MissingExtraError: a package is missing.
    """
    if not conversation.media:
        return Given(conversation, {})
    infos = {
        number: info_of(medium)
        for number, medium in enumerate(conversation.media)
        if medium.kind == "video"
    }
    stated = any(info.extracted or info.frame_indices is not None for info in infos.values())
    samples = every_frame and not stated
    options: dict[str, Any] = {}
    refs, metadata = [], []
    for number, medium in enumerate(conversation.media):
        if medium.kind == "video":
            info = infos[number]
            frames = np.arange(info.num_frames) if samples else _taken(processor, medium, build)
            refs.append(_pixels(video_of(medium), info, frames))
            metadata.append(metadata_of(info, frames))
        else:
            refs.append((_heard if medium.kind == "audio" else _seen)(medium, processor))
    if metadata:
        options = {"video_metadata": metadata}
        options |= {} if samples else {"do_sample_frames": False}
    return Given(_with_refs(conversation, refs), options)


def sampling_rate_of(processor: Any) -> int:
    """Samples per second that it takes of sound."""
    part = getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))
    return int(getattr(part, "sampling_rate", None) or _NO_RATE)


def _seen(medium: Media, processor: Any) -> Any:
    """An image; in RGB, as transformers' `load_image` opens files, where the image processor does
    not see to that."""
    image = decoded_image(medium)
    part = getattr(processor, "image_processor", None)
    if getattr(part, "do_convert_rgb", None) or getattr(image, "mode", "RGB") == "RGB":
        return image
    return image.convert("RGB")


def _heard(medium: Media, processor: Any) -> Any:
    sound = medium.ref if isinstance(medium.ref, Audio) else Audio(medium.ref)
    return sound.waveform(sampling_rate_of(processor))


# -- videos ----------------------------------------------------------------------------------------


def _pixels(video: Video, info: MediaInfo, frames: np.ndarray) -> Any:
    """uint8 ``[n, 3, height, width]``."""
    if isinstance(video, MadeUpVideo):
        return video.tensor(frames)
    return frames_of(video, info, frames)


def _taken(processor: Any, medium: Media, build: Build) -> np.ndarray:
    """Numbers of the frames that are used of a video."""
    info = info_of(medium)
    if info.frame_indices is not None:
        return np.asarray(info.frame_indices)
    if info.extracted:
        return np.arange(info.num_frames)
    return sampled_frames(processor, info, build)


class _Enough(BaseException):
    """Frames were sampled, or would be processed without."""


def sampled_frames(processor: Any, info: MediaInfo, build: Build) -> np.ndarray:
    """``[f]`` numbers of the frames that `processor` takes of a file of this shape.

    It is asked: it gets a blank video, and is stopped when it has chosen.
    """
    every = np.arange(info.num_frames)
    part: Any = getattr(processor, "video_processor", None)
    if not hasattr(part, "sample_frames"):
        return every
    spied, chosen = copy.copy(processor), list[np.ndarray]()
    spied.video_processor = part = copy.copy(part)
    sample_frames = part.sample_frames

    def noted(*given: Any, **options: Any) -> Any:
        chosen.append(np.asarray(sample_frames(*given, **options), np.int64).reshape(-1))
        raise _Enough

    def processed(*_: Any, **__: Any) -> Any:
        raise _Enough

    part.sample_frames, part._prepare_input_videos = noted, processed
    blank = MadeUpVideo(info, is_abstract=True).tensor(every)
    asked = Conversation((Turn("user", (Media("video", blank), "What is it?")),))
    with contextlib.suppress(_Enough, Exception):
        build(spied, Given(asked, {"video_metadata": [metadata_of(info, every)]}))
    return chosen[0] if chosen else every


def _with_refs(conversation: Conversation, refs: Sequence[Any]) -> Conversation:
    left = iter(refs)
    turns = tuple(
        replace(
            turn,
            parts=tuple(
                replace(part, ref=next(left)) if isinstance(part, Media) else part
                for part in turn.parts
            ),
        )
        for turn in conversation.turns
    )
    return replace(conversation, turns=turns)


ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""A processor's names of media, by kind."""

_TENSORS = ("pt", None)
"""Some need tensors (`Ovis2Processor`), some cannot make one of all (`PerceptionLMProcessor`)."""


_OURS = frozenset(("input_ids", "labels", "position_ids", "attention_mask"))
"""What the sample has from us, or does not need: nothing is masked in one that is not padded."""
_OF_TILES = {"PerceptionLMProcessor": ("pixel_values", "pixel_values_videos")}
"""What models look at as tiles, whichever medium they are of: as [tiles, 1, …], their numbers may
differ from medium to medium, and from sample to sample."""


class NotBuilt(PackidxError):
    """A processor builds no sample of a conversation."""


def build_sample(
    processor: Any,
    template: ChatTemplate,
    conversation: Conversation,
    *,
    end_of_text: int | None = None,
    every_frame: bool = False,
) -> Mapping[str, Any]:
    """Return what `processor` makes of one conversation, whose media are opened.

    Args:
        template: renders as the processor's own does.
        end_of_text: the token that a document ends with; no processor sees to that.
        conversation: each ``Media.ref`` is a PIL image, a `Video` or an `Audio`.
        every_frame: as for `given`.

    Returns:
        ``input_ids`` ``[1, T]`` or ``[T]``, and the model's other inputs, as tensors where that is
        possible.

    Raises:
        NotBuilt: it builds none, whichever way it is called; the first way's reason.
        BadRecord: as `given`.
    """

    def build(own: Any, media: Given) -> Mapping[str, Any]:
        return _built(own, template, media)

    with quiet():
        built = build(processor, given(processor, conversation, build, every_frame))
    return _ended(built, end_of_text) if conversation.is_document else built


def _built(processor: Any, template: ChatTemplate, media: Given) -> Mapping[str, Any]:
    first: Exception | None = None
    for call in _ways(processor, template, media):
        for tensors in _TENSORS:
            try:
                built = call(tensors)
                if "input_ids" not in built:
                    raise ValueError(f"it gives {', '.join(built)}, and no input_ids")
                return built
            except MemoryError:  # says nothing of the sample
                raise
            except Exception as error:  # a foreign class: whatever it raises is its verdict
                first = first or error
    raise NotBuilt(_words(first) if first else "nothing was tried") from first


def _ended(sample: Mapping[str, Any], end_of_text: int | None) -> Mapping[str, Any]:
    """A document with the token that ends it behind the others, where it is not there yet."""
    ids = ids_of(sample)
    if end_of_text is None or (ids and ids[-1] == end_of_text):
        return sample
    ended = dict(sample)
    for name, value in sample.items():
        if name == "input_ids":
            ended[name] = _appended(value, end_of_text)
        elif name == "attention_mask":
            ended[name] = _appended(value, 1)
        elif name.endswith("token_type_ids"):
            ended[name] = _appended(value, 0)
    return ended


def _appended(values: Any, last: int) -> np.ndarray:
    """``[1, T + 1]``"""
    return np.append(np.asarray(values).reshape(1, -1), [[last]], axis=1)


def ids_of(sample: Mapping[str, Any]) -> list[int]:
    """The sample's token ids."""
    return [int(ident) for ident in np.asarray(sample["input_ids"]).reshape(-1)]


def tensors_of(built: Mapping[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Return what a model takes of a sample besides what is ours.

    Args:
        name: the processor's class.

    Raises:
        NotBuilt: something of it is no one tensor.
    """
    given = {key: own for key, own in built.items() if key not in _OURS and own is not None}
    return {key: _tensor(key, own) for key, own in _by_tiles(given, name).items()}


def _by_tiles(built: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    names = [key for key in _OF_TILES.get(name, ()) if key in built]
    return {**built, **{key: import_torch().cat(list(built[key]))[:, None] for key in names}}


def _tensor(name: str, value: Any) -> torch.Tensor:
    """One of the processor's outputs; some are lists, of numbers or of a tensor for each medium."""
    library = import_torch()
    try:
        if isinstance(value, list) and value and isinstance(value[0], library.Tensor):
            tensor: torch.Tensor = library.stack(value)
        else:
            tensor = library.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise NotBuilt(f"it gives {name} as no one tensor: {reason}") from error
    return tensor


Call = Callable[[str | None], Mapping[str, Any]]
"""(``return_tensors``) → what the processor builds."""


def _ways(processor: Any, template: ChatTemplate, given: Given) -> Iterator[Call]:
    conversation = given.conversation
    if not conversation.is_document:
        yield from _by_templates(processor, template, given)
    text = partial(_written, processor, template, conversation)
    media: dict[str, list[Any]] = {}
    for medium in conversation.media:
        media.setdefault(ARGUMENTS[medium.kind], []).append(medium.ref)
    for form in (media, {name: [refs] for name, refs in media.items()}) if media else (media,):
        yield _direct(processor, text, {**form, **given.options})


def _written(processor: Any, template: ChatTemplate, conversation: Conversation) -> str:
    """Return what the processor's own template makes of a conversation; ours, where it has none,
    and of a document."""
    if conversation.is_document or getattr(processor, "chat_template", None) is None:
        return template.render(conversation).text
    messages = _with_media(template, conversation)
    text: str = processor.apply_chat_template(messages, tokenize=False, tools=conversation.tools)
    return text


def _by_templates(processor: Any, template: ChatTemplate, given: Given) -> Iterator[Call]:
    conversation = given.conversation
    messages = _with_media(template, conversation)
    tools = {} if conversation.tools is None else {"tools": conversation.tools}
    yield _by_template(processor, messages, tools, given.options)
    if "video_metadata" in given.options:  # some write times of it, and do not ask for it
        returned = {**given.options, "return_metadata": True}
        yield _by_template(processor, messages, tools, returned)


def _by_template(
    processor: Any, messages: list[Any], tools: Mapping[str, Any], options: Mapping[str, Any]
) -> Call:
    def call(tensors: str | None) -> Mapping[str, Any]:
        own = {"processor_kwargs": _copied(options)} if options else {}
        built: Any = processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors=tensors, **tools, **own
        )
        return {name: value for name, value in built.items() if name != "video_metadata"}

    return call


def _direct(processor: Any, text: Callable[[], str], options: Mapping[str, Any]) -> Call:
    return lambda tensors: processor(text=text(), return_tensors=tensors, **_copied(options))


def _copied(value: Any) -> Any:
    """A copy of lists and objects of options: processors change what they are given."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return copy.copy(value) if type(value).__name__ == "VideoMetadata" else value


def _with_media(template: ChatTemplate, conversation: Conversation) -> list[dict[str, Any]]:
    """The messages that the template gets, with the media themselves."""
    messages = template.messages(conversation)
    for turn, message in zip(conversation.turns, messages, strict=True):
        if any(isinstance(part, Media) for part in turn.parts):
            for part, given in zip(turn.parts, message["content"], strict=True):
                if isinstance(part, Media):
                    given[part.kind] = part.ref
    return messages


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own warnings: what they are about is compared."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
