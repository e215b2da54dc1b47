"""Documents as text: no template around them, and each medium as the template writes one.

What a template writes for a medium between two words is what the model was trained to see there
(``<|vision_start|><|image_pad|><|vision_end|>``). Of a template that writes a turn's media before
its text, whatever their order, it is the placeholder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.processor.chat_template.limits import MAX_TEXT, check_unicode
from packidx.processor.chat_template.placeholders import Placeholders
from packidx.processor.chat_template.turns.rendering import Span
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn

_WORDS = ("Zq0zZ", "Zq1zZ", "Zq2zZ")  # which no template writes itself


class Documents:
    """Writes documents.

    Args:
        render: a conversation as the template writes it.
        media_tokens: kind of medium → its placeholder, where the processor has one.
        policy: what is trained on: a document as a whole, where assistants are.
    """

    def __init__(
        self,
        render: Callable[[Conversation], str],
        media_tokens: Mapping[str, str],
        policy: LabelPolicy,
    ) -> None:
        self._render = render
        self._policy = policy
        self._tokens = media_tokens
        self._placeholders = Placeholders(media_tokens)
        self._written: dict[str, str] = {}

    def write(self, conversation: Conversation) -> tuple[str, tuple[Span, ...], tuple[int, ...]]:
        """A document's text, what is trained on in it, its own words, and its media's placeholders.

        Raises:
            BadRecord: ``media_token_in_text`` if a text holds a placeholder token,
                ``media_not_rendered`` if the processor takes no such media, ``bad_text`` if it is
                too long.
        """
        texts: list[str] = []
        spans: list[Span] = []
        length = 0
        (trains,) = self._policy.trains(conversation.turns)
        for part in conversation.turns[0].parts:
            written = part if isinstance(part, str) else self.medium(part.kind)
            if isinstance(part, str) and trains:
                spans.append((length, length + len(part)))
            texts.append(written)
            length += len(written)
        if length > MAX_TEXT:
            text = f"a document of {length:,} characters: at most {MAX_TEXT:,} are read"
            raise BadRecord("bad_text", text)
        text = "".join(texts)
        check_unicode(text)
        return text, _joined(spans), self._placeholders.find(conversation, text)

    def medium(self, kind: str) -> str:
        """What is written for a medium of a kind."""
        if kind not in self._written:
            self._written[kind] = self._between(kind)
        return self._written[kind]

    def _between(self, kind: str) -> str:
        token = self._tokens.get(kind)
        if token is None:
            raise BadRecord("media_not_rendered", f"a document has a {kind}, which has no place")
        parts: list[Any] = [_WORDS[0], Media(kind), _WORDS[1], Media(kind), _WORDS[2]]
        try:
            text = self._render(Conversation((Turn("user", tuple(parts)),)))
        except BadRecord:  # of a template that takes no such turn alone
            return token
        written = []
        for before, after in zip(_WORDS, _WORDS[1:], strict=False):
            _, found, rest = text.partition(before)
            between, ended, _ = rest.partition(after)
            written.append(between.strip() if found and ended else "")
        usable = written[0] == written[1] and written[0].count(token) == 1
        return written[0] if usable else token


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Neighbouring spans as one: a token may reach over the border of two texts."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return tuple(joined)
