"""The media placeholders in a rendered text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packidx.errors import BadRecord
from packidx.processor.chat_template.environment import check_unicode
from packidx.processor.chat_template.marks import Span
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn


def any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of any of these tokens, the longest that is there; None for none."""
    longest_first = sorted(set(tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class Placeholders:
    """The tokens that a template writes for media, by their kind."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.pattern = any_of(tokens.values())
        self.tokens = tuple(sorted(set(tokens.values())))
        """Each once."""
        self._of = dict(tokens)

    def find(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        """First character of each medium's placeholder in the rendering `text`.

        Some templates write a turn's images before its videos: the nth placeholder of a kind is the
        nth medium of that kind, wherever it stands.

        Raises:
            BadRecord: ``media_token_in_text`` or ``media_not_rendered``.
        """
        places = self.positions(conversation, text)
        if self.pattern is None or places == []:
            return ()
        for turn in conversation.turns:
            for part in turn.parts:
                if isinstance(part, str) and (hit := self.pattern.search(part)):
                    detail = f"a {turn.role} turn's text holds {hit.group()!r}: remove or escape it"
                    raise BadRecord("media_token_in_text", detail)
        if places is None:
            written, media = len(self.pattern.findall(text)), len(conversation.media)
            reason = "media_not_rendered" if written < media else "media_token_in_text"
            numbers = f"{written} media placeholders for {media} media"
            raise BadRecord(reason, f"the rendered text has {numbers}")
        return tuple(places)

    def positions(self, conversation: Conversation, text: str) -> list[int] | None:
        """The first character of each medium's placeholder in `text`; None where it has others than
        the conversation's."""
        if self.pattern is None:
            return []
        written = [(m.start(), m.group()) for m in self.pattern.finditer(text)]
        media = [self._of.get(medium.kind) for medium in conversation.media]
        order = _assign([token for _, token in written], media)
        return None if order is None else [written[number][0] for number in order]


def _assign(tokens: Sequence[str], media: Sequence[str | None]) -> list[int] | None:
    """The number in `tokens` of each medium's placeholder; None where others are there."""
    if list(tokens) == list(media):
        return list(range(len(tokens)))
    if sorted(tokens) != sorted(map(str, media)):
        return None
    left = {
        token: iter([n for n, other in enumerate(tokens) if other == token])
        for token in set(tokens)
    }
    return [next(left[str(token)]) for token in media]


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
                ``media_not_rendered`` if the processor takes no such media.
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
        text = "".join(texts)
        check_unicode(text)
        return text, _joined(spans), self._placeholders.find(conversation, text)

    def medium(self, kind: str) -> str:
        """Return what is written for a medium of a kind."""
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
