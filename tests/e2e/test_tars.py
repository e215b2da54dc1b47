"""Tars of WebDataset give the lengths, packs and exports that the same records give as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from tar_chats import (
    dumped,
    picture,
    put,
    turns,
)

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset


def estimate(source: Path | str, output: Path, **options: Any) -> Any:
    return estimate_lengths(str(source), output, **{"workers": 1, **options})


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
