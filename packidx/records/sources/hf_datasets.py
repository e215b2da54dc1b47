"""Folders that Hugging Face's `datasets` has saved: which files they hold, and in what order."""

from __future__ import annotations

import json
import os

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.io.storage import unreadable

STATE = "state.json"
"""In every folder of a saved data set."""
SPLITS = "dataset_dict.json"
"""In a folder of several."""


def file_names(folder: str) -> list[str]:
    """The Arrow files of a folder that `datasets` saved, as its ``state.json`` lists them.

    Raises:
        SourceError: it cannot be understood, or holds a selection.
    """
    path = urls.join(folder, STATE)
    try:
        state = json.loads(storage.read(path))
        names = [entry["filename"] for entry in state["_data_files"]]
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            f"{path} is not what `datasets` writes: save the data set again"
        ) from None
    if state.get("_indices_data_files"):
        raise SourceError(f"{folder} holds a selection: run flatten_indices() and save it again")
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise SourceError(f"{path} lists {name!r}, which is no file of its folder")
    return names
