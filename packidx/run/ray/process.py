"""What runs inside a process of Ray's."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packidx.errors import MismatchError, PackidxError
from packidx.software import software


@dataclass(frozen=True, slots=True)
class SharedSetup:
    """A setup in Ray's store: a process fetches it once, and keeps what it made."""

    token: str
    """Of this setup and no other one."""
    refs: tuple[Any, ...]
    """Ray's reference; in a tuple, as Ray replaces an argument that is one by its value."""

    def made(self) -> Any:
        """``setup()``, in a task: that of an earlier one of this process where there is one."""
        global _kept
        if _kept is None or _kept[0] != self.token:
            import ray

            _kept = None  # let go of before the next one is made
            _kept = self.token, pickle.loads(ray.get(self.refs[0]))()
        return _kept[1]


_kept: tuple[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a task's process must have as the driver has it."""

    folder: str
    path: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    node: str


@dataclass(frozen=True, slots=True)
class Outcome:
    value: Any
    error: Exception | None
    node: str
    host: str


@functools.cache
def deciding_versions() -> tuple[tuple[str, str], ...]:
    """Names and versions of the software that decides the output's bytes."""
    return tuple(pair for pair in software().items() if pair[0] != "python")


def run_task(context: Context, work: bytes, setup: SharedSetup) -> Outcome:
    """In a process of Ray's, with the driver's folder and import path: a pickled call and item."""
    import ray

    value: Any = None
    error: Exception | None = None
    try:
        _check_versions(context)
        sys.path += [entry for entry in context.path if entry not in sys.path]
        with _folder(context.folder):
            call, item = pickle.loads(work)  # of modules that only this path may lead to
            value = call(item, setup.made())
    except Exception as caught:
        error = _sendable(caught)
    return Outcome(value, error, ray.get_runtime_context().get_node_id(), platform.node())


def _check_versions(context: Context) -> None:
    for (name, ours), (_, theirs) in zip(deciding_versions(), context.versions, strict=True):
        if ours != theirs:
            raise MismatchError(
                f"a Ray node has {name} {ours}, the driver {theirs}: install the same one, as the "
                "output's bytes may depend on it"
            )


@contextlib.contextmanager
def _folder(path: str) -> Iterator[None]:
    """Relative paths start where the driver's do, where there is such a folder."""
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def _sendable(error: Exception) -> Exception:
    """`error` without its trace, or, where it cannot be pickled, its text."""
    bare = error.with_traceback(None)
    bare.__cause__ = bare.__context__ = None
    try:
        pickle.loads(pickle.dumps(bare))
    except Exception:
        return PackidxError(f"{type(error).__name__}: {error}")
    return bare
