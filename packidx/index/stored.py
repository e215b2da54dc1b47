"""A snapshot's way into an object store: made on this machine, uploaded, named by HEAD last."""

from __future__ import annotations

from pathlib import Path

from packidx.io.own_files import check_index
from packidx.io.publish import home


def claim(url: str) -> Path:
    """The folder of this machine where snapshots of the index at `url` are made.

    Raises:
        OptionError: `url` is something else than an index, or cannot become one.
    """
    check_index(url)
    folder = Path(home(url))
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    return folder
