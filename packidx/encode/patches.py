"""Whether transformers made the patches that were counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packidx.encode.loading import transformers_class
from packidx.errors import MismatchError
from packidx.processor.counter import KINDS, MediaColumns


def check_grids(media: MediaColumns, pixels: Mapping[str, Any], name: str) -> None:
    """That the grids which transformers gives are those that were counted.

    A release that does not know a setting of the processor leaves it out without a word.

    Args:
        media: a sample's, counted.
        pixels: the tensors that transformers made of them.
        name: the processor's.

    Raises:
        MismatchError: they are others.
    """
    for number, kind in enumerate(KINDS):
        given = pixels.get(f"{kind}_grid_thw")
        if given is None:
            continue
        grids, counted = np.asarray(given), media.grid[media.kind == number]
        in_chunks = len(grids) > len(counted)  # Kimi's videos
        if in_chunks and grids.prod(1).sum() == counted.prod(1).sum():
            continue
        if np.array_equal(grids, counted):
            continue
        release = transformers_class("__version__")
        raise MismatchError(
            f"the {kind} processor of {name} makes grids {grids.tolist()} (time, height, width) of "
            f"a sample, and {counted.tolist()} were counted: transformers {release} does not "
            "read its settings as they were counted, use a newer release"
        )
