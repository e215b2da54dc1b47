"""What a processor writes in the place of its placeholders, read off by its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.encode.whole import build_sample, ids_of
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, Turn


class Unreadable(Exception):
    """What a processor wrote for its media cannot be told from its text."""


@dataclass(frozen=True, slots=True)
class Written:
    """One sample as the processor has it."""

    rendered: str
    """What the chat template wrote."""
    text: str
    """What the processor gave its tokenizer."""
    ids: list[int]
    """The sample's tokens."""
    outputs: Mapping[str, Any]
    """All that the processor returned."""


class _Recorder:
    """A tokenizer that notes what it is given, and is in all else the one it stands for."""

    def __init__(self, tokenizer: Any) -> None:
        object.__setattr__(self, "_own", (tokenizer, []))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own[0], name, value)

    def __len__(self) -> int:
        return len(self._own[0])

    def __call__(self, *args: Any, **options: Any) -> Any:
        tokenizer, notes = self._own
        built = tokenizer(*args, **options)
        given = args[0] if args else options.get("text")
        texts = [given] if isinstance(given, str) else given
        if isinstance(texts, list) and len(texts) == 1 and isinstance(texts[0], str):
            notes.append((texts[0], ids_of(built)))
        return built


def write(
    processor: Any,
    template: ChatTemplate,
    conversation: Conversation,
    *,
    every_frame: bool = False,
) -> Written:
    """Let `processor` build one sample and see what it writes.

    Raises:
        NotBuilt: it builds none.
        BadRecord: as `ChatTemplate.render`.
        Unreadable: no text that it tokenized has the sample's tokens.
    """
    recorded = copy.copy(processor)
    recorded.tokenizer = _Recorder(processor.tokenizer)
    _, notes = recorded.tokenizer._own
    outputs = build_sample(recorded, template, conversation, every_frame=every_frame)
    ids = ids_of(outputs)
    text = next((text for text, own in reversed(notes) if own == ids), None)
    if text is None:
        raise Unreadable("it puts tokens into the sample that are not in the text it tokenizes")
    return Written(template.render(conversation).text, text, ids, outputs)


# -- probes ----------------------------------------------------------------------------------------

_WORDS = ("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india")


def probe(media: Sequence[Media]) -> Conversation:
    """A question with these media, a word before, between and after them, and its answer."""
    parts: list[str | Media] = [word(0)]
    for number, medium in enumerate(media):
        parts += [medium, word(number + 1)]
    asked = Turn("user", tuple(parts), text_as_list=True)
    return Conversation((asked, Turn("assistant", ("zulu",), text_as_list=True)))


def word(number: int) -> str:
    return _WORDS[number % len(_WORDS)] + "x" * (number // len(_WORDS))


Around = tuple[str, str]
"""What a processor puts before and after a rendered text."""


def replaced(
    written: Written, places: Sequence[tuple[int, int]], around: Around
) -> list[str] | None:
    """What stands in `written.text` for the characters ``[start, end)`` of what was rendered.

    None where the text beside them is not what was rendered, with `around` it, byte for byte.
    """
    literals = list(_beside(around[0] + written.rendered + around[1], places, len(around[0])))
    text, at = written.text, len(literals[0])
    if text[:at] != literals[0]:
        return None
    texts = []
    for number, literal in enumerate(literals[1:]):
        is_last = number == len(places) - 1
        end = len(text) - len(literal) if is_last else text.find(literal, at)
        if end < at or text[end : end + len(literal)] != literal:
            return None
        texts.append(text[at:end])
        at = end + len(literal)
    return texts


def _beside(text: str, places: Sequence[tuple[int, int]], shift: int) -> Iterator[str]:
    at = 0
    for start, end in places:
        yield text[at : start + shift]
        at = end + shift
    yield text[at:]


def grid_of(outputs: Mapping[str, Any], kind: str) -> tuple[int, int, int]:
    """(t, h, w) in patches of the one medium of a sample; zeros where the processor states none.

    Shapes of pixels do not say it: a vision tower may cut them otherwise.
    """
    stated = outputs.get(f"{kind}_grid_thw")
    rows = np.asarray([] if stated is None else stated).reshape(-1, 3).tolist()
    return (rows[0][0], rows[0][1], rows[0][2]) if len(rows) == 1 else (0, 0, 0)
