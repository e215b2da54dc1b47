"""Captions: a text about the record's media, which are what the user says."""

from __future__ import annotations

from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import CHAT_COLUMNS, chat, pair_turns
from packidx.records.dialects.qa import answer_text, refuse_beside
from packidx.records.dialects.raw_record import URLS, RawRecord


class Caption:
    """A caption in a column of its own, beside media."""

    def __init__(self, column: str) -> None:
        self.name = self._column = column
        self.columns = CHAT_COLUMNS | {column}

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        caption = raw.columns.get(self._column)
        if caption is None or not any(raw.listed.values()):
            return None
        raw.consumed |= {url for url in URLS if "://" in str(raw.columns.get(url))[:8]}
        said = answer_text(caption, self._column)
        refuse_beside(raw.columns, self._column, said)
        return chat(raw, pair_turns(raw, [("", said)]))
