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
    """The reference as it was given: path or URL, bytes, an opened PIL image, or None."""
    stated: dict[str, Any] = field(default_factory=dict)
    """Facts that the record states of its file: ``height`` and ``width`` in pixels, after
    orientation, ``n_tokens``; ``num_frames``, ``fps`` and the numbers ``frame_indices`` of the
    frames that are used; ``num_samples`` and ``sampling_rate``."""
    requests: dict[str, Any] = field(default_factory=dict)
    """Options that ask for another medium than the file: ``{"max_pixels": 602112}``."""


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """The facts of a medium that need no decoding."""

    height: int = 0
    """Pixels, after orientation; 0 of a sound."""
    width: int = 0
    """Pixels, after orientation; 0 of a sound."""
    num_frames: int = 1
    """Frames of a video: its header's claim, or how many were extracted."""
    fps: float | None = None
    """Frames per second of the file; of extracted frames only where the record states it."""
    frame_indices: tuple[int, ...] | None = None
    """The frames that are used, where the record says which; None leaves it to the processor."""
    extracted: bool = False
    """True if the video is a list of frames, of which none is left out."""
    num_samples: int = 0
    """Samples of a sound, per channel, at the file's own rate."""
    sampling_rate: int = 0
    """The rate of a sound, in samples per second."""


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
    """True if the record says that this turn is trained on; None leaves it to the label policy."""
    text_as_list: bool = False
    """True if the record holds text alone as a list of parts; templates may treat it otherwise."""

    @property
    def is_string(self) -> bool:
        """True if a template gets the content as a string: text in one piece, or nothing at all."""
        parts = self.parts
        return not self.text_as_list and (not parts or (len(parts) == 1 and type(parts[0]) is str))

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
    """Labels beside `input_ids`: -100 is not trained on; None means the ids themselves."""
    is_document: bool = False
    """True for a document: the text and media of one turn, without a chat template, behind
    which the tokenizer's end-of-text token stands."""

    has_literal: bool = False
    """True if a text holds a placeholder, such as ``<video>``, that stands for no medium."""
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


def to_messages(
    conversation: Conversation,
    part: Callable[[Media], dict[str, Any]] = lambda medium: {"type": medium.kind},
) -> list[dict[str, Any]]:
    """The conversation as Hugging Face messages, ready for a chat template.

    Content that is a string in the record stays one, unless placeholders for media split it; any
    other is a list of ``{"type": "text", "text": …}`` and, for each medium, a `part`.
    """
    messages = []
    for turn in conversation.turns:
        content: Any = "".join([each for each in turn.parts if isinstance(each, str)])
        if not turn.is_string:
            content = [
                {"type": "text", "text": each} if isinstance(each, str) else part(each)
                for each in turn.parts
            ]
        messages.append({"role": turn.role, "content": content, **turn.extra})
    return messages


def to_record(
    conversation: Conversation, part: Callable[[Media], dict[str, Any]]
) -> dict[str, Any]:
    """Return a record of tokens, or of OpenAI's dialect with a `part` for each medium."""
    if conversation.input_ids is not None:
        labels = conversation.labels
        tokens = {"input_ids": list(conversation.input_ids)}
        return tokens if labels is None else {**tokens, "labels": list(labels)}
    messages = to_messages(conversation, part)
    for message, turn in zip(messages, conversation.turns, strict=True):
        message |= {} if turn.train is None else {"train": turn.train}
        message |= {"role": "document"} if conversation.is_document else {}
    tools = conversation.tools
    return {"messages": messages} if tools is None else {"messages": messages, "tools": tools}
