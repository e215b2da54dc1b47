"""Records that are trained on as a whole, without a chat template: documents, and token ids."""

from __future__ import annotations

from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media
from packidx.records.dialects.messages import build_document
from packidx.records.dialects.raw_record import MEDIA_COLUMNS, RawRecord
from packidx.records.media import references as refs


def read_tokens(raw: RawRecord) -> Conversation | None:
    """``input_ids``, and ``labels`` where not all of them are trained on: lists, tuples, NumPy
    arrays or Arrow lists of integers."""
    ids, stated = raw.columns.get("input_ids"), raw.columns.get("labels")
    if ids is None:
        return None
    tokens = _check_ids(ids, "input_ids", 0)
    labels = None if stated is None else _check_ids(stated, "labels", -100)
    if labels is not None and len(labels) != len(tokens):
        raise BadRecord("bad_labels", f"{len(labels)} labels for {len(tokens)} input_ids")
    return Conversation((), raw.text_tokens, input_ids=tokens, labels=labels)


def _check_ids(value: Any, name: str, extra: int) -> list[int]:
    """Return a list of tokens, or of `extra` numbers."""
    value = value.as_py() if hasattr(value, "as_py") else value
    items = value.tolist() if hasattr(value, "tolist") else value
    wrong = ""
    if not isinstance(items, list | tuple):
        wrong = f"is {refs.name_type(value)}, not a list of integers"
    elif not items:
        wrong = "is empty"
    elif not {*map(type, items)} <= {int}:
        holds = "holds a boolean, and is" if bool in map(type, items) else "is"
        wrong = f"{holds} {refs.clip_repr(items)}, not a list of integers"
    elif bad := [item for item in items if not 0 <= item <= refs.MAX_TOKENS and item != extra]:
        wrong = f"holds {bad[0]} at {items.index(bad[0])}, which is not a token"
    if wrong:
        raise BadRecord(f"bad_{name}", f"{name!r} {wrong}")
    return list(items)


def read_text(column: str, raw: RawRecord) -> Conversation | None:
    """A text in a column of its own, in a record without media."""
    text = raw.columns.get(column)
    if text is None:
        return None
    if empty := sorted(MEDIA_COLUMNS & raw.columns.keys()):
        text = f"the record has a {column!r} and nothing in {empty[0]!r}: a caption needs a medium"
        raise BadRecord("no_messages", f"{text}, and records of text alone have no such column")
    raw.unknown_keys += ["role"] * bool(raw.columns.get("role"))  # one message, and no document
    return build_document(raw, [refs.text_of(text, column)])


def read_obelics(raw: RawRecord) -> Conversation | None:
    """OBELICS: ``texts`` and ``images`` of equal length, in each place one, and null in the other.

    ``{"texts": ["One:", null], "images": [null, "a.png"]}``
    """
    texts, images = raw.columns.get("texts"), raw.columns.get("images")
    if not isinstance(texts, list) or not texts or not {*map(type, texts)} <= {str, type(None)}:
        return None
    if not isinstance(images, list):
        raise BadRecord("no_messages", "'texts' is a list without a list of 'images' beside it")
    if len(texts) != len(images):
        lengths = f"'texts' has {len(texts)} entries and 'images' {len(images)}"
        raise BadRecord("bad_turn", f"{lengths}: in each place is a text or an image")
    parts: list[str | Media] = []
    for number, (text, image) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (image is None) and not (text == "" and image is not None):
            both = "neither a text nor an image" if text is None else "a text and an image"
            raise BadRecord("bad_turn", f"'texts' and 'images' have {both} at {number}")
        parts.append(text if image is None else raw.medium("image", image))
    raw.listed.pop("image", None)  # its entries have places of their own
    return build_document(raw, parts)


def read_mmc4(raw: RawRecord) -> Conversation | None:
    """MMC4: ``text_list``, and ``image_info``, an object for each image with the number of the
    sentence that it stands before. Sentences are joined by a space.

    ``{"text_list": ["One."], "image_info": [{"image_name": "a.png", "matched_text_index": 0}]}``
    """
    texts, infos = raw.columns.get("text_list"), raw.columns.get("image_info")
    if not isinstance(texts, list) or not isinstance(infos, list):
        return None
    before: dict[int, list[Any]] = {}
    for entry in infos:
        info = entry if isinstance(entry, refs.OBJECT) else {}
        stated = info.get("matched_text_index")
        at = refs.check_integer(stated, 0, len(texts) - 1, "matched_text_index", "bad_media")
        name = info.get("image_name") or info.get("raw_url")
        if at is None or not name:
            text = f"'image_info' has {refs.clip_repr(entry)}, without matched_text_index and"
            raise BadRecord("bad_media", f"{text} image_name or raw_url")
        before.setdefault(at, []).append(name)
    parts: list[str | Media] = []
    for number, sentence in enumerate(texts):
        text = refs.text_of(sentence, f"sentence {number} of text_list")
        parts += [" "] if number else []
        parts += [raw.medium("image", name) for name in before.get(number, ())]
        parts.append(text)
    return build_document(raw, parts)
