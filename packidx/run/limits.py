"""What this process may use: CPUs, by its affinity and its control group, and memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

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
        with open(_OWN) as file:
            quota = cpu_quota(file.read(), _CGROUPS)
        cpus = min(cpus, math.ceil(quota)) if quota is not None else cpus
    return cpus


def cpu_quota(own: str, root: str) -> float | None:
    """CPUs' worth of time that a process may take, the least of its groups' quotas; None without.

    Args:
        own: what ``/proc/PID/cgroup`` says of the process.
        root: where control groups are mounted.
    """
    quotas = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found = (_quota(f"{root}{group}/cpu.max") for group in _upwards(path))
        elif "cpu" in controllers.split(","):
            named = f"{root}/{controllers}"
            mounted = named if os.path.isdir(named) else f"{root}/cpu"
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            found = (
                _quota(*(f"{mounted}{group}/{name}" for name in names)) for group in _upwards(path)
            )
        else:
            continue
        quotas += [quota for quota in found if quota is not None]
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Bytes that this process's control group, a container's, may take; None without a limit."""
    try:
        with open(_OWN) as file:
            return memory_quota(file.read(), _CGROUPS)
    except OSError:
        return None


def memory_quota(own: str, root: str) -> int | None:
    """Bytes that a process may take, the least of its groups' limits; None without.

    Args:
        own, root: as of `cpu_quota`.
    """
    limits = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files = [f"{root}{group}/memory.max" for group in _upwards(path)]
        elif "memory" in controllers.split(","):
            named = f"{root}/memory"
            files = [f"{named}{group}/memory.limit_in_bytes" for group in _upwards(path)]
        else:
            continue
        for name in files:
            with contextlib.suppress(OSError, ValueError), open(name) as file:  # "max": no number
                limits.append(int(file.read()))
    limit = min(limits, default=_NO_LIMIT)
    return limit if limit < _NO_LIMIT else None


def _upwards(path: str) -> Iterator[str]:
    """A group and those that it is in; in a container, the root is the container's own."""
    group = PurePosixPath(path)
    for each in (group, *group.parents):
        yield "" if str(each) == "/" else str(each)


def _quota(*files: str) -> float | None:
    """Quota over period, in one file or in two; None where there is none or no such group."""
    words: list[str] = []
    try:
        for name in files:
            with open(name) as file:
                words += file.read().split()
        quota, period = int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):  # "max" is no number
        return None
    return quota / period if quota > 0 and period > 0 else None
