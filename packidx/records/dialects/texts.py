"""Records of ``texts``: FineVision and The Cauldron, and LoongForge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import chat, pair_turns, read_chat
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.held import kind_of_name
from packidx.records.media.references import LIST_KEYS, OBJECT, cut, media_entries, named

OF_LOONGFORGE = frozenset(("texts", "media_files", "name", "media_type", "media", "_meta"))
"""Columns that LoongForge's records have."""


def read_finevision(raw: RawRecord) -> Conversation | None:
    """FineVision and The Cauldron: ``texts``, a list of ``user`` and ``assistant``.

    ``{"texts": [{"user": "What is it?", "assistant": "A cat."}], "images": ["a.png"]}``
    """
    texts, pair = raw.columns.get("texts"), ("user", "assistant")
    if isinstance(texts, OBJECT) and texts.keys() >= {*pair}:  # lists, as `datasets` has them
        lists = [texts[role] for role in pair]
        if not all(isinstance(said, list) for said in lists) or len({*map(len, lists)}) > 1:
            text = "'user' and 'assistant' of 'texts' are not lists of equal length"
            raise BadRecord("bad_turn", text)
        return chat(raw, pair_turns(raw, list(zip(*lists, strict=True))))
    if not isinstance(texts, list) or not texts:
        return None
    if not all(isinstance(entry, OBJECT) and entry.keys() >= {*pair} for entry in texts):
        return None
    return chat(raw, pair_turns(raw, [(entry["user"], entry["assistant"]) for entry in texts]))


def read_loongforge(raw: RawRecord) -> Conversation | None:
    """LoongForge: ``texts`` of messages, or of ``prompts`` and ``captions``, and names of files.

    ``{"texts": {"prompts": ["<image>Who?"], "captions": ["A cat."]}, "media_files": ["a.png"]}``
    """
    columns = raw.columns
    texts, meta = columns.get("texts"), columns.get("_meta")
    if texts is None:
        return None
    if isinstance(meta, OBJECT) and "token_lens" in meta:
        text = "is a pack of samples (packidx export wds), not a record: read the sources"
        raise BadRecord("bad_record", f"the record {text} that were exported")
    words = (columns.get("media_type"), columns.get("media"))
    stated = next((word for word in words if word is not None), None)
    files = columns.get("media_files")
    if files is None and stated is not None:  # without a stated kind, a name is just a name
        files = columns.get("name")
    own = {kind: media_entries(columns, kind)[0] for kind in LIST_KEYS}
    for file in _flat([] if files is None else files):
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
