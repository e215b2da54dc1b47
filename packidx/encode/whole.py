"""A whole transformers processor, called as a trainer calls it.

Most are called by their chat template. Some cannot be (`GotOcr2Processor`): these are given the
rendered text and the media, as one list or as a list of the sample's.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from packidx.errors import PackidxError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media

_ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""A processor's names of media, by kind."""

_TENSORS = ("pt", None)
"""Some need tensors (`Ovis2Processor`), some cannot make one of all (`PerceptionLMProcessor`)."""


class NotBuilt(PackidxError):
    """A processor builds no sample of a conversation."""


def build_sample(
    processor: Any, template: ChatTemplate, conversation: Conversation
) -> Mapping[str, Any]:
    """What `processor` makes of one conversation, whose media are opened.

    Args:
        template: renders as the processor's own does.
        conversation: each ``Media.ref`` is what the processor takes: a PIL image, frames, a wave.

    Returns:
        ``input_ids`` ``[1, T]`` or ``[T]``, and the model's other inputs, as tensors where that is
        possible.

    Raises:
        NotBuilt: it builds none, whichever way it is called; the first way's reason.
        BadRecord: as `ChatTemplate.render`.
    """
    first: Exception | None = None
    with quiet():
        for call in _ways(processor, template, conversation):
            for tensors in _TENSORS:
                try:
                    return call(tensors)
                except Exception as error:  # a foreign class: whatever it raises is its verdict
                    first = first or error
    raise NotBuilt(_words(first) if first else "nothing was tried") from first


def ids_of(sample: Mapping[str, Any]) -> list[int]:
    """The sample's token ids."""
    return [int(ident) for ident in np.asarray(sample["input_ids"]).reshape(-1)]


Call = Callable[[str | None], Mapping[str, Any]]
"""(``return_tensors``) → what the processor builds."""


def _ways(processor: Any, template: ChatTemplate, conversation: Conversation) -> Iterator[Call]:
    messages = _with_media(template, conversation)
    tools = {} if conversation.tools is None else {"tools": conversation.tools}

    def by_template(tensors: str | None) -> Mapping[str, Any]:
        built: Mapping[str, Any] = processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors=tensors, **tools
        )
        return built

    yield by_template
    text = template.render(conversation).text
    media: dict[str, list[Any]] = {}
    for medium in conversation.media:
        media.setdefault(_ARGUMENTS[medium.kind], []).append(medium.ref)
    for given in (media, {name: [refs] for name, refs in media.items()}) if media else (media,):
        yield _direct(processor, text, given)


def _direct(processor: Any, text: str, media: Mapping[str, list[Any]]) -> Call:
    return lambda tensors: processor(text=text, return_tensors=tensors, **media)


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
