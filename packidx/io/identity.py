"""By what a file of this machine is known, unread, to be the one that it was.

Size, time of change, ctime, device and inode, all links followed. Tools that copy set a time of
change back, and an inode is given again to another file, but nobody can set a ctime.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_TICK = 20_000_000  # nanoseconds: clocks of file systems stand still for up to 10 ms
_COARSE = 2_000_000_000  # of those that know whole seconds, or two
_FINE = 1_000_000  # no time that is a multiple of it tells which one it is


class Identity(NamedTuple):
    """What no other content has in a file's place."""

    nbytes: int
    mtime: int
    ctime: int
    device: int
    inode: int


def identity_of(path: str) -> Identity:
    """Return it for a file; an OSError where there is none."""
    status = os.stat(path)
    return Identity(
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino
    )


def lasting_identity(path: str) -> Identity | None:
    """`identity_of` a file that is to be read: who changes what is read then gives it another one.

    A file that was changed within a tick of its file system's clock could be changed again without
    a trace: so that tick is waited for. None where its clock is ahead of this machine's.
    """
    identity = identity_of(path)
    age = time.time_ns() - identity.ctime
    if age < 0:
        return None
    if age < _COARSE:
        tick = _TICK if identity.ctime % _FINE else _COARSE
        time.sleep(max(0, tick - age) / 1e9)
    return identity
