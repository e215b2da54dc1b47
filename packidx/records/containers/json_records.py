"""A record that is JSON, and what is wrong with one that is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.records.containers.base import attempted
from packidx.records.containers.blocks import TooLarge, size_of, too_large
from packidx.records.containers.compressed import Text

BLANK = b" \t\r\v\f"
_NO_NUMBER = re.compile("-?(NaN|Infinity|nan|inf)|None|True|False")


def decode(line: bytes, where: str = "") -> dict[str, Any]:
    """One line's JSON object.

    Args:
        line: the bytes.
        where: file and offset for the error's detail.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json``, ``bad_record`` (JSON, but not an object) or
            ``record_too_large``.
    """
    if isinstance(line, TooLarge):
        raise too_large(line.nbytes, line.limit, where)
    try:
        record = orjson.loads(line)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            text = f"byte {wrong.start} is not UTF-8: write the file as UTF-8{where}"
            raise BadRecord("bad_utf8", text) from None
        raise BadRecord("bad_json", f"{_explained(error, line)}{where}") from None
    if not isinstance(record, dict):
        kind = {list: "a list", str: "text", type(None): "null", bool: "a boolean"}
        text = f"the record is {kind.get(type(record), 'a number')}, not an object{where}"
        raise BadRecord("bad_record", text)
    return record


_HINTS = (
    ("unexpected end", "the record is cut"),
    ("surrogate", "a \\u escape is half a surrogate pair"),
    ("depth limit", "the record is nested too deeply"),
    ("recursion limit", "the record is nested too deeply"),
    ("infinity", "a number is too large"),
    ("out of range", "a number is too large"),
    ("control character", "a text holds a control character that is not escaped"),
)
"""Words of the decoder's message, and what is wrong with the record then."""


def _explained(error: ValueError, line: bytes) -> str:
    """What is wrong with a record that is not JSON, in a user's words, and where."""
    message = str(getattr(error, "msg", error))
    at = getattr(error, "pos", None)
    text = message if at is None else f"{message} at character {at} of the record"
    hint = next((hint for words, hint in _HINTS if words in message.lower()), None)
    if hint is None and not line.strip(b"\0" + BLANK):
        hint = "the record is NUL bytes, as a file that was not written to its end has them"
    if hint is None and at is not None:
        wrong = _NO_NUMBER.match(str(getattr(error, "doc", "")), at)
        hint = f"{wrong[0]} is no JSON value" if wrong else None
    return text if hint is None else f"{hint}: {text}"


class JsonText(Text):
    """Text whose items are JSON, each by itself."""

    def records(
        self, blocks: Iterator[bytes], at: int, begun: bool, header: None
    ) -> Iterator[tuple[int, int, dict[str, Any] | BadRecord]]:
        for offset, raw in self.items(blocks, at, begun):
            yield offset, size_of(raw), attempted(decode, raw)

    def decode(self, raw: bytes, where: str, header: None) -> dict[str, Any]:
        return decode(raw, where)
