"""Documents: text, with images among it or without, that is trained on as a whole.

No chat template is around a document, and nobody asks for it. Its one turn has the role
``document``, and what it says is text or a list of parts, as in any other turn. Records that are
written otherwise are brought to that form:

- ``{"text": …}``, where nothing else of the record says what is trained on;
- OBELICS: ``texts`` and ``images`` of equal length, in each place a text or an image, and null in
  the other's;
- MMC4: ``text_list`` and ``image_info``, an object for each image with the number of the sentence
  that it stands before. Sentences are joined by a space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.columns import MEDIA_COLUMNS
from packidx.records.layout import TURN_KEYS
from packidx.records.media.references import OBJECT, cut, integer, named

DOCUMENT = "document"
"""The role of a document's turn."""
TEXT_LIST = "text_list"
_TEXTS = ("text", "txt")
_IMAGE_INFO = "image_info"
_NAMES = ("image_name", "raw_url")  # of an image of MMC4: its file, or where that was


def is_document(turns: Sequence[Any]) -> bool:
    """Whether these turns of a record are a document."""
    return len(turns) == 1 and isinstance(turns[0], OBJECT) and turns[0].get("role") == DOCUMENT


def document(content: str | list[Any]) -> list[dict[str, Any]]:
    """The turns of a document that says `content`."""
    return [{"role": DOCUMENT, "content": content}]


def plain_document(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The turns of a record that is a text; None where it has none.

    Raises:
        BadRecord: ``bad_turn``, its text is none; ``no_messages``, it may be the caption of a
            medium that is not there.
    """
    name = next((name for name in _TEXTS if record.get(name) is not None), None)
    if name is None:
        return None
    empty = sorted(MEDIA_COLUMNS & record.keys())
    if empty:
        raise BadRecord(
            "no_messages",
            f"the record has a {name!r} and nothing in {empty[0]!r}: a caption needs its medium, "
            "and records of text alone (documents) have no such column",
        )
    text = record[name]
    if not isinstance(text, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(text)}, not text")
    return document(text)


def is_interleaved(texts: Any) -> bool:
    """Whether ``texts`` are those of a document: a list of texts and nulls alone."""
    if not texts or not isinstance(texts, list):
        return False
    return all(text is None or isinstance(text, str) for text in texts)


def with_interleaved(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with the turn of the document that its ``texts`` and ``images`` are.

    Raises:
        BadRecord: ``no_messages`` or ``bad_turn``.
    """
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
    kept = {key: value for key, value in record.items() if key not in ("texts", "images")}
    return {**kept, "messages": document(parts)}


def is_sentences(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of MMC4."""
    return (
        isinstance(record.get(TEXT_LIST), list)
        and isinstance(record.get(_IMAGE_INFO), list)
        and all(record.get(key) is None for key in TURN_KEYS)
    )


def with_sentences(record: dict[str, Any]) -> dict[str, Any]:
    """`record`, of MMC4, with the turn of the document that it is.

    Raises:
        BadRecord: ``bad_turn`` or ``bad_media``.
    """
    sentences = record[TEXT_LIST]
    before: dict[int, list[Any]] = {}
    for entry in record[_IMAGE_INFO]:
        at, image = _placed(entry, len(sentences))
        before.setdefault(at, []).append(image)
    parts: list[Any] = []
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise BadRecord("bad_turn", f"sentence {number} of 'text_list' is {named(sentence)}")
        parts += [_text(" "), *before.get(number, ()), _text(sentence)]
    kept = {key: value for key, value in record.items() if key not in (TEXT_LIST, _IMAGE_INFO)}
    return {**kept, "messages": document(parts[1:])}


def _placed(entry: Any, num_sentences: int) -> tuple[int, dict[str, Any]]:
    if not isinstance(entry, OBJECT):
        raise BadRecord("bad_media", f"an entry of 'image_info' is {named(entry)}, not an object")
    stated = entry.get("matched_text_index")
    at = integer(stated, 0, num_sentences - 1, "matched_text_index", "bad_media")
    if at is None:
        text = f"an image of 'image_info' has no matched_text_index: {cut(dict(entry))}"
        raise BadRecord("bad_media", text)
    name = next((entry[key] for key in _NAMES if entry.get(key)), None)
    if name is None:
        text = f"an image of 'image_info' has neither image_name nor raw_url: {cut(dict(entry))}"
        raise BadRecord("bad_media", text)
    return at, _image(name)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}
