"""The media placeholders in a rendered text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from packidx.errors import BadRecord
from packidx.processor.chat_template.turns.rendering import CharPosition, Rendering
from packidx.records.conversation import Conversation


def any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of any of these tokens, the longest that is there; None for none."""
    longest_first = sorted(set(tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class Placeholders:
    """What a template writes for media, by their kind."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.pattern = any_of(tokens.values())
        self._tokens = tuple(sorted(set(tokens.values())))
        self._of = dict(tokens)

    def are_in(self, texts: Sequence[str]) -> bool:
        """Whether any text holds a placeholder."""
        text = "\0".join(texts)
        return any(token in text for token in self._tokens)

    def find(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        """First character of each medium's placeholder in the rendering `text`.

        Some templates write a turn's images before its videos: the nth placeholder of a kind is the
        nth medium of that kind, wherever it stands.

        Raises:
            BadRecord: ``media_token_in_text`` or ``media_not_rendered``.
        """
        if self.pattern is None:
            return ()
        written = [(m.start(), m.group()) for m in self.pattern.finditer(text)]
        media = self._expected(conversation)
        if not written and not media:
            return ()
        for turn in conversation.turns:
            for part in turn.parts:
                if isinstance(part, str) and (hit := self.pattern.search(part)):
                    detail = f"a {turn.role} turn's text holds {hit.group()!r}: remove or escape it"
                    raise BadRecord("media_token_in_text", detail)
        order = _assign([token for _, token in written], media)
        if order is None:
            reason = "media_not_rendered" if len(written) < len(media) else "media_token_in_text"
            numbers = f"{len(written)} media placeholders for {len(media)} media"
            raise BadRecord(reason, f"the rendered text has {numbers}")
        return tuple(written[number][0] for number in order)

    def positions(
        self, conversation: Conversation, rendering: Rendering
    ) -> tuple[CharPosition, ...] | None:
        """Where the media of all records of `rendering` are whose texts hold no placeholder.

        None if texts could still make one together with the template's words, or if there are
        others than the conversation's: then `find` has to look.
        """
        written = []
        last = len(rendering.literals) - 1
        kinds = {(literal, 0 < n < last) for n, literal in enumerate(rendering.literals)}
        if any(_completes(*kind, token) for kind in kinds for token in self._tokens):
            return None
        for number, literal in enumerate(rendering.literals):
            for token in self.pattern.finditer(literal) if self.pattern else ():
                written.append((token.group(), (2 * number, token.start())))
        if self.pattern is None:
            return ()
        order = _assign([token for token, _ in written], self._expected(conversation))
        return None if order is None else tuple(written[number][1] for number in order)

    def _expected(self, conversation: Conversation) -> list[str | None]:
        return [self._of.get(medium.kind) for medium in conversation.media]


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


def _completes(literal: str, inner: bool, token: str) -> bool:
    """Whether a text beside `literal` could make a placeholder together with it."""
    cuts = range(1, len(token))
    if any(literal.endswith(token[:cut]) or literal.startswith(token[cut:]) for cut in cuts):
        return True
    return inner and literal in token
