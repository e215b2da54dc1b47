"""TRL's own encoding of vision-language samples as an encoder for `packidx estimate --encode`.

    PROCESSOR=data/processors/qwen2.5-vl PYTHONPATH=examples packidx estimate data/corpus \\
        -o data/lengths-trl --encode "encode_trl:TrlEncoder()" --media-root data/corpus

Whoever trains with TRL plans with TRL's lengths: its collator builds one sample at a time here, and
`PackedDataset(index, TrlEncoder())` builds the same ones in training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from packidx.digests import digest
from packidx.encode.loading import load_processor

ROLES = {"human": "user", "gpt": "assistant"}


class TrlEncoder:
    """``encoder(record)`` is what `DataCollatorForVisionLanguageModeling` makes of one record.

    Args:
        processor: folder or name of the processor; the environment variable PROCESSOR by default.
    """

    def __init__(self, processor: str | None = None) -> None:
        from transformers import AutoProcessor
        from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

        self.name = processor or os.environ["PROCESSOR"]
        self._collator = DataCollatorForVisionLanguageModeling(
            AutoProcessor.from_pretrained(self.name)
        )

    def fingerprint(self) -> str:
        """Of the processor's files and of the code that uses them."""
        code = json.dumps({name: version(name) for name in ("trl", "transformers")})
        return digest(
            b"encode_trl 1", code.encode(), load_processor(self.name).fingerprint().encode()
        )

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a record whose images are opened: ``input_ids``, ``labels`` and pixels."""
        images = list(_opened(record))
        batch = self._collator([{"messages": _messages(record, images), "images": images}])
        # Of one sample nothing is padded, and the reader has masks of its own.
        return {key: value for key, value in batch.items() if key != "attention_mask"}


def _opened(record: Mapping[str, Any]) -> Iterator[Any]:
    """The record's own list of images, which `_messages` adds those inside messages to."""
    listed = record.get("images", record.get("image", []))
    yield from listed if isinstance(listed, list) else [listed]


def _messages(record: Mapping[str, Any], images: list[Any]) -> list[dict[str, Any]]:
    """Messages as TRL takes them: parts of text, and ``{"type": "image"}`` for the next image."""
    turns = next(
        record[key] for key in ("messages", "conversations", "conversation") if key in record
    )
    messages = []
    for turn in turns:
        content: list[dict[str, str]] = []
        given = turn.get("content", turn.get("value"))
        for part in [given] if isinstance(given, str) else given:
            if isinstance(part, str) or part["type"] == "text":
                content += _text_parts(part if isinstance(part, str) else part["text"])
            else:
                content.append({"type": "image"})
                images.append(part["image"])
        role = turn.get("role", turn.get("from"))
        messages.append({"role": ROLES.get(role, role), "content": content})
    return messages


def _text_parts(text: str) -> Iterator[dict[str, str]]:
    for number, piece in enumerate(text.split("<image>")):
        if number:
            yield {"type": "image"}
        if piece:
            yield {"type": "text", "text": piece}
