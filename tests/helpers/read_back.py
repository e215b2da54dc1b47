"""Records through `estimate`, `plan` and the reader: each one's row, and the text it trains on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from packidx_cli.main import main

from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset


@dataclass(frozen=True)
class Outcome:
    """One record."""

    reason: str | None
    """None if it is accepted."""
    detail: str | None
    length: int
    trained: str | None
    """The text of its label tokens, as the reader gives them; None if it is rejected."""


def read_back(
    records: Sequence[dict[str, Any]], processor: Path, folder: Path, options: Sequence[str] = ()
) -> list[Outcome]:
    """Write `records` as JSON Lines, count and plan them, and read the packs."""
    path, lengths, index = (str(folder / name) for name in ("r.jsonl", "lengths", "index"))
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["estimate", path, "-o", lengths, "--processor", str(processor), "--workers", "1"]
    assert main([*command, "--max-rejected", "1", "--quiet", *options]) == 0
    rows = pq.read_table(sorted((folder / "lengths").glob("part-*.parquet"))).to_pylist()
    trained: dict[int, str] = {}
    if any(row["status"] == "ok" for row in rows):
        plan = ["plan", lengths, "-o", index, "--capacity", "8192", "--quiet"]
        assert main(plan) == 0
        encoder = ProcessorEncoder(str(processor))
        for pack in PackedDataset(index, encoder):
            joined = pack.joined()
            borders = joined["cu_seqlens"].tolist()
            for number, sample_id in enumerate(joined["sample_ids"].tolist()):
                labels = joined["labels"][borders[number] : borders[number + 1]]
                tokenizer: Any = encoder.files.tokenizer
                trained[sample_id] = tokenizer.decode(
                    labels[labels >= 0].tolist(), skip_special_tokens=False
                )
    return [
        Outcome(row["reason"], row["detail"], row["length"], trained.get(row["sample_id"]))
        for row in rows
    ]
