"""`packidx estimate` again after one of 100 shards changed, against counting all; and ten records.

Start-up is what a count costs however much there is to count: from a count of all shards and a
count of one of them, the cost of a shard and what is left without any follow. All in CPU time.
"""

from __future__ import annotations

import filecmp
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_estimate import MODEL, write_long

NUM_SHARDS = 100
PER_SHARD = 2000
PROMISED, PROMISED_TEN = 0.03, 3.0


def cpu_seconds(sources: Path, output: Path, data: Path, *more: str) -> float:
    """User and system time of one command."""
    command = [str(Path(sys.executable).parent / "packidx"), "estimate", str(sources)]
    command += ["-o", str(output), "--processor", str(data / "processors" / MODEL)]
    command += ["--media-root", str(data / "corpus"), "--workers", "1", "--quiet", *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_shards(data: Path, folder: Path) -> list[Path]:
    """So many shards of so many long records."""
    whole = folder / "long.jsonl"
    write_long(data / "corpus", whole, NUM_SHARDS * PER_SHARD)
    shards = folder / "shards"
    shards.mkdir()
    paths = []
    with open(whole, "rb") as lines:
        for number in range(NUM_SHARDS):
            paths.append(shards / f"{number:03d}.jsonl")
            paths[-1].write_bytes(b"".join(next(lines) for _ in range(PER_SHARD)))
    whole.unlink()
    return paths


def is_same(one: Path, other: Path) -> bool:
    """Whether two tables have the same bytes."""
    names = sorted(path.name for path in one.iterdir())
    unequal = filecmp.cmpfiles(one, other, names, shallow=False)[1:]
    return names == sorted(path.name for path in other.iterdir()) and not any(unequal)


def bench_again(data: Path, folder: Path) -> None:
    """Promised: a count of one changed shard of 100 is 3 % of a full one, beyond start-up."""
    paths = write_shards(data, folder)
    shards, table = folder / "shards", folder / "lengths"
    full = cpu_seconds(shards, table, data)
    alone = min(cpu_seconds(paths[0], folder / "one", data, "--fresh") for _ in range(3))
    shard = (full - alone) / (NUM_SHARDS - 1)
    startup = alone - shard
    for words, old, new in (("rewritten", b"the", b"eht"), ("grown", b"", b"")):
        times = []
        for number in (30, 50, 70):
            content = paths[number].read_bytes()
            grown = content + content[: content.index(b"\n") + 1]
            paths[number].write_bytes(content.replace(old, new, 1) if old else grown)
            times.append(cpu_seconds(shards, table, data))
        again = min(times)
        ratio = (again - startup) / (full - startup)
        print(
            f"count again / full count, {words:<9}  {again - startup:6.2f} / {full - startup:.2f} "
            f"CPU-s = {ratio:6.4f}   (promised {PROMISED}; start-up {startup:.2f} CPU-s)"
        )
    cpu_seconds(shards, folder / "fresh", data, "--fresh")
    print(f"same bytes as a full count: {is_same(table, folder / 'fresh')}")
    print(f"an unchanged table                  {cpu_seconds(shards, table, data):6.2f} CPU-s")


def bench_ten(data: Path, folder: Path) -> None:
    """Promised: ten records of text in 3 CPU-seconds; imports and the tokenizer are most of it."""
    with open(data / "corpus" / "dialogues.jsonl", "rb") as lines:
        (folder / "ten.jsonl").write_bytes(b"".join(next(lines) for _ in range(10)))
    taken = min(
        cpu_seconds(folder / "ten.jsonl", folder / "ten", data, "--fresh") for _ in range(6)
    )
    print(f"ten records {taken:5.2f} CPU-s (promised {PROMISED_TEN})")


def main() -> None:
    data = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    with tempfile.TemporaryDirectory() as folder:
        bench_ten(data, Path(folder))
        bench_again(data, Path(folder))


if __name__ == "__main__":
    main()
