"""A data set of the Hub is counted, planned and read at one commit, as from a disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_layouts import png
from hub_server import Hub, serving

CARD = b"""---
configs:
- {config_name: default, data_files: "data/train-*"}
- {config_name: other, data_files: [{split: test, path: other.jsonl}]}
---
"""
RUN = """
import json, sys
import torchvision_cpu
from packidx_cli.main import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 0
"""
READ = """
import json, sys
import torchvision_cpu
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset
pack = PackedDataset(sys.argv[1], ProcessorEncoder(sys.argv[2]))[0].joined()
names = ("input_ids", "labels", "cu_seqlens", "image_grid_thw")
said = {name: pack[name].tolist() for name in names}
print(json.dumps(said | {"pixels": float(pack["pixel_values"].double().sum())}))
"""


def talk(number: int) -> dict[str, Any]:
    asked = {"role": "user", "content": f"<image>\nWhat is it, {number}?"}
    answer = {"role": "assistant", "content": "A cat."}
    image = {"bytes": png(number), "path": f"{number}.png"}
    return {"messages": [asked, answer], "images": [image]}


def parquet(*records: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(records)), sink)
    return sink.getvalue()


FILES = {
    "README.md": CARD,
    "data/train-00000-of-00002.parquet": parquet(talk(0), talk(1)),
    "data/train-00001-of-00002.parquet": parquet(talk(2)),
    "other.jsonl": json.dumps({"text": "Some words."}).encode() + b"\n",
}


def counted(hub: Hub, folder: Path, processor: Path, *commands: list[str]) -> None:
    """Run `packidx` in one process; each `estimate` with the processor."""
    options = ["--processor", str(processor), "--workers", "1", "--quiet"]
    given = [c + (options if c[0] == "estimate" else ["--quiet"]) for c in commands]
    helpers = str(Path(__file__).parents[1] / "helpers")
    hub.run(folder, "-c", RUN, json.dumps(given), PYTHONPATH=helpers)


def read(hub: Hub, folder: Path, index: str, processor: Path, **environment: str) -> dict[str, Any]:
    helpers = str(Path(__file__).parents[1] / "helpers")
    done = hub.run(folder, "-c", READ, index, str(processor), PYTHONPATH=helpers, **environment)
    pack: dict[str, Any] = json.loads(done.stdout)
    return pack


def shards(table: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((table / "manifest.json").read_text())["shards"]
    return listed


def parts(table: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(table.glob("part-*.parquet"))]


@pytest.mark.slow
def test_over_the_hub_as_from_a_disk(processors: Path, tmp_path: Path) -> None:
    processor = processors / "qwen2.5-vl"
    for name, data in FILES.items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(data)
    table, index = str(tmp_path / "{}"), str(tmp_path / "{}-index")
    with serving() as hub:
        commit = hub.push("org/name", FILES)
        sources = {"net": "org/name", "disk": f"name={tmp_path}/local/data/train-*.parquet"}
        commands = []
        for where, source in sources.items():
            lengths, packs = table.format(where), index.format(where)
            commands.append(["estimate", source, "-o", lengths])
            commands.append(["plan", lengths, "-o", packs, "--capacity", "4096"])
        counted(hub, tmp_path, processor, *commands)
        assert parts(tmp_path / "net") == parts(tmp_path / "disk")
        places = [shard["uri"] for shard in shards(tmp_path / "net")]
        assert len(places) == 2 and all(f"/snapshots/{commit}/data/train" in p for p in places)
        hub.push("org/name", {"data/train-00000-of-00001.parquet": parquet(talk(3))})
        pack = read(hub, tmp_path, index.format("net"), processor)
        assert pack == read(hub, tmp_path, index.format("disk"), processor)
        assert len(pack["cu_seqlens"]) == 4 and len(pack["image_grid_thw"]) == 3
