"""What `estimate` and a reader ask of an object store: requests and bytes, image by image.

The store is an S3 server on loopback (moto), behind a proxy that counts what goes through it. The
same records lie there as JSON Lines with image files, as tars, and as Parquet with embedded images;
with them come the figures of the same work on this machine's disk.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from bench_tools import heading, line
from packidx import estimate_lengths, open_index, plan_packs
from packidx.records.fetch import Fetcher
from packidx.torch import PackSampler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from object_store import Store, object_store

KINDS = ("files", "tar", "parquet")
CAPACITY = 16_384
HEADERS, REQUESTS, READ, READ_WHOLE = 0.2, 3.1, 1.2, 1.5
"""What is promised: shares of the bytes, and requests per image."""


def photo(number: int, ending: str = "jpg", pixels: int = 1000) -> bytes:
    """An image that does not compress: about a byte and a half a pixel as JPEG."""
    rng = np.random.default_rng(number)
    noise = rng.integers(0, 256, (pixels * 3 // 4, pixels + number, 3), np.uint8)
    sink = io.BytesIO()
    quality = {"quality": 95} if ending == "jpg" else {}
    Image.fromarray(noise).save(sink, {"jpg": "JPEG"}.get(ending, ending.upper()), **quality)
    return sink.getvalue()


def corpus(folder: Path, images: int, shards: int, pixels: int, endings: Sequence[str]) -> int:
    """The same records as files, tars and Parquet below `folder`; bytes of their images."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    total = 0
    for shard in range(shards):
        rows = []
        for number in range(shard, images, shards):
            ending = endings[number % len(endings)]
            rows.append((f"{number:06d}", ending, photo(number, ending, pixels)))
        total += sum(len(data) for _, _, data in rows)
        _write_files(folder / "files", shard, rows)
        _write_tar(folder / "tar" / f"shard-{shard:05d}.tar", rows)
        _write_parquet(folder / "parquet" / f"shard-{shard:05d}.parquet", rows)
    return total


def _record(key: str, image: Any) -> dict[str, Any]:
    asked = [{"type": "image", "image": image}, {"type": "text", "text": f"What is {key}?"}]
    answer = {"role": "assistant", "content": "Noise, and nothing but noise. " * 3}
    return {"id": key, "messages": [{"role": "user", "content": asked}, answer]}


def _write_files(folder: Path, shard: int, rows: Sequence[tuple[str, str, bytes]]) -> None:
    lines = []
    for key, ending, data in rows:
        (folder / f"{key}.{ending}").write_bytes(data)
        lines.append(json.dumps(_record(key, f"{key}.{ending}")))
    (folder / f"shard-{shard:05d}.jsonl").write_text("\n".join(lines) + "\n")


def _write_tar(path: Path, rows: Sequence[tuple[str, str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for key, ending, data in rows:
            text = json.dumps(_record(key, ending)).encode()
            for name, content in ((f"{key}.json", text), (f"{key}.{ending}", data)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def _write_parquet(path: Path, rows: Sequence[tuple[str, str, bytes]]) -> None:
    records = []
    for key, _, data in rows:
        said = [{"role": "user", "content": f"<image>What is {key}?"}]
        said.append({"role": "assistant", "content": "Noise."})
        records.append({"id": key, "messages": said, "images": [{"bytes": data}]})
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=16)


def bench_estimate(store: Store, kind: str, url: str, folder: Path, images: int, size: int) -> None:
    """Print what counting one kind of data takes, here and there."""
    options: dict[str, Any] = {"workers": 1}
    begun = time.monotonic()
    estimate_lengths(str(folder / "data" / kind), folder / f"{kind}-here", **options)
    here = time.monotonic() - begun
    store.forget()
    begun = time.monotonic()
    summary = estimate_lengths(f"{url}/{kind}", folder / f"{kind}-there", **options)
    there = time.monotonic() - begun
    assert summary.num_rejected == 0, summary.rejected
    same = _tables(folder / f"{kind}-here") == _tables(folder / f"{kind}-there")
    asked, moved = len(store.requests) / images, store.read() / size
    found = f"{asked:.2f} requests and {store.read() / images / 1000:.0f} kB an image"
    found += f" ({100 * moved:.1f} %), {there:.1f} s; from disk {here:.1f} s"
    if kind == "parquet":  # its images are inside: it is copied once
        line(f"estimate, {kind}", found, "<= 101 %", moved <= 1.01)
    else:
        promised = f"<= {REQUESTS} requests, <= {100 * HEADERS:.0f} %"
        line(f"estimate, {kind}", found, promised, asked <= REQUESTS and moved <= HEADERS)
    line(f"  its bytes equal those from disk, {kind}", str(same), "True", same)


def bench_reading(store: Store, kind: str, folder: Path) -> None:
    """Print what reading every pack once, in the sampler's order, moves."""
    table, index = folder / f"{kind}-there", folder / f"{kind}-index"
    windows: dict[str, Any] = {"window": 1} if kind == "parquet" else {}
    plan_packs(table, index, capacity=CAPACITY, margin=0.0, **windows)
    opened = open_index(index)
    fetcher, used = Fetcher(opened), _used(folder / "data" / kind)
    os.environ["PACKIDX_CACHE"] = str(folder / f"{kind}-cache")  # nothing of estimate's is in it
    store.forget()
    begun = time.monotonic()
    for number in PackSampler(opened, global_batch=1, seed=1):
        for sample in opened.pack(number).samples:
            fetcher.read(sample)
    share, promised = store.read() / used, READ_WHOLE if kind == "parquet" else READ
    found = f"{share:.3f} of the samples' bytes in {len(store.requests)} requests, "
    found += f"{time.monotonic() - begun:.1f} s"
    line(f"read, {kind}", found, f"<= {promised}", share <= promised)


def _used(folder: Path) -> int:
    """Bytes of the samples, as they lie there."""
    return sum(path.stat().st_size for path in folder.iterdir())


def _tables(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))]


def main(images: int, shards: int, pixels: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name, object_store(Path(name) / "cache") as store:
        folder = Path(name)
        for ending in ("jpg", "png"):
            place = folder / ending
            size = corpus(place / "data", images, shards, pixels, [ending])
            url = store.put_tree(place / "data", ending)
            heading(
                f"{images} images ({ending}) of {size / images / 1e6:.2f} MB in {shards} shards"
            )
            for kind in KINDS:
                bench_estimate(store, kind, url, place, images, size)
                bench_reading(store, kind, place)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=1000, help="an image's width")
    arguments = parser.parse_args()
    main(arguments.images, arguments.shards, arguments.pixels)
