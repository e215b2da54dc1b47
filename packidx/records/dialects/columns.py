"""Names that public data sets have for media, in records without turns or media in standard names.

- ``jpg``, ``png`` and the like: an image's bytes, as in Parquet that img2dataset wrote;
- ``file_name``, ``image_file_name``, ``file_names`` and so on: files beside the metadata of an
  `imagefolder`, as `datasets` documents them;
- ``URL``, or ``url`` beside a caption, as in LAION's tables: where an image was.

And ``texts`` of ``user`` and ``assistant``, as FineVision and The Cauldron have them: turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.webdataset import media_first
from packidx.records.layout import TURN_KEYS
from packidx.records.media.held import EXTENSIONS, kind_of_name
from packidx.records.media.references import LIST_KEYS, OBJECT, media_entries, named

CAPTIONS = ("caption", "text", "TEXT", "txt")
"""Columns of what is said of a medium, the first of which is taken."""
_BYTES = tuple(sorted(EXTENSIONS["image"]))
_URLS = ("URL", "url")
_FILES = {
    name: prefix or None
    for prefix in ("", *LIST_KEYS, *(f"{kind}s" for kind in LIST_KEYS))
    for name in (f"{prefix}_file_name".strip("_"), f"{prefix}_file_names".strip("_"))
}
_NAMES = frozenset((*_BYTES, *_URLS, *_FILES))
MEDIA_COLUMNS = frozenset((*(key for keys in LIST_KEYS.values() for key in keys), *_BYTES, *_FILES))
"""Columns that say that a data set's records have media, even where one of them is empty."""


def may_hold_media(record: Mapping[str, Any]) -> bool:
    """Whether a column besides the turns may say which media a record has: it is called so, or
    holds something like one."""
    columns = [name for name in record if name not in TURN_KEYS]
    return any(name in MEDIA_COLUMNS or _is_like_media(record[name]) for name in columns)


def _is_like_media(value: Any) -> bool:
    """Whether a value is, or holds, a file's name or anything that is no plain value."""
    if isinstance(value, str):
        return kind_of_name(value) is not None
    if isinstance(value, OBJECT):
        return any(map(_is_like_media, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_like_media, value))
    return value is not None and not isinstance(value, int | float)


def with_columns(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with its media in the standard names; itself where it has turns or such media.

    Raises:
        BadRecord: ``bad_media``, a file's name is none.
    """
    if _NAMES.isdisjoint(record) or any(record.get(key) is not None for key in TURN_KEYS):
        return record
    if any(media_entries(record, kind)[1] for kind in LIST_KEYS):
        return record
    media = _files(record) or _bytes(record) or _urls(record)
    return {**record, **media} if media else record


def _files(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    media: dict[str, list[Any]] = {}
    for column, prefix in _FILES.items():
        value = record.get(column)
        for name in value if isinstance(value, list) else [value]:
            if name in (None, ""):
                continue
            if not isinstance(name, str):
                raise BadRecord("bad_media", f"{column!r} has {named(name)}, not a file's name")
            kind = kind_of_name(name) if prefix is None else prefix.removesuffix("s")
            if kind is not None:
                media.setdefault(LIST_KEYS[kind][0], []).append(name)
    return media


def _bytes(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    images = [record[name] for name in _BYTES if isinstance(record.get(name), (bytes, *OBJECT))]
    return {"images": images} if images else {}


def _urls(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    if record.get("caption") is None and record.get("TEXT") is None:
        return {}  # where a text was found
    url = next((record[name] for name in _URLS if isinstance(record.get(name), str)), None)
    return {"images": [url]} if url else {}


def is_pairs(texts: Any) -> bool:
    """Whether ``texts`` are questions and answers as FineVision has them."""
    if isinstance(texts, OBJECT):  # as `datasets` once stored lists of objects
        return {"user", "assistant"} <= texts.keys()
    return bool(texts) and isinstance(texts, list) and all(map(_is_pair, texts))


def with_pairs(record: dict[str, Any]) -> dict[str, Any]:
    """`record`, of FineVision or The Cauldron, with messages; images that no text has a place for
    stand before the first question.

    Raises:
        BadRecord: ``no_messages`` or ``bad_turn``.
    """
    texts = record["texts"]
    if isinstance(texts, OBJECT):
        lists = [texts["user"], texts["assistant"]]
        if not all(isinstance(said, list) for said in lists) or len({*map(len, lists)}) > 1:
            text = "'user' and 'assistant' of 'texts' are not lists of equal length"
            raise BadRecord("bad_turn", text)
        texts = [{"user": u, "assistant": a} for u, a in zip(*lists, strict=True)]
    if not texts:
        raise BadRecord("no_messages", "'texts' is empty")
    messages = []
    for number, pair in enumerate(texts):
        for role in ("user", "assistant"):
            said = pair[role]
            if not isinstance(said, str):
                text = f"{role!r} of entry {number} of 'texts' is {named(said)}, not text"
                raise BadRecord("bad_turn", text)
            messages.append({"role": role, "content": said})
    kept = {key: value for key, value in record.items() if key != "texts"}
    return media_first({**kept, "messages": messages})


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, OBJECT) and {"user", "assistant"} <= entry.keys()
