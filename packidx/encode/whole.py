"""A whole transformers processor, called as a trainer calls it.

Most are called by their chat template. Some cannot be (`GotOcr2Processor`): these are given the
rendered text and the media, as one list or as a list of the sample's. So are documents, which no
chat template is for. Our label tokens are found in the ids that it returns.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from packidx.arrays import Bools, Int64s
from packidx.encode.imports import import_torch
from packidx.encode.media import BlankVideo, NotBuilt, Opened, metadata_of, open_media
from packidx.errors import OptionError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn

if TYPE_CHECKING:
    import torch

ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""A processor's names of media, by kind."""


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
        every_frame: as for `open_media`; else it gets those frames alone that it would take.

    Returns:
        ``input_ids`` ``[1, T]`` or ``[T]``, and the model's other inputs, as tensors where that is
        possible.

    Raises:
        NotBuilt: it builds none, whichever way it is called; the first way's reason.
        BadRecord: as `open_media`.
    """
    with quiet_transformers():
        take = partial(sampled_frames, processor, template)
        media = open_media(conversation, take, processor, every_frame=every_frame)
        built = _build_any_way(processor, template, media)
    return _add_ending(built, end_of_text) if conversation.is_document else built


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

    def note_frames(*given: Any, **options: Any) -> Any:
        chosen.append(np.asarray(sample_frames(*given, **options), np.int64).reshape(-1))
        raise _Enough

    def stop_processing(*_: Any, **__: Any) -> Any:
        raise _Enough

    part.sample_frames, part._prepare_input_videos = note_frames, stop_processing
    blank = BlankVideo(info).tensor(len(every))
    asked = Conversation((Turn("user", (Media("video", blank), "What is it?")),))
    with contextlib.suppress(_Enough, Exception):
        _build_any_way(spied, template, (asked, {"video_metadata": [metadata_of(info, every)]}))
    return chosen[0] if chosen else every


def _build_any_way(processor: Any, template: ChatTemplate, media: Opened) -> Mapping[str, Any]:
    first: Exception | None = None
    # Some need tensors (`Ovis2Processor`), some cannot make one of all (`PerceptionLMProcessor`); a
    # tokenizer alone needs no torch.
    orders = ("pt", None) if hasattr(processor, "tokenizer") else (None,)
    for call in _list_calls(processor, template, *media):
        for tensors in orders:
            try:
                built = call(return_tensors=tensors)
                if "input_ids" not in built:
                    raise ValueError(f"it gives {', '.join(built)}, and no input_ids")
                return {name: value for name, value in built.items() if name != "video_metadata"}
            except MemoryError:  # says nothing of the sample
                raise
            except Exception as error:  # a foreign class: whatever it raises is its verdict
                first = first or error
    raise NotBuilt(" ".join(f"{type(first).__name__}: {first}".split())[:300]) from first


def _list_calls(
    processor: Any, template: ChatTemplate, conversation: Conversation, options: Mapping[str, Any]
) -> Iterator[Callable[..., Mapping[str, Any]]]:
    """Yield the ways to call a processor with a conversation."""
    tools = {} if conversation.tools is None else {"tools": conversation.tools}

    def by_template(more: Mapping[str, Any], **given: Any) -> Any:
        own = {"processor_kwargs": _copy_options({**options, **more})} if options else {}
        messages = _with_media(template, conversation)
        return processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, **given, **tools, **own
        )

    def call_directly(media: Mapping[str, Any], **given: Any) -> Any:
        """Call it with the text that its own template makes; ours, where it has none, and of a
        document."""
        if conversation.is_document or getattr(processor, "chat_template", None) is None:
            text = template.render(conversation).text
        else:
            messages = _with_media(template, conversation)
            text = processor.apply_chat_template(messages, tokenize=False, **tools)
        return processor(text=text, **given, **_copy_options({**media, **options}))

    if not conversation.is_document:
        yield partial(by_template, {})
        if "video_metadata" in options:  # some write times of it, and do not ask for it
            yield partial(by_template, {"return_metadata": True})
    flat: dict[str, list[Any]] = {}
    for medium in conversation.media:
        flat.setdefault(ARGUMENTS[medium.kind], []).append(medium.ref)
    nested = {name: [refs] for name, refs in flat.items()}
    # A flat list may be taken for one image of each of several samples (LLaVA-OneVision).
    forms = (nested, flat) if conversation.is_document else (flat, nested)
    for media in forms if flat else ({},):
        yield partial(call_directly, media)


def _copy_options(value: Any) -> Any:
    """A copy of lists and objects of options: processors change what they are given."""
    if isinstance(value, Mapping):
        return {name: _copy_options(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copy_options(item) for item in value]
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


def _add_ending(sample: Mapping[str, Any], end_of_text: int | None) -> Mapping[str, Any]:
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


def whole_sample(
    processor: Any, files: ProcessorFiles, conversation: Conversation, *, every_frame: bool = False
) -> dict[str, Any]:
    """Return `build_sample` with ``input_ids``, int64 ``[T]`` (numpy)."""
    template, end = files.template_of(conversation), files.end_of_text
    built = build_sample(
        processor, template, conversation, end_of_text=end, every_frame=every_frame
    )
    return {**built, "input_ids": np.array(ids_of(built), np.int64)}


def with_labels(
    built: Mapping[str, Any],
    files: ProcessorFiles,
    own: tuple[Int64s, Bools],
    conversation: Conversation,
) -> dict[str, Any]:
    """Add ``labels``, int64 ``[T]``, to a whole sample.

    A run of label tokens, with tokens before it, must occur as often in the processor's ids as in
    ours: then the nth occurrence in one is the nth in the other.

    Args:
        own: token ids and label mask ``[n]`` of the same sample as our rules make it, media as
            runs of feature tokens or as placeholders.

    Raises:
        NotBuilt: our label tokens are not in the sample.
    """
    ids, (ours, trained) = built["input_ids"], own
    if np.array_equal(ours, ids):
        return {**built, "labels": np.where(trained, ids, IGNORED)}
    written = () if files.vision is None else files.vision.placeholders.values()
    features = [*files.feature_ids, *filter(None, map(files.tokenizer.token_to_id, written))]
    media = np.append(-1, np.flatnonzero(np.isin(ours, features)))
    found = np.zeros(len(ids), bool)
    for first, end in np.flatnonzero(np.diff(trained, prepend=False, append=False)).reshape(-1, 2):
        before = first - media[np.searchsorted(media, first) - 1] - 1
        for context in dict.fromkeys(min(each, before) for each in _CONTEXTS):
            wanted = ours[first - context : end]
            mine, theirs = _find_all(ours, wanted), _find_all(ids, wanted)
            if len(mine) == len(theirs):
                start = theirs[mine.index(first - context)] + context
                break
        else:
            start = len(ids) - (end - first)
            if end < len(ours) or not np.array_equal(ids[start:], ours[first:]):
                raise NotBuilt("its label tokens are not found in the sample that it builds")
        found[start : start + end - first] = True
        if conversation.is_document and first == before == 1 < start and ids[start - 1] == ours[0]:
            found[start - 1] = True  # another token predicts the first
    return {**built, "labels": np.where(found, ids, IGNORED)}


_CONTEXTS = (32, 8, 4, 2, 0)
"""Tokens before a run of label tokens that are looked for with it, as many as the processor
leaves as they are."""
IGNORED = -100
"""Label of a token that is not trained on."""


def _find_all(ids: Int64s, wanted: Int64s) -> list[int]:
    """Return all positions at which `ids` hold `wanted`."""
    starts = np.flatnonzero(ids[: max(0, len(ids) - len(wanted) + 1)] == wanted[0]).tolist()
    return [at for at in starts if np.array_equal(ids[at : at + len(wanted)], wanted)]


_OURS = frozenset(("input_ids", "labels", "position_ids", "attention_mask"))
"""Masks that packidx makes itself, or a sample without padding does not need."""
_OF_TILES = {"PerceptionLMProcessor": ("pixel_values", "pixel_values_videos")}
"""Outputs that models take as tiles of any medium: as [tiles, 1, …], their numbers may
differ from medium to medium, and from sample to sample."""


def media_of_whole(built: Mapping[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Return what the model takes of a whole sample besides ids, labels and positions.

    Args:
        built: what the processor built.
        name: the processor's class.

    Raises:
        NotBuilt: something of it is not one tensor.
    """
    library, tensors = import_torch(), {}
    for key, value in built.items():
        if key in _OURS or value is None:
            continue
        try:  # some are lists, of numbers or of a tensor for each medium
            if key in _OF_TILES.get(name, ()):
                value = library.cat(list(value))[:, None]
            is_list = isinstance(value, list) and value and isinstance(value[0], library.Tensor)
            tensor = library.stack(value) if is_list else library.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise NotBuilt(f"it gives {key} as no one tensor: {reason}") from error
        tensors[key] = tensor.reshape(-1) if key.endswith("token_type_ids") else tensor
    # Most processors mask no token.
    mask = library.as_tensor(built.get("attention_mask", [])).reshape(-1)
    return tensors if bool(mask.all()) else {"attention_mask": mask, **tensors}


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
def quiet_transformers() -> Iterator[None]:
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
