"""Records of random lengths, and an encoder that counts their words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CAPACITY = 256


class Words:
    """A token for each word of a record's text, the first number being the record's own."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [int(word) for word in record["text"].split()]}

    def count(self, record: dict[str, Any]) -> int:
        return len(record["text"].split())

    def fingerprint(self) -> str:
        return "words"


class OtherWords(Words):
    """An encoder with another fingerprint, or with none."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def fingerprint(self) -> str | None:  # type: ignore[override]
        return self.name


def write_records(path: Path, number: int, seed: int = 0) -> None:
    draw = random.Random(seed)
    with path.open("w") as file:
        for row in range(number):
            length = min(CAPACITY + 20, max(1, int(draw.lognormvariate(3.2, 1.0))))
            text = " ".join(str(n) for n in [row, *range(length - 1)])
            file.write(json.dumps({"id": f"r{row}", "text": text}) + "\n")
