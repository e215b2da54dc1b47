"""Packs of processors that no family of ours knows, read back beside the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from built_samples import built, image
from every_processor import build, processor_classes
from tiny_vlms import tiny_config

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset, collate

FAST = ("HyperCLOVAXVisionV2Processor",)
SLOW = (
    *("AriaProcessor", "AyaVisionProcessor", "Cohere2VisionProcessor", "CohereCompassProcessor"),
    *("Cosmos3EdgeProcessor", "DeepseekVLProcessor", "Dots3NoteProcessor"),
    *("Ernie4_5_VLMoeProcessor", "Exaone4_5_Processor", "Gemma3nProcessor", "Gemma4Processor"),
    *("Gemma4UnifiedProcessor", "Glm5NextProcessor", "Granite4VisionProcessor"),
    *("Inkling2Processor", "InklingProcessor", "JanusProcessor", "Lfm2VlProcessor"),
    *("Lfm3VlProcessor", "LightOnOcrProcessor", "Llama4Processor", "MiniCPMV4_6Processor"),
    *("Molmo2Processor", "Ovis2Processor", "PaddleOCRVLProcessor", "Qwen2_5OmniProcessor"),
    *("Qwen3OmniMoeProcessor", "VideoLlama3Processor"),
)
MROPE = {
    "CohereCompassProcessor": "cohere_compass",
    "Cosmos3EdgeProcessor": "cosmos3_edge",
    "Ernie4_5_VLMoeProcessor": "ernie4_5_vl_moe",
    "PaddleOCRVLProcessor": "paddleocr_vl",
    "Qwen2_5OmniProcessor": "qwen2_5_omni_thinker",
    "Qwen3OmniMoeProcessor": "qwen3_omni_moe_thinker",
}
"""Processors of models with positions of several rows, whose ``config.json`` is needed."""
ONE_FOR_EACH_TOKEN = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
TALKS: list[list[str | tuple[int, int]]] = [
    [(64, 48), "What is this?"],
    ["How many words are there?"],
    ["Compare ", (70, 50), " and ", (44, 100), "!"],
    ["See\n", (120, 90)],
    [(40, 60), " or ", (90, 30), " and\n\n", (64, 64)],
]
"""Texts, and width and height of images."""


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processors")


def record(talk: list[str | tuple[int, int]], picture: Any) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": picture(part)}
        for part in talk
    ]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Yes, it is."}]}
    return {"messages": [{"role": "user", "content": parts}, answer]}


def write_records(folder: Path) -> Path:
    def saved(size: tuple[int, int]) -> str:
        path = folder / "{}x{}.png".format(*size)
        image(*size).save(path)
        return str(path)

    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record(talk, saved)) + "\n" for talk in TALKS))
    return data


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_packs_hold_what_the_real_processor_builds(
    name: str, processors: Path, tmp_path: Path
) -> None:
    processor, folder = build(name, processor_classes()[name], processors)
    if name in MROPE:
        tiny_config(MROPE[name], processor).save_pretrained(folder)
    data = write_records(tmp_path)
    summary = estimate_lengths(str(data), tmp_path / "lengths", processor=folder, workers=1)
    assert summary.methods == {"exact": len(TALKS)}
    [part] = (tmp_path / "lengths").glob("part-*")
    longest = max(pq.read_table(part)["length"].to_pylist())
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=2 * longest)
    encode = ProcessorEncoder(folder)
    assert encode.files.family is None
    dataset = PackedDataset(tmp_path / "index", encode)
    packs = list(dataset)
    assert max(len(pack.sample_ids) for pack in packs) > 1
    rows = []
    for number, pack in enumerate(each.joined() for each in packs):
        ends = pack["cu_seqlens"].tolist()
        for at, sample in enumerate(dataset.index.pack(number).samples):
            real = built(processor, folder, record(TALKS[sample.row], lambda size: image(*size)))
            own = slice(ends[at], ends[at + 1])
            assert pack["input_ids"][own].tolist() == real["input_ids"].tolist()
            for key in ONE_FOR_EACH_TOKEN:
                if key in pack:
                    assert torch.equal(pack[key][own], torch.as_tensor(real[key]).reshape(-1)), key
            rows.append(sample.row)
        assert (pack["position_ids"].ndim == 2) == (name in MROPE)
        assert collate(packs[number])["input_ids"].shape == (1, ends[-1])
    assert sorted(rows) == list(range(len(TALKS)))
    assert len(collate(packs)["input_ids"]) == len(packs)
