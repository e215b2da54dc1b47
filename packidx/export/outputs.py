"""Where an export may be written."""

from __future__ import annotations

import os

from packidx import storage
from packidx.errors import OptionError
from packidx.index import Index


def check_outside(output: str, index: Index) -> None:
    """Refuse an output in the folder of the index that is exported.

    Raises:
        OptionError: it is there.
    """
    if is_inside(output, index.path):
        raise OptionError(f"{output} is in the index {index.path}: name a folder outside of it")


def is_inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or below it, wherever symbolic links lead."""
    return f"{_real(path)}/".startswith(f"{_real(folder)}/")


def _real(path: str) -> str:
    return storage.absolute(path) if storage.is_url(path) else os.path.realpath(path)
