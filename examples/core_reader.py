"""Read an index without packidx: the core profile of FORMAT.md, with pyarrow alone.

Copy this file to wherever packs must be read and packidx cannot be installed.

    index = CoreIndex("data/index")
    for pack in index.rank(global_batch=64, rank=1, world_size=8, epoch=0, seed=0):
        for row in index.samples(pack):
            shard = index.manifest["shards"][row["shard"]]["uri"]  # the record is there
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MASK = (1 << 64) - 1


def sha256(*parts: bytes) -> str:
    """SHA-256 over parts, each behind the eight bytes of its length."""
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def mix(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def permute(x: int, n: int, key: int) -> int:
    """Where the permutation of n numbers under a key sends x."""
    if n <= 1:
        return 0
    bits, rounds = max(6, (n - 1).bit_length()), []
    mask = (1 << bits) - 1
    for _ in range(6):
        multiplier = mix(key)
        addend = mix(multiplier)
        rounds.append((multiplier | 1, addend >> (64 - bits)))
        key = mix(addend)
    while True:
        for multiplier, addend in rounds:
            x = (x * multiplier + addend) & mask
            x ^= x >> (bits + 1) // 2
        if x < n:
            return x


class CoreIndex:
    """A snapshot of an index on this machine: by default the one that HEAD names."""

    def __init__(self, path: str, ident: str | None = None) -> None:
        self.path = Path(path)
        ident = ident or (self.path / "HEAD").read_text().strip()
        self.manifest = json.loads((self.path / "snapshots" / f"{ident}.json").read_bytes())
        stated = {name: value for name, value in self.manifest.items() if name != "digest"}
        digests = sha256(canonical(stated)), self._id()
        if self.manifest["version"] != 3 or digests != (self.manifest["digest"], ident):
            raise ValueError(f"{path}@{ident} is not of version 3, or was changed since")
        self.id, self.windows = ident, self.manifest["windows"]
        sizes = (window["num_packs"] for window in self.windows)
        self.first_packs = list(accumulate(sizes, initial=0))

    def _id(self) -> str:
        head = {name: self.manifest[name] for name in ("format", "version", "options")}
        head["lengths"] = self.manifest["lengths"]["fingerprint"]
        head["schedule"] = [self.manifest["result"][f"schedule_{n}"] for n in ("block", "chunk")]
        windows = [[w["num_rows"], w["num_packs"], w["digest"]] for w in self.manifest["windows"]]
        return sha256(canonical(head), canonical(windows))[:32]

    def order(self, epoch: int = 0, seed: int = 0) -> Iterator[int]:
        """Pack numbers in the order in which an epoch trains on them."""
        block, chunk = (self.manifest["result"][f"schedule_{name}"] for name in ("block", "chunk"))
        sizes = [window["num_packs"] for window in self.windows]
        runs = list(zip(self.first_packs, sizes, strict=False))
        parts = [range(f, f + n // block * block) for f, n in runs]
        parts += [range(f + n // block * block, f + n // chunk * chunk) for f, n in runs]
        parts += [range(f + n // chunk * chunk, f + n) for f, n in runs]
        parts = [part for part in parts if part]
        ends = list(accumulate(map(len, parts)))
        words = (seed, epoch, len(self.id), *self.id.encode())
        n, key = ends[-1], reduce(lambda key, word: mix(key ^ word), words, 0)
        full, tail, each = n // block, n % block, block // chunk
        k = [mix(key ^ purpose) for purpose in range(8)]
        drawn, exchanged = k[5] % n, {}
        by_column = self.manifest["result"]["schedule"].startswith("by:")
        for t in range(tail if drawn < full * block and not by_column else 0):
            place = drawn // block * block + permute(t // chunk, each, k[6]) * chunk
            place += permute(t % chunk, chunk, k[7])
            exchanged |= {place: full * block + t, full * block + t: place}
        for p in range(n):
            if p < full * block:
                number = p // block if by_column else permute(p // block, full, k[1])
                slot = number * each + permute(p % block // chunk, each, mix(number ^ k[2]))
                place = slot * chunk + permute(p % chunk, chunk, mix(slot ^ k[3]))
            else:
                place = full * block + permute(p - full * block, tail, k[4])
            place = exchanged.get(place, place)
            part = bisect_right(ends, place)
            yield parts[part][place - (ends[part - 1] if part else 0)]

    def rank(self, global_batch: int, rank: int, world_size: int, **order: int) -> list[int]:
        """Packs of a rank, without those of an incomplete last step: see `order`."""
        packs = list(self.order(**order))
        return packs[rank : len(packs) // global_batch * global_batch : world_size]

    def samples(self, pack: int) -> list[dict[str, Any]]:
        """Rows of the samples table of a pack, in order of position."""
        number = bisect_right(self.first_packs, pack) - 1
        own = pack - self.first_packs[number]
        [stats] = self._rows(number, "packs", own, 1)
        rows = self._rows(number, "samples", stats["first_row"], stats["num_samples"])
        if {row["pack"] for row in (stats, *rows)} != {own}:
            raise ValueError(f"{self.path} is damaged at pack {pack}")
        return rows

    def _rows(self, window: int, table: str, first: int, count: int) -> list[dict[str, Any]]:
        folder, rows = self.path / "windows" / self.windows[window]["folder"], []
        for file in self.windows[window]["files"]:
            if file["path"].startswith(f"{table}-"):
                if first < file["rows"] and len(rows) < count:
                    whole = read_table(folder / file["path"], file["sha256"])
                    rows += whole.slice(max(first, 0), count - len(rows)).to_pylist()
                first -= file["rows"]
        return rows


@lru_cache(maxsize=4)
def read_table(path: Path, digest: str) -> pa.Table:
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ValueError(f"{path} is damaged")
    return pq.read_table(path)
