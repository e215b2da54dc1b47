"""The media placeholders in a rendered text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packidx.errors import BadRecord
from packidx.processor.chat_template.environment import check_unicode
from packidx.processor.chat_template.marks import Span, find_gaps
from packidx.processor.chat_template.turns import compile_any
from packidx.records.conversation import Conversation, Media, Turn


class Placeholders:
    """The tokens that a template writes for media.

    Args:
        tokens: by kind.
        render: a conversation as the template writes it.
    """

    def __init__(self, tokens: Mapping[str, str], render: Callable[[Conversation], str]) -> None:
        self.pattern = compile_any(tokens.values())
        self.of_kind = dict(tokens)
        self._render = render
        self._around: dict[str, str] = {}

    def find(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        """First character of each medium's placeholder in the rendering `text`.

        Some templates write a turn's images before its videos: the nth placeholder of a kind is the
        nth medium of that kind, wherever it stands.

        Raises:
            BadRecord: ``media_token_in_text`` or ``media_not_rendered``.
        """
        if self.pattern is None:
            return ()
        written = [(match.group(), match.start()) for match in self.pattern.finditer(text)]
        media = [self.of_kind.get(medium.kind, "") for medium in conversation.media]
        if not written and not media:
            return ()
        for turn in conversation.turns:
            for part in turn.parts:
                if isinstance(part, str) and (hit := self.pattern.search(part)):
                    detail = f"a {turn.role} turn's text holds {hit.group()!r}: remove or escape it"
                    raise BadRecord("media_token_in_text", detail)
        tokens = [token for token, _ in written]
        if tokens == media:
            return tuple([at for _, at in written])
        if sorted(tokens) != sorted(media):
            reason = "media_not_rendered" if len(written) < len(media) else "media_token_in_text"
            numbers = f"{len(written)} media placeholders for {len(media)} media"
            raise BadRecord(reason, f"the rendered text has {numbers}")
        left = {own: iter([at for token, at in written if token == own]) for own in set(tokens)}
        return tuple([next(left[token]) for token in media])

    def write(self, conversation: Conversation) -> tuple[str, tuple[Span, ...], tuple[int, ...]]:
        """A document's text, where its own words are, and its media's placeholders.

        Raises:
            BadRecord: ``bad_text``; ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the processor takes no such media.
        """
        text, spans = "", list[Span]()
        for part in conversation.turns[0].parts:
            if not isinstance(part, str):
                text += self._write_medium(part.kind)
                continue
            touches = bool(spans) and spans[-1][1] == len(text)  # a token may reach over both
            start = spans.pop()[0] if touches else len(text)
            text += part
            spans.append((start, len(text)))
        check_unicode(text)
        return text, tuple(spans), self.find(conversation, text)

    def _write_medium(self, kind: str) -> str:
        """Return what is written for a medium of a kind: its token, and the template's words."""
        token = self.of_kind.get(kind)
        if token is None:
            raise BadRecord("media_not_rendered", f"a document has a {kind}, which has no place")
        if kind not in self._around:
            parts = ("Text", Media(kind), "Text", Media(kind), "Text")
            around = [gap.strip() for gap in find_gaps(self._render, Turn("user", parts))[1:3]]
            usable = len(around) == 2 and around[0] == around[1] and around[0].count(token) == 1
            self._around[kind] = around[0] if usable else token
        return self._around[kind]
