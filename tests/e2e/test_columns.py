"""Columns that are named or ignored, token ids that are given, and the Hub."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main
from PIL import Image
from transformers import AutoTokenizer

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import SourceError
from packidx.torch import PackedDataset


def png(side: int) -> dict[str, bytes | None]:
    sink = io.BytesIO()
    Image.new("RGB", (28 * side, 56)).save(sink, "PNG")
    return {"bytes": sink.getvalue(), "path": None}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """As MMMU has it: each image in a column of its own, options beside the question."""
    rows = [
        {
            "id": f"q{number}",
            "question": "Which of them?",
            "options": ["this", "that"],
            "answer": "That one.",
            "image_1": png(number + 2),
            "image_2": png(3) if number % 2 else None,
            "topic": "art",
        }
        for number in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mmmu.parquet")
    return str(tmp_path / "mmmu.parquet")


def test_what_is_stated_is_read_and_what_is_ignored_is_not(
    table: str, tmp_path: Path, processors: Path
) -> None:
    processor = str(processors / "qwen2.5-vl")
    given = {"processor": processor, "workers": 1}
    with pytest.raises(SourceError, match="--ignore image_1,image_2,options "):
        estimate_lengths(table, tmp_path / "none", **given, max_rejected=1)
    said = {"columns": {"images": "image_1,image_2"}, "ignore": ["options"]}
    told = estimate_lengths(table, tmp_path / "l", **given, **said)
    assert told.rejected == {} and told.methods == {"exact": 6}
    columns = {"topic": "carried", "options": "ignored"}
    columns |= dict.fromkeys(("id", "image_1", "image_2", "question", "answer"), "used")
    assert told.sources[0]["columns"] == columns
    again = estimate_lengths(table, tmp_path / "l", **given, **said)
    assert again.existed and again.sources == told.sources

    plan_packs(tmp_path / "l", tmp_path / "index", capacity=4096)
    index = open_index(tmp_path / "index")
    assert index.manifest["sources"][0]["columns"] == columns
    dataset = PackedDataset(index, ProcessorEncoder(processor))
    lengths = pq.read_table(next((tmp_path / "l").glob("part-00000*"))).to_pydict()
    built = sum(len(dataset[number].joined()["input_ids"]) for number in range(len(dataset)))
    assert built == sum(lengths["length"]) and sum(lengths["num_images"]) == 9


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
