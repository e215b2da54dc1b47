"""How many processes work where nobody says: as many as there are CPUs for this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packidx.errors import OptionError
from packidx.run.limits import cpu_quota, memory_quota, num_cpus, num_workers


def groups(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, 4.0),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 0.5),
        ("0::/somewhere/else\n", {"cpu.max": "200000 100000"}, 2.0),  # the container's own root
        (
            "4:cpu,cpuacct:/x\n3:memory:/y\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "1000"},
            300.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("1:cpuset:/\n", {"cpu.max": "100000 100000"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_quota_of_a_control_group(
    own: str, files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    assert cpu_quota(own, groups(tmp_path, files)) == expected


def test_what_is_asked_for_is_taken() -> None:
    assert num_workers(7) == 7
    assert 1 <= num_workers(None) == num_cpus() <= len(os.sched_getaffinity(0))
    with pytest.raises(OptionError, match="workers is 0: give at least 1"):
        num_workers(0)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "8000000000"}, 8_000_000_000),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/memory.max": "4000", "a/b/memory.max": "max"}, 4000),
        ("0::/somewhere/else\n", {"memory.max": "7000"}, 7000),  # the container's own root
        ("3:memory:/y\n0::/\n", {"memory/y/memory.limit_in_bytes": "5000"}, 5000),
        ("3:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory_is_limited_by_the_control_group(
    own: str, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    assert memory_quota(own, groups(tmp_path, files)) == expected
