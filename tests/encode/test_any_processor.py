"""ProcessorEncoder of processors that no family of ours knows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from built_samples import RECORDS, built, processor_of
from tiny_vlms import tiny_config

from packidx.encode import ProcessorEncoder

IGNORED = -100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Ernie 4.5 VL MoE: positions of three rows, and two sorts of token types."""
    processor, folder = processor_of("ernie4_5_vl_moe", tmp_path_factory.mktemp("processors"))
    tiny_config("ernie4_5_vl_moe", processor).save_pretrained(folder)
    return processor, folder


@pytest.fixture(scope="module")
def encode(made: tuple[Any, Path]) -> ProcessorEncoder:
    return ProcessorEncoder(made[1])


@pytest.mark.parametrize("name", RECORDS)
def test_a_sample_is_the_processors_with_our_labels(
    name: str, made: tuple[Any, Path], encode: ProcessorEncoder
) -> None:
    real = built(*made, RECORDS[name])
    sample = encode(RECORDS[name])
    assert encode.files.family is None
    assert sample["input_ids"].tolist() == real["input_ids"].tolist()
    assert sample.keys() == real.keys() | {"labels", "position_ids"}
    for key in real.keys() - {"input_ids"}:
        assert torch.equal(sample[key].flatten(), real[key].flatten()), key
    trained = sample["labels"] != IGNORED
    answer = made[0].tokenizer.decode(sample["input_ids"][trained])
    assert "Two of them." in answer and len(answer) < 30
    assert torch.equal(sample["labels"][trained], sample["input_ids"][trained])
    assert encode.count(RECORDS[name]) == len(sample["input_ids"])
    rows = sample["position_ids"]
    assert rows.shape == (3, len(sample["input_ids"]))
    assert torch.equal(rows[1], rows[2]) == (name == "text")


def test_an_object_and_another_process_make_the_same(
    made: tuple[Any, Path], encode: ProcessorEncoder
) -> None:
    by_object = ProcessorEncoder(made[0])
    assert by_object.fingerprint() == encode.fingerprint()
    encode(RECORDS["images"])  # it holds the loaded processor now
    data = pickle.dumps(encode)
    assert b"transformers.models" not in data  # no class that would be imported before its time
    expected = encode(RECORDS["images"])
    for other in (by_object, pickle.loads(data)):
        sample = other(RECORDS["images"])
        assert sample.keys() == expected.keys()
        assert all(torch.equal(sample[key], expected[key]) for key in expected)
