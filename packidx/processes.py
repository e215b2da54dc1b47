"""What a worker process does first: it ends with its parent, and leaves Ctrl-C to it."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import connection, parent_process


def follow_parent() -> None:
    """Ignore Ctrl-C, of which the parent ends its workers, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and the pool's queues do not either."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
