"""Lengths, indexes and commands that are not what they should be: a sentence, or a repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import plan_packs
from packidx.errors import PackidxError

BIG = (1 << 31) - 1


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "rules", "says"),
    [
        ({"length": pa.array([], pa.int32())}, {}, "holds no usable sample"),
        ({"length": [5], "num_images": [-1]}, {}, "num_images` holds -1, not 0 to"),
        ({"length": [5], "num_images": [-1]}, {"max_images": 4}, "num_images` holds -1, not 0 to"),
        ({"length": [5], "label_tokens": [-3]}, {}, "label_tokens` holds -3"),
        ({"length": [5, 6], "label_tokens": [5, 7]}, {}, "sample 1 has 7 label_tokens of 6 tokens"),
        ({"length": [5], "vision_cost": [1 << 62]}, {}, "vision_cost` holds 4611686018427387904"),
        ({"length": [5] * 3, "num_images": [BIG] * 3}, {}, "num_images` of one pack add up to"),
        ({"length": pa.array([10, 2**31 + 5])}, {}, "length` holds 2147483653"),
        ({"length": pa.array([2**63 + 1], pa.uint64())}, {}, "` holds 9223372036854775809"),
        ({"length": [1], "image_tokens": pa.array([2**40])}, {}, "image_tokens` holds"),
        ({"length": [1], "key": pa.array([b"\xff"])}, {}, "key` is Binary, not text"),
        ({"length": [1], "media": [[3]]}, {}, "media` is List"),
        ({"length": [1.5]}, {}, "length` is Float64, not integer"),
        ({"tokens": [1]}, {}, "no column `length`"),
        ({"length": [1, 2], "sample_id": [3, 3]}, {}, "more than once"),
        ({"length": [5]}, {"group_by": "source"}, "needs the column `source`"),
        ({"length": [5]}, {"group_by": "media_type"}, "needs the column `num_images`"),
        ({"length": [5]}, {"max_images": 3}, "needs the column `num_images`"),
        ({"length": [5]}, {"max_vision_patches": 3}, "needs the column `vision_patches`"),
        ({"length": [5]}, {"mix": ("a=1",)}, "source"),
    ],
)
def test_tables_that_no_plan_can_be_made_of(
    tmp_path: Path, columns: dict[str, Any], rules: dict[str, Any], says: str
) -> None:
    with pytest.raises(PackidxError, match=says) as caught:
        plan_packs(table(tmp_path / "l.parquet", **columns), tmp_path / "i", capacity=64, **rules)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "i" / "HEAD").exists()


def test_a_state_that_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_packs(table(tmp_path / "l.parquet", length=[5, 6]), tmp_path / "i", capacity=512)
    (tmp_path / "state.json").write_text("[" * 100_000)
    command = ["plan", "--continue", str(tmp_path / "state.json"), "-o", str(tmp_path / "i")]
    assert main(command) == 1
    assert "is not JSON" in capsys.readouterr().err


def test_an_exclusion_that_excludes_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = table(tmp_path / "l.parquet", length=[5, 6], key=["a", "b"])
    command = ["plan", str(lengths), "-o", str(tmp_path / "i"), "--capacity", "64", "--quiet"]
    for column, note in ((["c"], True), (["b"], False)):
        table(tmp_path / "x.parquet", key=column)
        assert main([*command, "--exclude", str(tmp_path / "x.parquet")]) == 0
        assert ("none of the samples" in capsys.readouterr().err) == note
    for column in ([1, 2], [["a"]]):
        table(tmp_path / "x.parquet", key=column)
        assert main([*command, "--exclude", str(tmp_path / "x.parquet")]) == 1
        assert "not text: cast it first" in capsys.readouterr().err
