"""What is counted is what training's own tokenizer and processor make, or is not called exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import tokenizer_trials
import transformers

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.errors import BadRecord

WORDS = (10, 50, 200)


@pytest.fixture
def folder(processors: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(processors / "qwen2.5-vl", tmp_path / "processor"))


def change(path: Path, **changes: Any) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))


def rows(source: Path, processor: Path, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """Of the table, and what came of comparing."""
    out = source.with_suffix(".lengths")
    options = {"workers": 1, **options}
    summary = estimate_lengths(str(source), out, processor=processor, **options)
    tables = [pq.read_table(path) for path in sorted(out.glob("part-*"))]
    return [row for table in tables for row in table.to_pylist()], summary.compared


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("num", "num_texts"), [(9, 12), pytest.param(60, 50, marks=pytest.mark.slow)]
)
def test_tokenizers_of_every_make_and_class(num: int, num_texts: int, tmp_path: Path) -> None:
    tally = tokenizer_trials.run(tmp_path / "trials", num, num_texts)
    assert tally["wrong"] == 0
    assert tally["exact"] >= 0.95 * tally["rows"] > 0


CUT = {
    "a window alone": ({"model_max_length": 70}, None, None),
    "truncation": ({"truncation": True, "model_max_length": 100}, None, 100),
    "a length": ({"max_length": 120}, None, 120),
    "both": ({"truncation": True, "max_length": 90}, None, 90),
    "in the file": (
        {},
        {"direction": "Right", "max_length": 80, "strategy": "LongestFirst", "stride": 0},
        80,
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_what_a_processor_cuts_is_rejected(case: str, folder: Path, tmp_path: Path) -> None:
    stated, in_file, limit = CUT[case]
    change(folder / "tokenizer_config.json", **stated)
    if in_file is not None:
        change(folder / "tokenizer.json", truncation=in_file)
    talks = [chat("word " * number) for number in WORDS]
    real = transformers.AutoProcessor.from_pretrained(folder)
    lengths = []
    for talk in talks:
        text = [{"type": "text", "text": talk["messages"][0]["content"]}]
        messages = [{"role": "user", "content": text}]
        built = real.apply_chat_template(messages, tokenize=True, return_dict=True)
        lengths.append(len(built["input_ids"][0]))
    found, _ = rows(write(tmp_path / "a.jsonl", talks), folder)
    kept = [row["length"] for row in found if row["method"] == "exact"]
    cut = [row["reason"] for row in found if row["status"] == "rejected"]
    assert load_processor(folder).limit == limit
    assert (kept, cut) == ((lengths, []) if limit is None else (lengths[:2], ["cut_off"]))
    fingerprints = {ProcessorEncoder(each).fingerprint() for each in (folder, real)}
    assert fingerprints == {load_processor(folder).fingerprint()}
    if limit is not None:
        with pytest.raises(BadRecord, match=f"leaves {limit}:"):
            ProcessorEncoder(folder)(talks[2])


PROCESSING = """
from transformers import Qwen2_5_VLProcessor
class MyProcessor(Qwen2_5_VLProcessor):
    def __call__(self, images=None, text=None, videos=None, **more):
        text = [text] if isinstance(text, str) else text
        text = [each + " and forty words more" * 8 for each in text]
        return super().__call__(images=images, text=text, videos=videos, **more)
"""


@pytest.mark.parametrize("family", ["Qwen2_5_VLProcessor", "MyProcessor"])
def test_code_of_its_own(family: str, folder: Path, tmp_path: Path) -> None:
    (folder / "processing_mine.py").write_text(PROCESSING)
    code = {"AutoProcessor": "processing_mine.MyProcessor"}
    change(folder / "preprocessor_config.json", auto_map=code, processor_class=family)
    (folder / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    source = write(tmp_path / "a.jsonl", [chat("Who?")])
    [row], compared = rows(source, folder)
    assert row["method"] == "heuristic" and "--trust-remote-code" in compared["reason"]
    alone = row["length"]
    [row], compared = rows(source, folder, trust_remote_code=True)
    assert (row["method"], row["length"]) == ("exact", alone + 40), compared
    built = ProcessorEncoder(folder, trust_remote_code=True)(chat("Who?"))
    assert len(built["input_ids"]) == row["length"]
    manifest = json.loads((source.with_suffix(".lengths") / "manifest.json").read_bytes())
    assert manifest["options"]["trust_remote_code"] is True
    assert rows(source, folder)[0][0]["method"] == "heuristic"  # nothing of it is taken over


TOKENIZING = """
from transformers import Qwen2Tokenizer
class MyTokenizer(Qwen2Tokenizer):
    def apply_chat_template(self, conversation, tools=None, **more):
        more_turns = [] if tools is None else [{"role": "user", "content": "You have tools."}]
        return super().apply_chat_template(conversation + more_turns, tools=tools, **more)
"""


def test_records_of_a_tokenizer_with_code_of_its_own_are_built(
    folder: Path, tmp_path: Path
) -> None:
    """A kind that comes behind all records that the parent reads, too."""
    for path in folder.glob("*processor_config.json"):
        path.unlink()
    (folder / "tokenization_mine.py").write_text(TOKENIZING)
    template = folder / "chat_template.jinja"
    template.write_text("{% if tools %}{{ tools | tojson }}{% endif %}" + template.read_text())
    code = {"AutoTokenizer": [None, "tokenization_mine.MyTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=code, tokenizer_class="MyTokenizer")
    real = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    plain = [chat(f"Who is number {number}?") for number in range(10)]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    for name, records in {
        "plain": plain,
        "tools": [{**record, "tools": tools} for record in plain],
        "behind": [*plain * 60, chat("What?", tools=tools)],
    }.items():
        source = write(tmp_path / f"{name}.jsonl", records)
        for workers in (1, 2):
            options = {"trust_remote_code": True, "workers": workers, "fresh": True}
            found, compared = rows(source, folder, **options)
            for row, record in zip(found, records, strict=True):
                built = real.apply_chat_template(
                    record["messages"], tools=record.get("tools"), return_dict=True
                )
                assert (row["length"], row["method"]) == (len(built["input_ids"]), "exact")
                assert row["detail"] == "built by the processor"
        if name != "plain":
            differing = {**compared.get("built", {}), **compared.get("rare", {})}
            assert "text, tools" in differing
