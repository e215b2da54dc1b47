"""Tars of WebDataset give the lengths, packs and exports that the same records give as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from tar_chats import (
    CHATS,
    DIALECTS,
    Record,
    dumped,
    members_of,
    picture,
    put,
    turns,
)

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset


def estimate(source: Path | str, output: Path, **options: Any) -> Any:
    return estimate_lengths(str(source), output, **{"workers": 1, **options})


def as_files(folder: Path) -> Path:
    """`CHATS` as JSON Lines with image files."""
    lines = []
    for key, (record, images) in CHATS.items():
        for name, data in images.items():
            (folder / f"{key}.{name}").parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{key}.{name}").write_bytes(data)
        named = [f"{key}.{name}" for name in images]
        lines.append(dumped({"id": key, **record, "images": named}))
    (folder / "chats.jsonl").write_bytes(b"\n".join(lines))
    return folder / "chats.jsonl"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, processors: Path) -> Path:
    """A table of `CHATS` as files and as tars; the tars lie apart."""
    folder = tmp_path_factory.mktemp("wds")
    (folder / "data").mkdir()
    inputs = {"files": as_files(folder / "data")}
    for name in DIALECTS:
        inputs[name] = put(folder / "tars" / f"{name}.tar", members_of(name))
    processor = str(processors / "qwen2.5-vl")
    named = [f"{name}={path}" for name, path in inputs.items()]
    estimate_lengths(named, folder / "all", processor=processor, workers=1)
    return folder


@pytest.mark.parametrize("name", DIALECTS)
def test_lengths_from_tars_equal_lengths_from_files(counted: Path, name: str) -> None:
    rows = pq.read_table(sorted((counted / "all").glob("part-*.parquet"))).to_pylist()
    own = ("sample_id", "shard", "offset", "nbytes", "source")

    def of(source: str) -> list[Record]:
        found = [row for row in rows if row["source"] == source]
        return [{k: v for k, v in row.items() if k not in own} for row in found]

    expected = of("files")
    assert [row["key"] for row in expected] == list(CHATS)
    assert sum(row["num_images"] for row in expected) == 24
    assert {(row["status"], row["method"]) for row in expected} == {("ok", "exact")}
    assert of(name) == expected


def test_clips_and_frames_from_tars_equal_those_from_files(
    tmp_path: Path, processors: Path
) -> None:
    write_clip(tmp_path / "a.mp4", frames=12, size=(84, 56), fps="4")
    frames = {f"{n}.png": picture(3) for n in range(4)}
    for name, data in frames.items():
        (tmp_path / f"b.{name}").write_bytes(data)
    asked = turns("<video>What happens?")
    rows = [("a", {"messages": asked}, ["mp4"]), ("b", {"messages": asked}, [list(frames)])]
    by_file = [["a.mp4"], [[f"b.{name}" for name in frames]]]
    lines = [
        dumped({"id": k, **r, "videos": v}) for (k, r, _), v in zip(rows, by_file, strict=True)
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    members = [("a.json", dumped(rows[0][1])), ("a.mp4", (tmp_path / "a.mp4").read_bytes())]
    members += [(f"b.{name}", data) for name, data in frames.items()]
    members += [("b.json", dumped({**rows[1][1], "videos": rows[1][2]}))]
    put(tmp_path / "tars" / "x.tar", members)
    packs = []
    encoder = ProcessorEncoder(str(processors / "qwen2.5-vl"))
    for name in ("x.jsonl", "tars/x.tar"):
        out = tmp_path / f"out-{Path(name).suffix}"
        processor = str(processors / "qwen2.5-vl")
        summary = estimate(tmp_path / name, out / "l", processor=processor)
        assert (summary.num_rejected, set(summary.methods)) == (0, {"exact"}), summary.rejected
        plan_packs(out / "l", out / "index", capacity=2048)
        packs.append(PackedDataset(out / "index", encoder)[0].joined())
    for key, value in packs[0].items():
        same = torch.equal(value, packs[1][key]) if torch.is_tensor(value) else True
        assert same, key
    assert len(packs[0]["video_grid_thw"]) == 2
