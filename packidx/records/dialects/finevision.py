"""FineVision and The Cauldron: questions and answers in one column."""

from __future__ import annotations

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import CHAT_COLUMNS, chat, pair_turns
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.references import OBJECT


class FineVision:
    """FineVision and The Cauldron: ``texts``, a list of ``user`` and ``assistant``.

    ``{"texts": [{"user": "What is it?", "assistant": "A cat."}], "images": ["a.png"]}``
    """

    name = "finevision"
    columns = CHAT_COLUMNS | {"texts"}

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        texts, pair = raw.columns.get("texts"), {"user", "assistant"}
        if isinstance(texts, OBJECT):  # as `datasets` once stored lists of objects
            if not pair <= texts.keys():
                return None
            lists = [texts["user"], texts["assistant"]]
            if not all(isinstance(said, list) for said in lists) or len({*map(len, lists)}) > 1:
                text = "'user' and 'assistant' of 'texts' are not lists of equal length"
                raise BadRecord("bad_turn", text)
            return chat(raw, pair_turns(raw, list(zip(*lists, strict=True))))
        if not isinstance(texts, list) or not texts:
            return None
        if not all(isinstance(entry, OBJECT) and pair <= entry.keys() for entry in texts):
            return None
        return chat(raw, pair_turns(raw, [(entry["user"], entry["assistant"]) for entry in texts]))
