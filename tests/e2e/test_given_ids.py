"""Records that hold token ids are trained on these ids, unless some stand for media."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from transformers import AutoTokenizer

TEXT = [11, 12, 13, 14]


@pytest.mark.parametrize("pad", ["<|image_pad|>", "<|video_pad|>"])
@pytest.mark.parametrize("more", [{}, {"labels": [-100, -100, -100, -100, 14]}])
def test_ids_that_stand_for_media_are_refused(
    pad: str, more: dict[str, Any], processors: Path, tmp_path: Path
) -> None:
    processor = processors / "qwen2.5-vl"
    token = AutoTokenizer.from_pretrained(processor).convert_tokens_to_ids(pad)
    ids = [TEXT[0], token, *TEXT[1:]]
    records = [{"input_ids": TEXT}, {"input_ids": ids, **more}, {"input_ids": [*TEXT, 15]}]
    data = tmp_path / "ids.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["estimate", str(data), "-o", str(tmp_path / "lengths"), "--workers", "1"]
    assert main([*command, "--processor", str(processor)]) == 0
    rows = pq.read_table(next((tmp_path / "lengths").glob("part-00000*"))).to_pylist()
    assert [row["reason"] for row in rows] == [None, "media_token_in_text", None]
    assert [row["length"] for row in rows if row["reason"] is None] == [4, 5]
