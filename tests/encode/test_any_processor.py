"""ProcessorEncoder of processors that no family of ours knows."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from built_samples import RECORDS, built, image, processor_of, said

from packidx.encode import ProcessorEncoder
from packidx.encode.encoder import _check_ids
from packidx.encode.whole import NotBuilt, _by_tiles, _tensor
from packidx.errors import BadRecord, MismatchError, OptionError
from packidx.records.media.audio import Audio

IGNORED = -100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Ernie 4.5 VL MoE: positions of three rows, and two sorts of token types."""
    return processor_of("ernie4_5_vl_moe", tmp_path_factory.mktemp("processors"))


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


def test_the_tokens_of_its_media(made: tuple[Any, Path], encode: ProcessorEncoder) -> None:
    ids = {kind: getattr(made[0], f"{kind}_token_id") for kind in ("image", "video")}
    assert encode.media_token_ids == ids


def test_other_lengths_than_were_counted(made: tuple[Any, Path]) -> None:
    processor = copy.deepcopy(made[0])
    changed = ProcessorEncoder(processor)
    record = said("What is ", image(200, 300), "this?")
    counted = changed(record)["input_ids"].tolist()
    processor.image_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    real = built(processor, made[1], record)["input_ids"].tolist()
    assert len(real) < len(counted)
    first = [one == other for one, other in zip(real, counted, strict=False)].index(False)
    with pytest.raises(
        MismatchError,
        match=f"makes {len(real)} tokens of this sample and {len(counted)} were counted, of which"
        rf" number {first} \(from 0\)",
    ):
        changed(record)


@pytest.mark.parametrize(
    ("real", "counted", "first"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0)]
)
def test_the_first_token_that_differs(real: list[int], counted: list[int], first: int) -> None:
    with pytest.raises(MismatchError, match=rf"number {first} \(from 0\) is the first"):
        _check_ids(real, counted, "P")
    _check_ids(counted, counted, "P")


def test_other_tokens_of_the_same_number(made: tuple[Any, Path]) -> None:
    processor = copy.deepcopy(made[0])
    changed = ProcessorEncoder(processor)
    asked = [{"role": role, "content": "Be brief."} for role in ("user", "system")]
    length = len(changed({"messages": asked})["input_ids"])
    processor.chat_template = processor.chat_template.replace(
        "message['role']", "message['role'] | replace('system', 'user')"
    )
    with pytest.raises(MismatchError, match=f"makes {length} tokens .* and {length} were counted"):
        changed({"messages": asked})


def test_what_the_processor_does_not_build(made: tuple[Any, Path]) -> None:
    processor = copy.deepcopy(made[0])
    changed = ProcessorEncoder(processor)
    changed.count(RECORDS["one image"])
    processor.image_processor.patch_size = None
    with pytest.raises(MismatchError, match="does not build this sample, which was counted"):
        changed(RECORDS["one image"])


def test_ids_of_its_own(encode: ProcessorEncoder) -> None:
    sample = encode({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})
    assert {key: value.tolist() for key, value in sample.items()} == {
        "input_ids": [5, 6, 7],
        "labels": [IGNORED, 6, 7],
        "position_ids": [0, 1, 2],
    }


def test_media_that_it_does_not_take_are_refused(encode: ProcessorEncoder) -> None:
    content = [{"type": "audio", "audio": Audio(b"RIFF")}]
    with pytest.raises(BadRecord, match="cannot encode audio"):
        encode({"messages": [{"role": "user", "content": content}]})


def test_lists_of_tensors() -> None:
    """Some processors give a tensor for each medium, where these have different shapes or not."""
    parts = [torch.rand(3, 2), torch.rand(3, 2)]
    assert torch.equal(_tensor("x", parts), torch.stack(parts))
    assert _tensor("x", [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(NotBuilt, match="it gives x as no one tensor"):
        _tensor("x", [torch.rand(3, 2), torch.rand(2, 2)])
    with pytest.raises(NotBuilt, match="as no one tensor"):
        _tensor("x", ["a"])


def test_tiles_of_media_with_different_numbers_of_them() -> None:
    """PerceptionLM gives one tensor, or one for each medium, and looks at all tiles alike."""
    tiles = [torch.rand(2, 3, 4, 4), torch.rand(5, 3, 4, 4)]
    name = "PerceptionLMProcessor"
    several = _by_tiles({"pixel_values": tiles, "input_ids": [1]}, name)
    one = _by_tiles({"pixel_values": tiles[1][None]}, name)
    assert several["pixel_values"].shape == (7, 1, 3, 4, 4) and several["input_ids"] == [1]
    assert torch.equal(several["pixel_values"].flatten(0, 1), torch.cat(tiles))
    assert torch.equal(one["pixel_values"].flatten(0, 1), tiles[1])
    other = {"pixel_values": tiles}
    assert _by_tiles(other, "AriaProcessor") == other


def test_a_folder_that_transformers_cannot_load(made: tuple[Any, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(made[1], broken)
    config = broken / "processor_config.json"
    config.write_text(config.read_text().replace("Ernie4_5_VLMoeProcessor", "NoSuchProcessor"))
    with pytest.raises(OptionError, match="cannot be used: .*pass your own encode"):
        ProcessorEncoder(broken)
