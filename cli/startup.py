"""Before a command starts: streams and UTF-8 that a shell may have taken, memory, no pandas."""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any

_FINISHED = "PACKIDX_FINISHED"  # number of the pipe by which a process says that it has spoken
_NEAR = 1 << 30  # bytes
LEAST = 1 << 28
"""Bytes of addresses below which no command runs: numpy and Arrow alone need more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as <malloc.h> of glibc numbers them
_SIZE = 1 << 30  # bytes


def prepare() -> int | None:
    """Make the process reliable; the exit status, where another process has done the work."""
    open_streams()
    use_utf8()
    return run_limited()


def open_streams() -> None:
    """Put something in the place of closed standard streams.

    Otherwise the next file that is opened gets a stream's number, and what is printed goes into
    that file. Errors have nowhere to go then, and nobody reads them; results cannot be written,
    which `main` tells.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)  # of which each write fails
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def use_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding: names of files are
    bytes to the system, and UTF-8 in what packidx writes, whatever the terminal shows."""
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    os.environ["PYTHONUTF8"] = "1"  # for processes that this one starts, too
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def address_space() -> int | None:
    """Bytes of addresses that this process may use; None where nobody limits them."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def run_limited() -> int | None:
    """Where the address space is limited, run the command in a process of its own.

    Libraries that get no memory end their process, and say something else or nothing at all. Gives
    its exit status; None where the command is to run in this process.
    """
    if _FINISHED in os.environ:
        import logging

        # Libraries warn of anything then but what is the matter, and log tracebacks.
        warnings.simplefilter("ignore")
        logging.getLogger().addHandler(logging.NullHandler())
        return None
    if address_space() is None:
        return None
    import subprocess

    read, write = os.pipe()
    environment = {**os.environ, _FINISHED: str(write)}
    command = [sys.executable, *sys.orig_argv[1:]]
    process = subprocess.Popen(command, env=environment, pass_fds=[write])
    os.close(write)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other one says that it was stopped
    process.wait()
    if said := os.read(read, 1):  # its status, even if a library ends it with a crash after that
        return said[0]
    from .show.console import say

    say(f"packidx: {no_memory()}", err=True)
    return 1


def finished(status: int) -> None:
    """Tell the process that waits, if there is one, that all was said, and the exit status."""
    number = os.environ.pop(_FINISHED, None)
    if number is not None:
        os.write(int(number), bytes([status]))


def is_near_limit() -> bool:
    """Whether the address space may have run out: libraries are mapped by hundreds of megabytes."""
    limit = address_space()
    if limit is None:
        return False
    peak = stated_memory("VmPeak")
    return peak is None or limit - peak < _NEAR


def stated_memory(name: str) -> int | None:
    """Bytes of this process that Linux states under a name; None elsewhere."""
    with suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))
    return None


def no_memory() -> str:
    """What ran out, and what to do."""
    limit = address_space()
    if limit is None:
        return "not enough memory: plan fewer samples at a time"
    return (
        f"out of address space, which is limited to {limit / 1e6:,.0f} MB here (ulimit -v): raise "
        "the limit, or lift it with `ulimit -v unlimited`"
    )


class _NoPandas:
    """A finder that finds everything but pandas."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def spare_pandas() -> None:
    """Let Arrow find, and remember, that there is no pandas in this process."""
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    finder: Any = _NoPandas
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def keep_freed_memory() -> None:
    """Let glibc reuse what is freed; another C library goes on as it does."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _SIZE)
        mallopt(_TRIM_THRESHOLD, _SIZE)
