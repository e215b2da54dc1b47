"""TRL's own encoding of vision-language samples as an encoder for `packidx estimate --encode`.

    PROCESSOR=data/processors/qwen2.5-vl PYTHONPATH=examples packidx estimate data/corpus \\
        -o data/lengths-trl --encode "encode_trl:TrlEncoder()" --media-root data/corpus

Plan with TRL's lengths if you train with TRL: its collator builds one sample at a time here, and
`PackedDataset(index, TrlEncoder())` builds the same ones in training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from packidx.digests import digest_parts
from packidx.encode.loading import load_processor


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
        return digest_parts(
            b"encode_trl 1", code.encode(), load_processor(self.name).fingerprint().encode()
        )

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a record: ``input_ids``, ``labels`` and pixels."""
        messages = [
            {"role": message["role"], "content": _parts(message["content"])}
            for message in record["messages"]
        ]
        batch = self._collator([{"messages": messages, "images": record.get("images", [])}])
        # Of one sample nothing is padded, and the reader has masks of its own.
        return {key: value for key, value in batch.items() if key != "attention_mask"}


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return content as TRL takes it: parts of text, and ``{"type": "image"}`` for each image."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part if part["type"] == "text" else {"type": part["type"]} for part in content]
