"""What is counted as `exact` is what the real processor makes of a record's own messages.

Strings stay strings, lists lists, empty parts parts; tools, reasoning and all roles are handed on.
Where a template cannot show the record's form, the row says which was taken, and the processor is
given that one.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_processors
import family_processors_tiles as tiles
import numpy as np
import other_processors
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from PIL import Image
from processors import tokenizer_alone, trl_template

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.records.read import parse_record

NUM_RECORDS = 25
WORDS = [
    *("weather", "in Köln", "is", "12 °C", "漢字", "🙂", "it's", "```"),
    *("\n", "a\n\nb", " ", "\t"),
]
TOOL = {"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}
TOOL["parameters"] = {"type": "object", "properties": {"what": {"type": "string"}}}
TOOLS = [{"type": "function", "function": TOOL}]
SIZES = [(64, 48), (337, 211), (300, 100)]
TOKENIZERS = ("cohere2", "deepseekv3", "gemma4", "gptoss", "idefics3", "llama3_1", "qwen2_5")


def text(rng: random.Random, least: int = 1) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(least, 8)))


def content(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.5:
        return text(rng, 0)
    texts = [text(rng, 0) if rng.random() < 0.8 else "" for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return [{"type": "text", "text": each} for each in texts]


def asked(rng: random.Random, media: bool) -> Any:
    said = content(rng)
    if not media or rng.random() < 0.5:
        return said
    parts = said if isinstance(said, list) else [{"type": "text", "text": said}]
    image = {"type": "image", "image": f"{rng.randrange(len(SIZES))}.png"}
    parts.insert(rng.randrange(len(parts) + 1), image)
    return parts


def conversation(rng: random.Random, media: bool) -> dict[str, Any]:
    """A record: any form of content, tools and their calls, reasoning, several roles."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        role = rng.choice(["system", "system", "developer"])
        messages.append({"role": role, "content": content(rng)})
    has_tools = rng.random() < 0.4
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": asked(rng, media)})
        if has_tools and rng.random() < 0.6:
            call = {"name": "look_up", "arguments": {"what": text(rng)}}
            calls = [{"id": "call00001", "type": "function", "function": call}]
            said = {"content": rng.choice([None, "", text(rng)]), "tool_calls": calls}
            messages.append({"role": "assistant", **said})
            role = rng.choice(["tool", "tool", "tool", "ipython", "function"])
            answer = {"content": content(rng), "name": "look_up", "tool_call_id": "call00001"}
            messages.append({"role": role, **answer})
        thought = {"reasoning_content": text(rng)} if rng.random() < 0.2 else {}
        messages.append({"role": "assistant", "content": content(rng), **thought})
    record: dict[str, Any] = {"messages": messages}
    if has_tools:
        record["tools"] = TOOLS if rng.random() < 0.8 else []
    return record


def saved(build: Callable[[Path], Any]) -> Callable[[str, Path], Path]:
    def built(name: str, tmp: Path) -> Path:
        build(tmp).save_pretrained(tmp / name)
        return tmp / name

    return built


FOLDERS: dict[str, Callable[[str, Path], Path]] = {
    **dict.fromkeys(TOKENIZERS, lambda name, tmp: tokenizer_alone(tmp / name, trl_template(name))),
    **{f"{name}-images": saved(getattr(tiles, name)) for name in ("idefics3", "llava", "gemma3")},
    **{name: saved(getattr(tiles, name)) for name in ("llava_next", "llava_onevision", "smolvlm")},
    **{
        name: lambda name, tmp: family_processors.family_processor(name, tmp)[1]
        for name in ("glm4v", "glm46v", "internvl-small")
    },
    **{f"{name}-parts": saved(build) for name, build in other_processors.PROCESSORS.items()},
}


def rows_of(folder: Path, processor: Path, records: list[Any]) -> list[dict[str, Any]]:
    for number, size in enumerate(SIZES):
        Image.new("RGB", size, number).save(folder / f"{number}.png")
    source = folder / f"{len(records)}.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    lengths = folder / f"lengths-{len(records)}"
    estimate_lengths(str(source), lengths, processor=processor, workers=1)
    parts = sorted(lengths.glob("part-*.parquet"))
    return [row for path in parts for row in pq.read_table(path).to_pylist()]


def opened(messages: list[Any], folder: Path) -> list[Any]:
    messages = copy.deepcopy(messages)
    for message in messages:
        for item in message["content"] or ():
            if isinstance(item, dict) and item["type"] == "image":
                item["image"] = Image.open(folder / item["image"])
    return messages


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_exact_is_of_the_records_own_messages(name: str, tmp_path: Path) -> None:
    tmp, folder = tmp_path, FOLDERS[name](name, tmp_path)
    is_text = not list(folder.glob("*processor_config.json"))
    loader = transformers.AutoTokenizer if is_text else transformers.AutoProcessor
    processor, files = loader.from_pretrained(folder), load_processor(folder)
    rng = random.Random(name)
    records = [conversation(rng, media=not is_text) for _ in range(NUM_RECORDS)]
    question = [] if is_text else [{"type": "image", "image": "0.png"}]
    question.append({"type": "text", "text": "What is it?"})
    answer = {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}
    records.append({"messages": [{"role": "user", "content": question}, answer]})
    encoder = ProcessorEncoder(folder)
    for record, row in zip(records, rows_of(tmp, folder, records), strict=True):
        outcome = row["reason"] or row["method"]
        if outcome == "exact":
            talk, messages = parse_record(record), record["messages"]
            if "given as" in (row["detail"] or ""):
                outcome = "exact in another form"
                messages = files.template_of(talk).messages(talk)
                left = iter(medium.ref for medium in talk.media)
                for message in messages:
                    for item in message["content"] or ():
                        if isinstance(item, dict) and item["type"] == "image":
                            item["image"] = next(left)
            built = processor.apply_chat_template(
                opened(messages, tmp), tools=record.get("tools"), tokenize=True, return_dict=True
            )
            real = np.asarray(built["input_ids"]).reshape(-1).tolist()
            assert row["length"] == len(real), (record, row)
            sample = encoder({**record, "messages": opened(record["messages"], tmp)})
            assert sample["input_ids"].tolist() == real
    assert "exact" in outcome, row  # every template writes the last record
