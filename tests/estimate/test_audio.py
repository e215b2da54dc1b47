"""Sound in every kind of shard is found, and counted as what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from clips import write_sound
from record_files import tar_of

from packidx import estimate_lengths


def turns(asked: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": "So."}]


def test_sound_is_found_in_tars_and_tables(tmp_path: Path) -> None:
    """A tar with named and unnamed sounds, and a table as `datasets` writes its `Audio`s."""
    wav = write_sound(tmp_path / "a.wav", samples=4000).read_bytes()
    flac = write_sound(tmp_path / "a.flac", samples=900, codec="flac").read_bytes()
    records = [
        {"messages": turns("What is said?")},  # found beside it, and put before the question
        {"messages": turns("A <audio> and <audio>"), "audios": ["wav", "flac"]},
        {"messages": turns("?"), "media_type": "audio"},
    ]
    members = []
    for number, record in enumerate(records):
        members += [(f"{number}.wav", wav)]
        members += [(f"{number}.flac", flac)] if number == 1 else []
        members += [(f"{number}.json", json.dumps(record).encode())]
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    sounds = [{"bytes": wav, "path": None}, {"bytes": None, "path": str(tmp_path / "a.flac")}]
    table = pa.table({"audio": sounds, "text": ["one", "two"]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name, num_media in (("a.tar", [1, 2, 1]), ("a.parquet", [1, 1])):
        lengths = tmp_path / f"lengths-{name}"
        estimate_lengths(str(tmp_path / name), lengths, workers=1)
        parts = lengths.glob("part-*.parquet")
        rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
        rows.sort(key=lambda row: row["row"])
        assert [row["reason"] for row in rows] == [None] * len(num_media)
        assert [row["audio_tokens"] for row in rows] == [500 * number for number in num_media]
        assert all(row["image_tokens"] == row["video_tokens"] == 0 for row in rows)
        assert [[m["kind"] for m in row["media"]] for row in rows] == [
            ["audio"] * number for number in num_media
        ]
