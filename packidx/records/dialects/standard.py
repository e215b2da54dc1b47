"""Records in the standard names: a dialect with other names for its turns or media ends here.

`_DIALECTS` is the table of those that are known by a column of their own. Besides, records without
turns or media in standard names may have these in columns that public data sets have:

- ``jpg``, ``png`` and the like: an image's bytes, as in Parquet that img2dataset wrote;
- ``file_name``, ``image_file_name``, ``file_names`` and so on: files beside the metadata of an
  `imagefolder`, as `datasets` documents them;
- ``URL``, or ``url`` beside a caption, as in LAION's tables: where an image was.

Names of media in the record of a WebDataset sample become what is in its files. A name is a
member's full name or its extension, what follows ``KEY.``. What is neither stays as it is, and
leads into a stated media root alone.

WebDataset samples and LoongForge's ``texts`` may have a ``media_type``: of which kinds their media
are. What it says must be so; any word but ``text`` and ``image+video`` and the like is another
tool's, and says nothing.

A document is text, with images among it or without, that is trained on as a whole. No chat template
is around it, and nobody asks for it: its one turn has the role ``document``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.io.ranges import Extent
from packidx.records.dialects.sides import take_side
from packidx.records.layout import IDS, UNUSED, apply
from packidx.records.media.held import EXTENSIONS, PAGES, kind_of_name, media_in, texts_of
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    TURN_KEYS,
    content_of,
    cut,
    frames_of,
    has_placeholder,
    integer,
    map_media,
    media_entries,
    named,
    part_kind,
    reference_of,
    turn_key,
)
from packidx.records.members import MEMBERS, Members

Record = dict[str, Any]

DOCUMENT = "document"
"""The role of a document's turn."""
_BYTES = tuple(sorted(EXTENSIONS["image"]))
_URLS = ("URL", "url")
_FILES = {
    name: prefix or None
    for prefix in ("", *LIST_KEYS, *(f"{kind}s" for kind in LIST_KEYS))
    for name in (f"{prefix}_file_name".strip("_"), f"{prefix}_file_names".strip("_"))
}
_NAMES = frozenset((*_BYTES, *_URLS, *_FILES))
_MEDIA_COLUMNS = frozenset(
    (*(key for keys in LIST_KEYS.values() for key in keys), *_BYTES, *_FILES)
)  # that say that a data set's records have media, even where one of them is empty
MEDIA_COLUMNS = frozenset((*_BYTES, *_FILES))
"""Columns of media, or of their files beside a table of metadata."""
ORIGIN_COLUMNS = _URLS
"""Columns that say where the medium of a caption is from."""
_LISTED = ("media_files", "name")  # columns of the files of LoongForge's texts
_KINDS = ("media_type", "media")
COLUMNS_OF_TEXTS = frozenset(("texts", "text_list", "image_info", *_LISTED, *_KINDS))
"""Columns of the dialects in `_DIALECTS`."""


_PLACES = frozenset(
    ("image", "video", "audio", "image_url", "video_url", "audio_url", "path", "url", "frames")
)
_DEEPEST = 4  # an entry, a place in it, a list of frames, a place in one of these

Find = Callable[[str], bytes | Extent | None]


def standard(record: Record, layout: Layout) -> Record:
    """A record in the standard names, with the media that its container has beside it.

    Args:
        record: as it stands in its shard, or as a transform returned it.
        layout: how its source names things; of pairs, which side is taken.

    Raises:
        BadRecord: it is of no known form.
    """
    if layout.ignore and isinstance(members := record.get(MEMBERS), Members):
        start = len(members.key)
        ignored = {f".{name.removeprefix('.')}" for name in layout.ignore}
        files = {n: c for n, c in members.files.items() if n[start:] not in ignored}
        record = {**record, MEMBERS: members._replace(files=files)}
    record = apply(layout, record)
    if layout.pair is not None:
        record = take_side(_with_columns(record), layout.pair)
    if "texts" in record or MEMBERS in record or "text_list" in record:
        stated = _stated_kinds(record)
        record = _with_members(_with_turns(record), stated)
        if stated is not None:
            _check_kinds(record, stated)
    return _with_columns(record)


def _with_turns(record: Record) -> Record:
    """`record` with messages, where it has them in other words."""
    if turn_key(record) is not None:
        return record
    for column, applies, turned in _DIALECTS:
        if record.get(column) is not None and applies(record):
            return turned(record)
    return record


def _stated_kinds(record: Mapping[str, Any]) -> frozenset[str] | None:
    """The kinds of media that a record states it has, all of them; None where it does not say."""
    is_talk = turn_key(record) is not None
    has_texts = record.get("texts") is not None and not is_talk
    word = _stated_type(record) if has_texts else record.get("media_type")
    if not isinstance(word, str):
        return None
    kinds = frozenset(word.split("+"))
    return frozenset() if word == "text" else kinds if kinds <= LIST_KEYS.keys() else None


def _check_kinds(record: Mapping[str, Any], stated: frozenset[str]) -> None:
    """Raise a BadRecord if a record has media, or places for them, of other kinds than `stated`."""
    listed = (record[key] for key in TURN_KEYS if isinstance(record.get(key), list | tuple))
    turns = [turn for turns in listed for turn in turns]
    actual = {
        kind
        for kind in LIST_KEYS
        if media_entries(record, kind)[1] or any(has_placeholder(turn, kind) for turn in turns)
    }
    if actual != stated:
        has = " and ".join(f"{kind}s" for kind in sorted(actual)) or "no media"
        says = "+".join(sorted(stated)) or "text"
        raise BadRecord("bad_media", f"the record's media_type says {says}, but it has {has}")


def record_key(record: Mapping[str, Any]) -> str | None:
    """The record's own id as text; None where it has none that is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in IDS:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def key_of(record: Mapping[str, Any], layout: Layout) -> str | None:
    """Return what a record, as it stands in its shard, calls itself; None if it has no name."""
    if layout.ignore:
        record = {name: value for name, value in record.items() if name not in layout.ignore}
    column = layout.columns.get("id")
    return record_key(record if column is None else {"id": record.get(column)})


# -- files of a WebDataset sample --------------------------------------------------------------


def _with_members(record: dict[str, Any], stated: frozenset[str] | None = None) -> dict[str, Any]:
    """`record`, in the standard names, with its sample's media where it names them: as bytes, or
    as `Extent`s of the tar.

    Where it names no medium at all, its sample's files are its media, if they are as many as it has
    places for, or one in all. Numbered ones come by their numbers, others in the tar's order; and
    if no placeholder of a kind is in its texts, they stand before its first user turn.

    Args:
        stated: the kinds of media that it says it has; if it says none, files beside it are none.

    Raises:
        BadRecord: ``bad_media``, both ``image`` and ``images`` are given; `UNUSED`, there are more
            files than places.
    """
    sample = record.get(MEMBERS)
    located = {name: value for name, value in record.items() if name != MEMBERS}
    if not isinstance(sample, Members):
        return located
    found: set[str] = set()
    find = _finder(sample, found)
    named = False

    def place(_: str, entry: Any, is_part: bool) -> Any:
        nonlocal named
        named = named or not is_part or frames_of(entry)[1] is not None
        named = named or reference_of(entry) is not None
        return _located(entry, find)

    located = map_media(located, place)
    if stated == frozenset():
        return located
    if not named:
        return _inferred(located, sample, stated)
    left = [name for name in sample.files.keys() - found if kind_of_name(name) is not None]
    if left:
        names = ",".join(sorted(name[len(sample.key) + 1 :] for name in left))
        text = f"the record names other media than {names}: --ignore {names} leaves them out"
        raise BadRecord(UNUSED, text)
    return located


def _finder(sample: Members, found: set[str]) -> Find:
    """Return a sample's files by name; those that are asked for are added to `found`."""

    extensions = {name[len(sample.key) + 1 :].lower(): name for name in sample.files}

    def find(name: str) -> bytes | Extent | None:
        full = name if name in sample.files else extensions.get(name.lower())
        if full is None:
            return None
        found.add(full)
        return sample.files[full]

    return find


def _located(entry: Any, find: Find, depth: int = 0) -> Any:
    if isinstance(entry, str):
        content = find(entry)
        return entry if content is None else content
    if depth == _DEEPEST:
        return entry
    if isinstance(entry, list):
        return [_located(member, find, depth + 1) for member in entry]
    if isinstance(entry, dict):
        return {k: _located(v, find, depth + 1) if k in _PLACES else v for k, v in entry.items()}
    return entry


def _inferred(
    record: dict[str, Any], sample: Members, stated: frozenset[str] | None
) -> dict[str, Any]:
    names = [n for n in sample.files if media_in(n) is not None or n.lower().endswith(PAGES)]
    unread = [name for name in names if kind_of_name(name) is None]
    for kind, keys in LIST_KEYS.items():
        files = [name for name in names if kind_of_name(name) == kind]
        if not files:
            continue
        is_sole = len(names if stated is None else files) == 1
        if len(files) > _places(record, kind) and not is_sole:
            unread += files
        if len({re.sub(r"\d+\.", ".", name) for name in files}) == 1:  # but for their numbers
            files.sort(key=lambda name: (len(name), name))  # tars may have 10 before 2
        record[keys[0]] = [sample.files[name] for name in files]
        record.pop(keys[1], None)  # empty
    if unread:
        start = len(sample.key)
        suspects = [name for name in unread if name.count(".", start) > 1] or unread[1:] or unread
        raise BadRecord(
            UNUSED,
            f"the sample has {', '.join(name[start:] for name in names)[:200]}, and its record "
            "names none of them and has no place for each: name them in its own list, or leave "
            f"some out, such as --ignore {suspects[0][start:]}",
        )
    return record


def _places(record: Mapping[str, Any], kind: str) -> int:
    """Placeholders of a kind in a record's turns, or, if it has none, in its columns."""
    key = turn_key(record)
    turns = record[key] if key and isinstance(record[key], list | tuple) else ()
    contents = [content_of(turn)[1] for turn in turns] if key else list(record.values())
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = texts_of(contents)
    return sum(part_kind(p) == kind for p in parts) + sum(t.count(f"<{kind}>") for t in texts)


# -- columns of media ------------------------------------------------------------------------------


def may_hold_media(record: Mapping[str, Any]) -> bool:
    """Return whether a column besides the turns may say which media a record has: it is called so,
    or holds one, or bytes or objects of which nobody knows what they are."""
    columns = {name: value for name, value in record.items() if name not in TURN_KEYS}
    return not _MEDIA_COLUMNS.isdisjoint(columns) or any(
        media_in(value) is not None or _is_opaque(value) for value in columns.values()
    )


def _is_opaque(value: Any) -> bool:
    """Return whether a value is, or holds, what is not plain JSON."""
    if isinstance(value, OBJECT):
        return any(map(_is_opaque, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_opaque, value))
    return value is not None and not isinstance(value, str | int | float)


def _with_columns(record: Record) -> Record:
    """`record` with its media in the standard names; itself where it has turns or such media.

    Raises:
        BadRecord: ``bad_media``, a file's name is none.
    """
    if _NAMES.isdisjoint(record) or turn_key(record) is not None:
        return record
    if any(media_entries(record, kind)[1] for kind in LIST_KEYS):
        return record
    media = _files(record)
    if not media:
        images = [record[name] for name in _BYTES if isinstance(record.get(name), (bytes, *OBJECT))]
        if not images and (record.get("caption"), record.get("TEXT")) != (None, None):
            urls = (record[name] for name in _URLS if isinstance(record.get(name), str))
            images = [url for url in urls if url][:1]
        media = {"images": images} if images else {}
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


# -- documents -------------------------------------------------------------------------------------


def is_document(turns: Sequence[Any]) -> bool:
    """Return whether these turns of a record are a document."""
    return len(turns) == 1 and isinstance(turns[0], OBJECT) and turns[0].get("role") == DOCUMENT


def plain_document(record: Mapping[str, Any]) -> list[Record] | None:
    """The turns of a record that is a text; None where it has none.

    Raises:
        BadRecord: ``bad_turn``, its text is none; ``no_messages``, it may be the caption of a
            medium that is not there.
    """
    name = next((name for name in ("text", "txt") if record.get(name) is not None), None)
    if name is None:
        return None
    empty = sorted(_MEDIA_COLUMNS & record.keys())
    if empty:
        raise BadRecord(
            "no_messages",
            f"the record has a {name!r} and nothing in {empty[0]!r}: a caption needs its medium, "
            "and records of text alone (documents) have no such column",
        )
    text = record[name]
    if not isinstance(text, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(text)}, not text")
    return [{"role": DOCUMENT, "content": text}]


def _as_document(record: Record, parts: list[Any], *columns: str) -> Record:
    """`record` with a document of `parts` in place of some columns."""
    kept = {key: value for key, value in record.items() if key not in columns}
    return {**kept, "messages": [{"role": DOCUMENT, "content": parts}]}


def _text(text: Any) -> Record:
    return {"type": "text", "text": text}


def _image(image: Any) -> Record:
    return {"type": "image", "image": image}


# -- the table of dialects -------------------------------------------------------------------------


def _is_interleaved(record: Record) -> bool:
    texts = record["texts"]
    return (
        isinstance(texts, list)
        and bool(texts)
        and all(text is None or isinstance(text, str) for text in texts)
    )


def _interleaved(record: Record) -> Record:
    """Of OBELICS: ``texts`` and ``images`` of equal length, in each place one, and null in the
    other's."""
    texts, images = record["texts"], record.get("images")
    if not isinstance(images, list):
        text = "'texts' is a list of texts without a list of 'images' of the same length"
        raise BadRecord("no_messages", f"{text}: a document has an image or a text in each place")
    if len(texts) != len(images):
        lengths = f"'texts' has {len(texts)} entries and 'images' {len(images)}"
        raise BadRecord("bad_turn", f"{lengths}: in each place is a text or an image")
    parts: list[Any] = []
    for number, (text, image) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (image is None) and not (text == "" and image is not None):
            both = "neither a text nor an image" if text is None else "a text and an image"
            raise BadRecord("bad_turn", f"'texts' and 'images' have {both} at {number}")
        parts.append(_text(text) if image is None else _image(image))
    return _as_document(record, parts, "texts", "images")


def _is_of_pairs(record: Record) -> bool:
    texts, pair = record["texts"], {"user", "assistant"}
    if isinstance(texts, OBJECT):  # as `datasets` once stored lists of objects
        return pair <= texts.keys()
    if not isinstance(texts, list) or not texts:
        return False
    return all(isinstance(entry, OBJECT) and pair <= entry.keys() for entry in texts)


def _pairs(record: Record) -> Record:
    """Read FineVision and The Cauldron: ``texts`` of ``user`` and ``assistant``."""
    texts = record["texts"]
    if isinstance(texts, OBJECT):
        lists = [texts["user"], texts["assistant"]]
        if not all(isinstance(said, list) for said in lists) or len({*map(len, lists)}) > 1:
            text = "'user' and 'assistant' of 'texts' are not lists of equal length"
            raise BadRecord("bad_turn", text)
        texts = [{"user": u, "assistant": a} for u, a in zip(*lists, strict=True)]
    pairs = [(entry["user"], entry["assistant"]) for entry in texts]
    kept = {key: value for key, value in record.items() if key != "texts"}
    return {**kept, "messages": _messages(pairs)}


def _messages(pairs: Sequence[tuple[Any, Any]]) -> list[Record]:
    if not pairs:
        raise BadRecord("no_messages", "'texts' is empty")
    messages = []
    for number, pair in enumerate(pairs):
        for role, said in zip(("user", "assistant"), pair, strict=True):
            if not isinstance(said, str):
                text = f"{role!r} of entry {number} of 'texts' is {named(said)}, not text"
                raise BadRecord("bad_turn", text)
            messages.append({"role": role, "content": said})
    return messages


def _of_loongforge(record: Record) -> Record:
    """Of LoongForge: ``texts`` of turns, or ``prompts`` and ``captions``, and names of files."""
    texts, meta = record["texts"], record.get("_meta")
    if isinstance(meta, OBJECT) and "token_lens" in meta:
        text = "is a pack of samples (packidx export wds), not a record: read the sources"
        raise BadRecord("bad_record", f"the record {text} that were exported")
    kept = {k: v for k, v in record.items() if k not in ("texts", *_LISTED, *_KINDS)}
    if isinstance(texts, list):
        kept["messages"] = texts
    elif isinstance(texts, dict) and texts.get("captions") is not None:
        captions = list(_flat(texts["captions"]))
        prompts = list(_flat(texts.get("prompts") or [""] * len(captions)))
        if len(prompts) != len(captions):
            numbers = f"{len(prompts)} prompts, {len(captions)} captions"
            raise BadRecord("bad_turn", f"'texts' has {numbers}")
        kept["messages"] = _messages(list(zip(prompts, captions, strict=True)))
    else:
        text = f"'texts' is {named(texts)}, neither a list of turns nor prompts and captions"
        raise BadRecord("no_messages", text)
    stated = _stated_type(record)
    columns = _LISTED if stated is not None else _LISTED[:1]  # else a name is just a name
    files: Any = next((record[name] for name in columns if record.get(name) is not None), [])
    lists: dict[str, list[Any]] = {}
    for file in _flat(files):
        kind = _kind(file, stated)
        if (own := media_entries(kept, kind)[0]) is not None:
            raise BadRecord("bad_media", f"the record has {own!r} beside the files of its texts")
        lists.setdefault(LIST_KEYS[kind][0], []).append(file)
    return {**kept, **lists}


def _stated_type(record: Mapping[str, Any]) -> Any:
    """Return what LoongForge's records say of the kind of their media; None where they do not."""
    return next((record[key] for key in _KINDS if record.get(key) is not None), None)


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
    others = {"image": ("video", "audio"), "video": ("audio",), "audio": ("image",)}
    if stated == "text" or own in others.get(stated or "", ()):
        text = f"media_type says {stated}, but {cut(file)} is among the files of the texts"
        raise BadRecord("bad_media", text)
    kind = stated if stated in LIST_KEYS else own
    if kind is None:
        text = f"{cut(file)} is of no known kind: neither media_type nor its ending says which"
        raise BadRecord("bad_media", text)
    return kind


def _is_of_sentences(record: Record) -> bool:
    return isinstance(record["text_list"], list) and isinstance(record.get("image_info"), list)


def _sentences(record: Record) -> Record:
    """Of MMC4: ``text_list``, and ``image_info``, an object for each image with the number of the
    sentence that it stands before. Sentences are joined by a space."""
    texts = record["text_list"]
    before: dict[int, list[Any]] = {}
    for entry in record["image_info"]:
        if not isinstance(entry, OBJECT):
            text = f"an entry of 'image_info' is {named(entry)}, not an object"
            raise BadRecord("bad_media", text)
        stated = entry.get("matched_text_index")
        at = integer(stated, 0, len(texts) - 1, "matched_text_index", "bad_media")
        names = [entry[key] for key in ("image_name", "raw_url") if entry.get(key)]
        if at is None or not names:
            lacks = "matched_text_index" if at is None else "image_name or raw_url"
            text = f"an image of 'image_info' has no {lacks}: {cut(dict(entry))}"
            raise BadRecord("bad_media", text)
        before.setdefault(at, []).append(_image(names[0]))
    parts: list[Any] = []
    for number, sentence in enumerate(texts):
        if not isinstance(sentence, str):
            raise BadRecord("bad_turn", f"sentence {number} of 'text_list' is {named(sentence)}")
        parts += [_text(" "), *before.get(number, ()), _text(sentence)]
    return _as_document(record, parts[1:], "text_list", "image_info")


_DIALECTS: tuple[tuple[str, Callable[[Record], bool], Callable[[Record], Record]], ...] = (
    ("texts", _is_of_pairs, _pairs),
    ("texts", _is_interleaved, _interleaved),
    ("texts", lambda _: True, _of_loongforge),
    ("text_list", _is_of_sentences, _sentences),
)
"""A column, whether a record that has it and no turns is of a dialect, and its messages."""
