"""A whole transformers processor, called as a trainer calls it.

Most are called by their chat template. Some cannot be (`GotOcr2Processor`): these are given the
rendered text and the media, as one list or as a list of the sample's. So are documents, which no
chat template is for.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.given import Given, given
from packidx.encode.imports import import_torch
from packidx.errors import PackidxError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media

if TYPE_CHECKING:
    import torch

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
    """What `processor` makes of one conversation, whose media are opened.

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
    """What a model takes of a sample besides what is ours.

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
    """What the processor's own template makes of a conversation; ours, where it has none, and of a
    document."""
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
