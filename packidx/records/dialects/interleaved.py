"""Interleaved documents: texts with images among them."""

from __future__ import annotations

from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media
from packidx.records.dialects.messages import document
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.references import OBJECT, cut, integer, named


class Obelics:
    """OBELICS: ``texts`` and ``images`` of equal length, in each place one, and null in the other.

    ``{"texts": ["One:", null], "images": [null, "a.png"]}``
    """

    name = "obelics"
    columns = frozenset(("texts", "images"))

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        texts, images = raw.columns.get("texts"), raw.columns.get("images")
        if not isinstance(texts, list) or not texts:
            return None
        if not all(text is None or isinstance(text, str) for text in texts):
            return None
        if not isinstance(images, list):
            text = "'texts' is a list of texts without a list of 'images' of the same length"
            raise BadRecord(
                "no_messages", f"{text}: a document has an image or a text in each place"
            )
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
        return document(raw, parts)


class Mmc4:
    """MMC4: ``text_list``, and ``image_info``, an object for each image with the number of the
    sentence that it stands before. Sentences are joined by a space.

    ``{"text_list": ["One."], "image_info": [{"image_name": "a.png", "matched_text_index": 0}]}``
    """

    name = "mmc4"
    columns = frozenset(("text_list", "image_info"))

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        texts, infos = raw.columns.get("text_list"), raw.columns.get("image_info")
        if not isinstance(texts, list) or not isinstance(infos, list):
            return None
        before: dict[int, list[Any]] = {}
        for entry in infos:
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
            before.setdefault(at, []).append(names[0])
        parts: list[str | Media] = []
        for number, sentence in enumerate(texts):
            if not isinstance(sentence, str):
                raise BadRecord(
                    "bad_turn", f"sentence {number} of 'text_list' is {named(sentence)}"
                )
            parts += [" "] if number else []
            parts += [raw.medium("image", name) for name in before.get(number, ())]
            parts.append(sentence)
        return document(raw, parts)
