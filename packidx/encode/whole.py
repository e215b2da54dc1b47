"""A whole transformers processor, called as a trainer calls it.

Most are called by their chat template. Some cannot be (`GotOcr2Processor`): these are given the
rendered text and the media, as one list or as a list of the sample's. So are documents, which no
chat template is for.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from packidx.encode.blanks import BlankVideo
from packidx.encode.media import Opened, metadata_of, opened
from packidx.errors import OptionError, PackidxError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn

ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""A processor's names of media, by kind."""

_TENSORS = ("pt", None)
"""Some need tensors (`Ovis2Processor`), some cannot make one of all (`PerceptionLMProcessor`)."""


class NotBuilt(PackidxError):
    """Transformers builds no sample of a conversation, or not the one that was counted."""


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
        every_frame: as for `opened`; else it gets those frames alone that it would take.

    Returns:
        ``input_ids`` ``[1, T]`` or ``[T]``, and the model's other inputs, as tensors where that is
        possible.

    Raises:
        NotBuilt: it builds none, whichever way it is called; the first way's reason.
        BadRecord: as `opened`.
    """
    with quiet():
        take = partial(sampled_frames, processor, template)
        media = opened(conversation, take, processor, every_frame=every_frame)
        built = _built(processor, template, media)
    return _ended(built, end_of_text) if conversation.is_document else built


class _Enough(BaseException):
    """Frames were sampled, or would be processed without."""


def sampled_frames(processor: Any, template: ChatTemplate, info: MediaInfo) -> np.ndarray:
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
    blank = BlankVideo(info).tensor(every)
    asked = Conversation((Turn("user", (Media("video", blank), "What is it?")),))
    with contextlib.suppress(_Enough, Exception):
        _built(spied, template, (asked, {"video_metadata": [metadata_of(info, every)]}))
    return chosen[0] if chosen else every


def _built(processor: Any, template: ChatTemplate, media: Opened) -> Mapping[str, Any]:
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
    raise NotBuilt(" ".join(f"{type(first).__name__}: {first}".split())[:300]) from first


Call = Callable[[str | None], Mapping[str, Any]]
"""(``return_tensors``) → what the processor builds."""


def _ways(processor: Any, template: ChatTemplate, media: Opened) -> Iterator[Call]:
    conversation, options = media
    if not conversation.is_document:
        yield partial(_by_template, processor, template, conversation, options)
        if "video_metadata" in options:  # some write times of it, and do not ask for it
            returned = {**options, "return_metadata": True}
            yield partial(_by_template, processor, template, conversation, returned)
    flat: dict[str, list[Any]] = {}
    for medium in conversation.media:
        flat.setdefault(ARGUMENTS[medium.kind], []).append(medium.ref)
    nested = {name: [refs] for name, refs in flat.items()}
    # A flat list may be taken for one image of each of several samples (LLaVA-OneVision).
    forms = (nested, flat) if conversation.is_document else (flat, nested)
    for given in forms if flat else ({},):
        yield partial(_direct, processor, template, conversation, {**given, **options})


def _by_template(
    processor: Any,
    template: ChatTemplate,
    conversation: Conversation,
    options: Mapping[str, Any],
    tensors: str | None,
) -> Mapping[str, Any]:
    own: dict[str, Any] = {"processor_kwargs": _copied(options)} if options else {}
    if conversation.tools is not None:
        own["tools"] = conversation.tools
    messages = _with_media(template, conversation)
    built: Any = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors=tensors, **own
    )
    return {name: value for name, value in built.items() if name != "video_metadata"}


def _direct(
    processor: Any,
    template: ChatTemplate,
    conversation: Conversation,
    options: Mapping[str, Any],
    tensors: str | None,
) -> Mapping[str, Any]:
    """Call it with the text that its own template makes; ours, where it has none, and of a
    document."""
    if conversation.is_document or getattr(processor, "chat_template", None) is None:
        text = template.render(conversation).text
    else:
        messages = _with_media(template, conversation)
        text = processor.apply_chat_template(messages, tokenize=False, tools=conversation.tools)
    built: Mapping[str, Any] = processor(text=text, return_tensors=tensors, **_copied(options))
    return built


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


def _ended(sample: Mapping[str, Any], end_of_text: int | None) -> Mapping[str, Any]:
    """A document with the token that ends it behind the others, where it is not there yet."""
    if end_of_text is None or ids_of(sample)[-1:] == [end_of_text]:
        return sample
    last = {"input_ids": end_of_text, "attention_mask": 1}
    ended = dict(sample)
    for name, value in sample.items():
        if name in last or name.endswith("token_type_ids"):
            values = np.asarray(value).reshape(1, -1)
            ended[name] = np.append(values, [[last.get(name, 0)]], axis=1)
    return ended


def ids_of(sample: Mapping[str, Any]) -> list[int]:
    """The sample's token ids."""
    return [int(ident) for ident in np.asarray(sample["input_ids"]).reshape(-1)]


def bare_tokenizer(processor: Any) -> Tokenizer:
    """Return a copy of a processor's tokenizer, or of a tokenizer alone, without padding and
    truncation: transformers sets these on its own with every call.

    Raises:
        OptionError: it has none of `tokenizers`.
    """
    backend = getattr(getattr(processor, "tokenizer", processor), "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise OptionError(
            f"packidx needs a processor with a fast tokenizer, or the path of its folder, "
            f"not {type(processor).__name__}"
        )
    copied = Tokenizer.from_str(backend.to_str())
    copied.no_padding()
    copied.no_truncation()
    return copied


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
