"""Leftovers: what a record holds, and its dialect does not consume.

A column that the dialect does not consume is a leftover if it holds a medium (bytes, a file's name,
base64), objects, or prose. So is every key of a message or a content part that nothing reads. Other
values, such as numbers, ids and single words, are carried along, and so is a text that stands word
for word in a column that is read. Names of columns mean nothing, but for the id of a medium in a
record that has none: its image lies somewhere else.

Example: of `{"question": "Why?", "answer": "So.", "cot": "It is so.", "split": "train"}` the column
`cot` is a leftover, and `split` is carried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import PAIR_SIDES
from packidx.records.dialects.preference import BESIDE
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.layout import IDS, UNUSED, hidden_columns, own_columns
from packidx.records.media.held import NUMBERS, content_in
from packidx.records.media.references import LIST_KEYS, TURN_KEYS, is_empty

USED, CARRIED, IGNORED, NOT_USED = "used", "carried", "ignored", "not used"
"""Uses of a column."""

_ORDER = (CARRIED, IGNORED, NOT_USED, USED)
_SHARED = frozenset((*IDS, "_text_tokens"))
_WITH_MEDIA = _SHARED | {"mm_inputs_meta", *(key for keys in LIST_KEYS.values() for key in keys)}
_OF_PAIRS = frozenset((*PAIR_SIDES, *BESIDE, *TURN_KEYS, "prompt"))
_MASKS = frozenset(("loss_mask", "loss_weights", "assistant_masks", "completion_mask"))


def merge_columns(columns: dict[str, str], others: Mapping[str, str]) -> None:
    """Add the columns of other records; of two uses of a column the later in `_ORDER` counts."""
    for name, use in others.items():
        columns[name] = max(columns.get(name, use), use, key=_ORDER.index)


class LeftoverCheck:
    """Refuse records with leftovers.

    Args:
        layout: how their source names things; its `ignore` acknowledges leftovers.
        columns: is given every column and key of a message that is seen, and its use.
    """

    def __init__(self, layout: Layout, columns: dict[str, str]) -> None:
        self._layout, self._columns = layout, columns
        self._ignored = frozenset(layout.ignore)
        self._hidden = hidden_columns(layout)

    def check(self, record: Mapping[str, Any], raw: RawRecord) -> None:
        """Raise a BadRecord (`UNUSED`) if a record has a leftover.

        Args:
            record: as it stands in its shard, or as a transform returned it.
            raw: the same, read; of a record of no dialect only keys are checked.
        """
        left: list[tuple[str, str]] = []
        has_media = (
            any(raw.listed.values()) or raw.num_media > 0
        )  # first: it adds to what is consumed
        if raw.dialect is not None and raw.dialect.columns:
            is_tokens = "input_ids" in raw.dialect.columns
            consumed = (_SHARED if is_tokens else _WITH_MEDIA) | raw.dialect.columns | raw.consumed
            if self._layout.pair or not self._layout.stated_columns.isdisjoint(PAIR_SIDES):
                consumed |= _OF_PAIRS
            if self._layout.columns:
                consumed = consumed - self._hidden | own_columns(self._layout, consumed)
            left += self._leftovers(record, consumed, has_media)
        keys = dict.fromkeys(key for key in raw.unknown_keys if key not in self._ignored)
        left += [(key, "a key of a message") for key in keys]
        for name, _ in left:
            merge_columns(self._columns, {name: NOT_USED})
        if left:
            said = ", ".join(f"{name!r} ({what})" for name, what in left)
            names = ",".join(name for name, _ in left)
            text = f"nothing reads {said}: --ignore {names} leaves it out"
            raise BadRecord(UNUSED, f"{text}; docs/data.md says how to read it")

    def _leftovers(
        self, record: Mapping[str, Any], consumed: frozenset[str], has_media: bool
    ) -> Iterator[tuple[str, str]]:
        columns, ignored = self._columns, self._ignored
        said: list[str] | None = None
        for name, value in record.items():
            if name in consumed or name in ignored:
                if name not in columns:
                    columns[name] = IGNORED if name in ignored else USED
                continue
            if name not in columns:
                columns[name] = CARRIED
            if value is None or type(value) in NUMBERS:
                continue
            what, ids = content_in(value), record.get("input_ids")
            if what is None and isinstance(ids, list) and isinstance(value, list):
                is_binary = 0 in value and 1 in value and all(item in (0, 1) for item in value)
                is_mask = len(value) == len(ids) and (-100 in value or is_binary)
                if (is_mask or name in _MASKS) and not name.endswith("type_ids"):
                    what = "a mask"
            if what is not None:
                if said is None:
                    read = [record[own] for own in consumed if own in record]
                    said = [text for text in read if isinstance(text, str)]
                texts = value if isinstance(value, list | tuple) else [value]
                if not all(isinstance(text, str) and text in said for text in texts):
                    yield name, what
        for kind in LIST_KEYS:
            name = f"{kind}_id"
            if name in record and not (is_empty(record[name]) or name in ignored or has_media):
                yield name, f"the id of a medium ({kind}) that the record does not hold"
