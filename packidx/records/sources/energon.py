"""Folders that Megatron-Energon has prepared: which tars make up a split.

``.nv-meta/.info.json`` (before Energon 7 ``.info.yaml``) lists the shards, ``split.yaml`` (or
``split.json``) says which split has which, with brace ranges, and leaves some out (`WebdatasetInfo`
and `WebdatasetSplits` in Energon's flavors/webdataset/structs.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import braceexpand

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.io.option_files import load_document
from packidx.io.storage import unreadable
from packidx.records.media.paths import refuse_outside

FOLDER = ".nv-meta"
TRAIN = "train"
"""The split that is meant where none is named."""

_INFOS = (".info.json", ".info.yaml")
_SPLITS = ("split.yaml", "split.json")
_AGAIN = "run `energon prepare` again"
NOWHERE = f"in no split ({_AGAIN} if they belong to it)"
"""Why a tar of a prepared folder is not read that its description does not place."""


def listed(
    folder: str, split: str | None, there: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The tars of a split, and why others are left out.

    Args:
        split: its name; None is `TRAIN`, or all shards where the folder has no splits.
        there: tars that lie in the folder.

    Returns:
        Paths below the folder, in the order in which the info lists them; and of any other tar why
        it is not among these.

    Raises:
        SourceError: the description cannot be read or understood, has no such split, names shards
            that it does not list, or leaves single samples out.
    """
    info, every = _shards(folder)
    path, splits = _loaded(folder, _SPLITS)
    parts: dict[str, list[str]] = {TRAIN: every} if split is None else {}
    excluded: list[str] = []
    if splits is not None:
        stated = splits.get("split_parts") if isinstance(splits, dict) else None
        if not isinstance(stated, dict):
            raise SourceError(f"{path} has no split_parts: {_AGAIN}")
        parts = {str(name): _names(path, shards) for name, shards in stated.items()}
        excluded = _names(path, splits.get("exclude"))
    split = split or TRAIN
    if split not in parts:
        known = ", ".join(parts) or "none"
        raise SourceError(
            f"{folder} has no split {split!r}, there are: {known}; name one, FOLDER#SPLIT"
        )
    if single := next((name for name in excluded if ".tar/" in name), None):
        raise SourceError(
            f"{path} excludes single samples ({single!r}): whole shards are read, so "
            "take these entries out of a copy of the folder's .nv-meta, and leave the samples out "
            "with `packidx plan --exclude`"
        )
    wanted = set(parts[split]).difference(excluded)
    if unknown := sorted(wanted.difference(every)):
        raise SourceError(
            f"the {split} split of {folder} has {unknown[0]!r}, which {info} does not list: "
            f"{_AGAIN}"
        )
    if not wanted:
        raise SourceError(
            f"the {split} split of {folder} has no shard that is not excluded: check {path}"
        )
    reasons = {
        tar: f"of its {name} split ({folder}#{name} reads it)"
        for name in reversed(parts)
        for tar in parts[name]
    }
    reasons |= dict.fromkeys(excluded, f"excluded by {path}")
    tars = dict.fromkeys((*every, *sorted(there), *excluded))
    others = {tar: reasons.get(tar, NOWHERE) for tar in tars if tar not in wanted}
    return [tar for tar in every if tar in wanted], others


def _shards(folder: str) -> tuple[str, list[str]]:
    """The path of a folder's list of shards, and the shards."""
    path, info = _loaded(folder, _INFOS)
    if info is None:
        raise SourceError(
            f"{urls.join(folder, FOLDER)} has no .info.json: run `energon prepare` on the "
            "folder, or name its tars, FOLDER/*.tar"
        )
    counts = info.get("shard_counts") if isinstance(info, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(name, str) for name in counts):
        raise SourceError(f"{path} has no shard_counts: {_AGAIN}")
    for name in counts:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(f"{path} lists {name!r}, which is not a file of its folder")
    return path, list(counts)


def _names(path: str, patterns: Any) -> list[str]:
    """The names that the brace patterns of a list stand for."""
    patterns = [] if patterns is None else patterns
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise SourceError(f"{path} has {patterns!r:.100} where a list of shards must be")
    names: list[str] = []
    for pattern in patterns:
        try:
            names += braceexpand.braceexpand(pattern)
        except ValueError as error:
            raise SourceError(f"{path} has {pattern!r:.100}: {error}; write it again") from None
    return names


def _loaded(folder: str, names: tuple[str, ...]) -> tuple[str, Any]:
    """The path and content of the first file of these that is there; ("", None) without one."""
    for name in names:
        path = urls.join(urls.join(folder, FOLDER), name)
        try:
            refuse_outside(path, folder)
            data = storage.read(path)
            return path, load_document(name, data)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError as error:
            raise SourceError(f"{path} cannot be understood ({error}): write it again") from None
    return "", None
