"""Small snapshots over real JSONL shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from manifests import write_lengths_manifest

from packidx.digests import digest_parts
from packidx.format.parquet import conform_table
from packidx.format.schema import LENGTHS
from packidx.index import Index, open_index
from packidx.plan import plan_packs

MERGE = 2


Parts = list[int | tuple[int, int]]  # runs of text tokens and images (h, w) in patches


def record(seed: int, parts: Parts, **extra: Any) -> dict[str, Any]:
    """A record that `SyntheticEncode` understands and every dialect parser accepts."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return {"id": f"key-{seed}", "messages": turns, "seed": seed, "parts": parts, **extra}


def length_of(parts: Parts) -> int:
    return sum(one if isinstance(one, int) else one[0] * one[1] // MERGE**2 + 2 for one in parts)


def media_spans(parts: Parts) -> list[dict[str, Any]]:
    spans, at = [], 0
    for part in parts:
        if isinstance(part, int):
            at += part
            continue
        height, width = part
        tokens = height * width // MERGE**2
        place = {"kind": "image", "tokens": tokens, "patches": height * width, "at": at + 1}
        spans.append({**place, "t": 1, "h": height, "w": width})
        at += tokens + 2
    return spans


def write_lengths(
    folder: Path,
    sources: dict[str, list[dict[str, Any]]],
    *,
    fingerprint: str | None = None,
    media_root: str | None = None,
) -> Path:
    """Shards `folder`/NAME.jsonl and a lengths table over them; returns the table's folder."""
    rows: list[dict[str, Any]] = []
    shards = []
    for number, (source, records) in enumerate(sources.items()):
        data = b""
        for row, one in enumerate(records):
            line = json.dumps(one).encode()
            length = length_of(one["parts"])
            locator = {"shard": number, "row": row, "offset": len(data), "nbytes": len(line)}
            counts = {"length": length, "text_tokens": length, "label_tokens": length - 1}
            spans = media_spans(one["parts"])
            rows.append({"sample_id": len(rows), "source": source, "key": one["id"], **locator})
            patches = sum(span["patches"] for span in spans)
            counts |= {"num_images": len(spans), "num_videos": 0, "vision_patches": patches}
            rows[-1] |= counts
            rows[-1] |= {"media": None if one.get("unknown") else spans}
            rows[-1] |= {"method": "exact", "status": "ok"}
            data += line + b"\n"
        path = folder / f"{source}.jsonl"
        path.write_bytes(data)
        shards.append(
            {"uri": str(path), "bytes": len(data), "rows": len(records), "source": source}
        )
    lengths = folder / "lengths"
    lengths.mkdir()
    columns = {
        name: pa.array([row.get(name) for row in rows], LENGTHS.field(name).type)
        for name in LENGTHS.names
    }
    part = lengths / "part-00000.parquet"
    pq.write_table(conform_table(pa.table(columns), LENGTHS), part)
    encoder = {"fingerprint": fingerprint, "name": "synthetic"} if fingerprint else None
    described = [
        {"name": name, "media_root": media_root, "num_samples": len(rs)}
        for name, rs in sources.items()
    ]
    columns_digest = digest_parts(json.dumps(rows).encode())
    write_lengths_manifest(
        lengths, len(rows), columns_digest, encoder=encoder, sources=described, shards=shards
    )
    return lengths


def make_index(
    folder: Path,
    sources: dict[str, list[dict[str, Any]]],
    *,
    fingerprint: str | None = None,
    media_root: str | None = None,
    **options: Any,
) -> Index:
    """A planned snapshot over `sources`."""
    lengths = write_lengths(folder, sources, fingerprint=fingerprint, media_root=media_root)
    plan_packs(lengths, folder / "index", **options)
    return open_index(folder / "index")
