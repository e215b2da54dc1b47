"""The columns on disk are a contract: programs outside the project read them by name and type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from packidx.digests import column_digest, file_digest
from packidx.format import parquet, schema
from packidx.hashing import derive_key
from packidx.permutation import permute

ROOT = Path(__file__).parents[2]

LOCATOR = "source:string key:string shard:int32 row:int64 offset:int64 nbytes:int64"
EXPECTED = {
    "LENGTHS": f"sample_id:int64 {LOCATOR} text_tokens:int32 image_tokens:int32 video_tokens:int32"
    " audio_tokens:int32 length:int32 label_tokens:int32 num_turns:int32 num_images:int32"
    " num_videos:int32 vision_patches:int64 vision_cost:int64 media:list method:string"
    " status:string reason:string detail:string",
    "PACKS": "pack_id:int64 group:string window:int32 num_samples:int32 length:int32"
    " padded_length:int32 label_tokens:int32 image_tokens:int32 video_tokens:int32"
    " audio_tokens:int32 num_images:int32 num_videos:int32 vision_patches:int64"
    " vision_cost:int64 attention_cost:int64 first_row:int64",
    "SAMPLES": "pack_id:int64 position:int32 sample_id:int64 copy:int32 piece:int32"
    " token_start:int32 start:int32 length:int32 padded_length:int32 label_tokens:int32"
    f" {LOCATOR} media:list",
    "DROPPED": "sample_id:int64 source:string key:string length:int32 reason:string detail:string",
}
MEDIA = "kind:string tokens:int32 patches:int64 t:int32 h:int32 w:int32 at:int32"


def spelled(fields: pa.Schema) -> str:
    kinds = ((f.name, "list" if pa.types.is_list(f.type) else str(f.type)) for f in fields)
    return " ".join(f"{name}:{kind}" for name, kind in kinds)


@pytest.mark.parametrize("name", EXPECTED)
def test_columns(name: str) -> None:
    assert spelled(getattr(schema, name)) == EXPECTED[name]


def test_media_struct() -> None:
    assert spelled(pa.schema(list(schema.MEDIA.value_type))) == MEDIA
    piece = pa.schema(list(schema.PLANNED_MEDIA.value_type))
    assert spelled(piece) == "kind:string t:int32 h:int32 w:int32 at:int32"


def test_equal_rows_are_equal_bytes(tmp_path: Path) -> None:
    """However the rows came in: in one chunk or several, sliced or not."""
    media = [None, [], [{"kind": "image", "tokens": 4, "at": 1}]] * 10
    columns = {
        "sample_id": pa.array(range(30), pa.int64()),
        "key": pa.array([f"k{i}" if i % 4 else None for i in range(30)], pa.string()),
        "media": pa.array(media, schema.MEDIA),
    }
    whole = parquet.conform_table(pa.table(columns), schema.LENGTHS)
    chunks = pa.concat_tables([whole.slice(0, 7), whole.slice(7)])
    for number, table in enumerate((whole, chunks)):
        with parquet.open_writer(str(tmp_path / str(number)), schema.LENGTHS) as writer:
            writer.write_table(table, row_group_size=16)
    assert file_digest(tmp_path / "0") == file_digest(tmp_path / "1")
    for name in columns:
        assert column_digest(whole[name]) == column_digest(chunks[name])


def test_digests_tell_values_nulls_and_types_apart() -> None:
    arrays = [
        pa.array([0, 1], pa.int32()),
        pa.array([None, 1], pa.int32()),
        pa.array([0, 1], pa.int64()),
        pa.array(["a", "bc"]),
        pa.array(["ab", "c"]),
        pa.array(["a", None]),
        pa.array(["a", ""]),
        pa.array([[1], [2, 3]]),
        pa.array([[1, 2], [3]]),
        pa.array([None, [1, 2, 3]]),
        pa.array([[], [1, 2, 3]]),
        pa.array([{"a": 1, "b": 2}]),
        pa.array([{"a": 2, "b": 1}]),
        pa.array([], pa.int32()),
    ]
    digests = [column_digest(pa.chunked_array([array])) for array in arrays]
    assert len(set(digests)) == len(arrays)
    for array, digest in zip(arrays, digests, strict=True):
        padded = pa.concat_arrays([array, array]).slice(len(array))
        chunks = [padded.slice(0, 1), padded.slice(1)]
        assert column_digest(pa.chunked_array(chunks)) == digest


def test_the_test_vectors_of_the_format_hold() -> None:
    """What FORMAT.md states for readers in other languages."""
    text = " ".join((ROOT / "FORMAT.md").read_text().split())
    key = derive_key(0, "packs")
    assert f'key(0, "packs") is {key};' in text
    order = permute(np.arange(10, dtype=np.uint64), 10, key).tolist()
    assert f"under that key is {', '.join(map(str, order))}." in text
    assert sorted(order) == list(range(10))
