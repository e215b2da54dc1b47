"""The one form of a training example: turns of text and media, whatever dialect it came in.

Nothing changes one of these once it is made. They are not declared frozen because there are several
per record, and making a frozen one takes twice as long: a tenth of all that counting takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SAID = (
    *("reasoning_content", "thinking", "reasoning", "thought", "thoughts"),
    *("tool_calls", "function_call"),
)
"""Keys of a message that say something besides its content."""


@dataclass(slots=True)
class Media:
    """One image, video or audio clip in a conversation."""

    kind: str
    """``'image'``, ``'video'`` or ``'audio'``."""
    ref: Any = None
    """What it was given as: path or URL, bytes, an opened PIL image, or None."""
    height: int | None = None
    """Stated height in pixels, after orientation."""
    width: int | None = None
    """Stated width in pixels, after orientation."""
    tokens: int | None = None
    """Stated number of tokens it expands to."""
    num_frames: int | None = None
    """Stated number of a video's frames."""
    fps: float | None = None
    """Stated frames per second of a video, or of the frames extracted from it."""
    frame_indices: tuple[int, ...] | None = None
    """The frames of a video that are used, as numbers in its file; None leaves it to the processor.
    """
    num_samples: int | None = None
    """Stated number of a sound's samples per channel."""
    sampling_rate: int | None = None
    """Stated samples of a sound per second."""
    requests: dict[str, Any] | None = None
    """Options that ask for another medium than the file: ``{"max_pixels": 602112}``."""


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """What is known of a medium without decoding it."""

    height: int
    """Pixels, after orientation; 0 of a sound."""
    width: int
    """Pixels, after orientation; 0 of a sound."""
    num_frames: int = 1
    """Frames of a video: its header's claim, or how many were extracted."""
    fps: float | None = None
    """Frames per second of the file; of extracted frames only where the record states it."""
    frame_indices: tuple[int, ...] | None = None
    """The frames that are used, where the record says which; None leaves it to the processor."""
    extracted: bool = False
    """Whether the video is a list of frames, of which none is left out."""
    num_samples: int = 0
    """Of a sound, per channel, at the file's own rate."""
    sampling_rate: int = 0
    """Of a sound, in samples per second."""


@dataclass(slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    """``'system'``, ``'user'``, ``'assistant'`` or ``'tool'``."""
    parts: tuple[str | Media, ...]
    """Text and media in order; text is byte for byte the record's, and empty only where the record
    has such a part."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The message's other keys (``tool_calls``, ``name`` …), as they were; ``content`` where that
    is null, and ``role`` where the record has another word for it that templates may know."""
    train: bool | None = None
    """Whether the record says that this turn is trained on; None leaves it to the label policy."""
    text_as_list: bool = False
    """Whether the record holds text alone as a list of parts; templates may treat it otherwise."""

    @property
    def is_string(self) -> bool:
        """Whether a template gets the content as a string: text in one piece, or nothing at all."""
        if self.text_as_list or len(self.parts) > 1:
            return False
        return not self.parts or isinstance(self.parts[0], str)

    @property
    def texts(self) -> list[str]:
        """The parts that are text, and say something."""
        return [part for part in self.parts if isinstance(part, str) and part]


@dataclass(slots=True)
class Conversation:
    """A record as turns."""

    turns: tuple[Turn, ...]
    text_tokens: int | None = None
    """The record's own count of all its tokens but the media's (``_text_tokens``), the template's
    among them."""
    tools: list[Any] | None = None
    """Tool schemas for the chat template."""
    input_ids: Sequence[int] | None = None
    """The sample's token ids, where the record holds them: then no template is rendered."""
    labels: Sequence[int] | None = None
    """With `input_ids`: -100 where nothing is trained; None means the ids themselves."""
    is_document: bool = False
    """Whether it is a document: the text and media of one turn, without a chat template, behind
    which the tokenizer's end-of-text token stands."""

    has_literal: bool = False
    """Whether a text holds a placeholder, such as ``<video>``, that stands for no medium."""
    media: tuple[Media, ...] = field(init=False, repr=False, compare=False)
    """All media, in order of appearance."""

    def __post_init__(self) -> None:
        media: list[Any] = [p for turn in self.turns for p in turn.parts if type(p) is not str]
        self.media = tuple(media)


def map_media(conversation: Conversation, change: Callable[[Media], Media]) -> Conversation:
    """Return a conversation with each medium changed; itself if it has none."""
    if not conversation.media:
        return conversation
    turns = []
    for turn in conversation.turns:
        parts = (part if isinstance(part, str) else change(part) for part in turn.parts)
        turns.append(replace(turn, parts=tuple(parts)))
    return replace(conversation, turns=tuple(turns))


def to_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The conversation as Hugging Face messages, ready for a chat template.

    Content that is a string in the record stays one, unless placeholders for media split it; any
    other is a list of ``{"type": "text", "text": …}``, ``{"type": "image"}``,
    ``{"type": "video"}`` and ``{"type": "audio"}`` parts.
    """
    return [
        {"role": turn.role, "content": content_of(turn, lambda m: {"type": m.kind}), **turn.extra}
        for turn in conversation.turns
    ]


def content_of(
    turn: Turn, placeholder: Callable[[Media], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return what a turn says as a message has it, `placeholder` in the place of each medium."""
    if turn.is_string:
        return next((part for part in turn.parts if isinstance(part, str)), "")
    return [
        {"type": "text", "text": part} if isinstance(part, str) else placeholder(part)
        for part in turn.parts
    ]


_FACTS = {
    **{name: name for name in ("height", "width", "num_frames", "fps", "frame_indices")},
    **{name: name for name in ("num_samples", "sampling_rate")},
    "n_tokens": "tokens",
}


def _facts_of(medium: Media) -> dict[str, Any]:
    """Return what a record states of a medium's file, by the names that records have for it."""
    stated = {name: getattr(medium, field) for name, field in _FACTS.items()}
    return {name: value for name, value in stated.items() if value is not None}


def stated_of(medium: Media) -> dict[str, Any]:
    """Return a record's facts and requests of a medium, by their names in messages."""
    return _facts_of(medium) | (medium.requests or {})


def message_of(turn: Turn, placeholder: Callable[[Media], dict[str, Any]]) -> dict[str, Any]:
    """Return a turn as a message of a record, ``train`` included if the record says it."""
    message = {"role": turn.role, "content": content_of(turn, placeholder), **turn.extra}
    return message if turn.train is None else {**message, "train": turn.train}


def to_record(
    conversation: Conversation, message: Callable[[Turn], dict[str, Any]]
) -> dict[str, Any]:
    """Return a record of tokens, or of OpenAI's dialect with a `message` of each turn."""
    if conversation.input_ids is not None:
        labels = conversation.labels
        tokens = {"input_ids": list(conversation.input_ids)}
        return tokens if labels is None else {**tokens, "labels": list(labels)}
    messages: dict[str, Any] = {"messages": [message(turn) for turn in conversation.turns]}
    if conversation.is_document:
        messages["messages"][0]["role"] = "document"
    return messages if conversation.tools is None else {**messages, "tools": conversation.tools}


def record_of(conversation: Conversation) -> dict[str, Any]:
    """Return a conversation as a record that is read as the same conversation.

    A medium stands in its place, ``{"type": "image", "image": …}``, with the options that ask for
    another one than its file, and again in ``images``, ``videos`` or ``audios``, in order. Facts
    about files are in ``mm_inputs_meta``.
    """
    record = to_record(conversation, lambda turn: message_of(turn, part_of))
    if conversation.text_tokens is not None:
        record["_text_tokens"] = conversation.text_tokens
    meta: dict[str, list[Any]] = {}
    for medium in conversation.media:
        record.setdefault(f"{medium.kind}s", []).append(medium.ref)
        is_opened = hasattr(medium.ref, "getexif")  # facts that follow from it are left out
        known = ("height", "width") if is_opened else ("num_frames",) * isinstance(medium.ref, list)
        facts = {name: fact for name, fact in _facts_of(medium).items() if name not in known}
        meta.setdefault(f"{medium.kind}s_meta", []).append(facts)
    return {**record, "mm_inputs_meta": meta} if any(map(any, meta.values())) else record


def part_of(medium: Media) -> dict[str, Any]:
    """Return a medium as a content part."""
    return {"type": medium.kind, medium.kind: medium.ref, **(medium.requests or {})}
