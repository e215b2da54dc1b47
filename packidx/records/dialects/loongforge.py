"""LoongForge's records: ``texts`` and the list of their media, as messages.

``texts`` is a list of turns, or ``{"prompts": […], "captions": […]}`` of equally many questions
and answers, which may be nested: a packed sample has a list of turns for each sample in it. Media
are under ``media_files`` (packed) or ``name`` (its converter); ``media_type`` or ``media`` says of
which kind all of them are (its cookers' `multi_mix_qa`), else each file's ending does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.webdataset import media_first
from packidx.records.layout import TURN_KEYS
from packidx.records.media.held import kind_of_name
from packidx.records.media.references import LIST_KEYS, cut, media_entries, named

TEXTS = "texts"

_FILES = ("media_files", "name")
_KINDS = ("media_type", "media")


def with_texts(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with messages and media in the standard names; itself if it is another's.

    Where its texts have no placeholder for its media, these stand before the first question.

    Raises:
        BadRecord: ``no_messages``, ``bad_turn`` or ``bad_media``.
    """
    if not is_texts(record):
        return record
    texts = record[TEXTS]
    kept = {k: v for k, v in record.items() if k not in (TEXTS, *_FILES, *_KINDS)}
    kept["messages"] = texts if isinstance(texts, list) else _messages(texts)
    stated = stated_type(record)
    return media_first({**kept, **_media(kept, _files(record, stated), stated)})


def is_texts(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this dialect."""
    return record.get(TEXTS) is not None and all(record.get(key) is None for key in TURN_KEYS)


def stated_type(record: Mapping[str, Any]) -> Any:
    """What a record of this dialect says of the kind of its media; None where it does not."""
    return next((record[key] for key in _KINDS if record.get(key) is not None), None)


def _files(record: dict[str, Any], stated: Any) -> list[Any]:
    names = _FILES if stated is not None else _FILES[:1]  # else a name is just a name
    return list(_flat(next((record[n] for n in names if record.get(n) is not None), [])))


def _media(record: dict[str, Any], files: list[Any], stated: Any) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for file in files:
        kind = _kind(file, stated)
        if (own := media_entries(record, kind)[0]) is not None:
            raise BadRecord("bad_media", f"the record has {own!r} beside the files of its texts")
        lists.setdefault(LIST_KEYS[kind][0], []).append(file)
    return lists


def _messages(texts: Any) -> list[dict[str, str]]:
    if not isinstance(texts, dict) or texts.get("captions") is None:
        text = f"'texts' is {named(texts)}, neither a list of turns nor prompts and captions"
        raise BadRecord("no_messages", text)
    captions = list(_flat(texts["captions"]))
    prompts = list(_flat(texts.get("prompts") or [""] * len(captions)))
    if len(prompts) != len(captions):
        raise BadRecord("bad_turn", f"'texts' has {len(prompts)} prompts, {len(captions)} captions")
    if not captions:
        raise BadRecord("no_messages", "'texts' is empty")
    messages = []
    for prompt, caption in zip(prompts, captions, strict=True):
        for role, text in (("user", prompt), ("assistant", caption)):
            if not isinstance(text, str):
                raise BadRecord("bad_turn", f"'texts' has {cut(text)} where a text must be")
            messages.append({"role": role, "content": text})
    return messages


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(value, list) or depth == 8:
        yield value
        return
    for item in value:
        yield from _flat(item, depth + 1)


def _kind(file: Any, stated: Any) -> str:
    if not isinstance(file, str):
        raise BadRecord("bad_media", f"a name of a medium is {named(file)}, not text")
    own = kind_of_name(file)
    stated = stated if isinstance(stated, str) else None
    kind = stated if stated in LIST_KEYS else own
    others = {"image": ("video", "audio"), "video": ("audio",), "audio": ("image",)}
    if stated == "text" or own in others.get(stated, ()):
        text = f"media_type says {stated}, but {cut(file)} is among the files of the texts"
        raise BadRecord("bad_media", text)
    if kind is None:
        text = f"{cut(file)} is of no known kind: neither media_type nor its ending says which"
        raise BadRecord("bad_media", text)
    return str(kind)
