"""What this process may use: CPUs, by its affinity and its control group, and memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from packidx.errors import OptionError

_CGROUPS = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"
_NO_LIMIT = 1 << 60  # bytes; what version 1 of control groups says without a limit is above


def num_workers(asked: int | None) -> int:
    """As many as were asked for, or as many as there are CPUs for this process.

    Raises:
        OptionError: fewer than one were asked for.
    """
    if asked is None:
        return num_cpus()
    if asked < 1:
        raise OptionError(f"workers is {asked}: give at least 1")
    return asked


def num_cpus() -> int:
    """CPUs that this process may use: by its affinity, and by the quota of its control group.

    A container of 4 CPUs on a machine of 128 sees all of them; only these two know better.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with contextlib.suppress(OSError):
        quota = cpu_quota(Path(_OWN).read_text(), _CGROUPS)
        cpus = min(cpus, math.ceil(quota)) if quota is not None else cpus
    return cpus


def cpu_quota(own: str, root: str) -> float | None:
    """CPUs' worth of time that a process may take, the least of its groups' quotas; None without.

    Args:
        own: what ``/proc/PID/cgroup`` says of the process.
        root: where control groups are mounted.
    """
    old = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    stated = _stated(own, root, "cpu", ("cpu.max",), old)
    quotas = [numbers[0] / numbers[1] for numbers in stated if len(numbers) == 2]
    return min((quota for quota in quotas if quota > 0), default=None)


def memory_limit() -> int | None:
    """Bytes that this process's control group, a container's, may take; None without a limit."""
    try:
        return memory_quota(Path(_OWN).read_text(), _CGROUPS)
    except OSError:
        return None


def memory_quota(own: str, root: str) -> int | None:
    """Bytes that a process may take, the least of its groups' limits; None without.

    Args:
        own, root: as of `cpu_quota`.
    """
    stated = _stated(own, root, "memory", ("memory.max",), ("memory.limit_in_bytes",))
    limit = min((numbers[0] for numbers in stated if numbers), default=_NO_LIMIT)
    return limit if limit < _NO_LIMIT else None


def _stated(
    own: str, root: str, controller: str, files: Sequence[str], old_files: Sequence[str]
) -> Iterator[list[int]]:
    """What a controller's files say, of the process's groups and those that they are in.

    Args:
        own, root: as of `cpu_quota`.
        controller: its name.
        files, old_files: that say it together, in version 2 and in version 1 of control groups.

    Yields:
        their numbers; none where there is no limit or no such group.
    """
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (f"{root}/{controllers}", f"{root}/{controller}") if controllers else (root,)
        mount = next(filter(os.path.isdir, mounts), mounts[-1])
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            names = old_files if controllers else files
            yield _numbers([os.path.join(mount, str(group).lstrip("/"), name) for name in names])


def _numbers(files: Sequence[str]) -> list[int]:
    """All numbers in some files, if there are nothing but numbers: ``max`` is none."""
    try:
        return [int(word) for name in files for word in Path(name).read_text().split()]
    except (OSError, ValueError):
        return []
