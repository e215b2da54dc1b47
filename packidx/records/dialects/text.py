"""Documents: a text that is trained on as a whole, without a chat template."""

from __future__ import annotations

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import document
from packidx.records.dialects.raw_record import MEDIA_COLUMNS, RawRecord
from packidx.records.media.references import text_of


class Text:
    """A text in a column of its own, in a record without media."""

    def __init__(self, column: str) -> None:
        self.name = self._column = column
        self.columns = frozenset((column,))

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        text = raw.columns.get(self._column)
        if text is None:
            return None
        if empty := sorted(MEDIA_COLUMNS & raw.columns.keys()):
            raise BadRecord(
                "no_messages",
                f"the record has a {self._column!r} and nothing in {empty[0]!r}: a caption needs "
                "its medium, and records of text alone (documents) have no such column",
            )
        raw.unknown_keys += ["role"] * bool(raw.columns.get("role"))  # one message, and no document
        return document(raw, [text_of(text, self._column)])
