"""LoongForge's records, which name their media's files beside the texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import CHAT_COLUMNS, chat, pair_turns, read_chat
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.held import kind_of_name
from packidx.records.media.references import LIST_KEYS, OBJECT, cut, media_entries, named


class LoongForge:
    """LoongForge: ``texts`` of messages, or of ``prompts`` and ``captions``, and names of files.

    ``{"texts": {"prompts": ["<image>Who?"], "captions": ["A cat."]}, "media_files": ["a.png"]}``
    """

    name = "loongforge"
    columns = CHAT_COLUMNS | {"texts", "media_files", "name", "media_type", "media", "_meta"}

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        columns = raw.columns
        texts, meta = columns.get("texts"), columns.get("_meta")
        if texts is None:
            return None
        if isinstance(meta, OBJECT) and "token_lens" in meta:
            text = "is a pack of samples (packidx export wds), not a record: read the sources"
            raise BadRecord("bad_record", f"the record {text} that were exported")
        stated = next(
            (columns[k] for k in ("media_type", "media") if columns.get(k) is not None), None
        )
        # Without a stated kind, a name is just a name.
        lists = ("media_files",) if stated is None else ("media_files", "name")
        files: Any = next((columns[name] for name in lists if columns.get(name) is not None), [])
        own = {kind: media_entries(columns, kind)[0] for kind in LIST_KEYS}
        for file in _flat(files):
            if not isinstance(file, str):
                raise BadRecord("bad_media", f"a name of a medium is {named(file)}, not text")
            kind = kind_of_name(file) or (stated if isinstance(stated, str) else "")
            if kind not in LIST_KEYS:
                text = f"{cut(file)} is of no known kind: neither media_type nor its ending says it"
                raise BadRecord("bad_media", text)
            if own[kind] is not None:
                has = f"the record has {own[kind]!r} beside the files of its texts"
                raise BadRecord("bad_media", has)
            raw.list_media(kind, file)
        if isinstance(texts, list):
            return read_chat(raw, texts, "texts")
        if not isinstance(texts, dict) or texts.get("captions") is None:
            text = f"'texts' is {named(texts)}, neither a list of turns nor prompts and captions"
            raise BadRecord("no_messages", text)
        captions = list(_flat(texts["captions"]))
        prompts = list(_flat(texts.get("prompts") or [""] * len(captions)))
        if len(prompts) != len(captions):
            numbers = f"{len(prompts)} prompts, {len(captions)} captions"
            raise BadRecord("bad_turn", f"'texts' has {numbers}")
        return chat(raw, pair_turns(raw, list(zip(prompts, captions, strict=True))))


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(value, list) or depth == 8:
        yield value
        return
    for item in value:
        yield from _flat(item, depth + 1)
