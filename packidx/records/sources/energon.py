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


def listed(folder: str, split: str | None, there: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tars of a split, in the order in which the info lists them, and those of no split.

    Args:
        split: its name; None is `TRAIN`, or all shards where the folder has no splits.
        there: tars that lie in the folder.

    Returns:
        Paths below the folder.

    Raises:
        SourceError: the description cannot be read or understood, has no such split, names shards
            that it does not list, or leaves single samples out.
    """
    info, value = _loaded(folder, _INFOS)
    every = value.get("shard_counts") if isinstance(value, dict) else None
    if not isinstance(every, dict):
        raise SourceError(
            f"{info} has no shard_counts: run `energon prepare`, or name FOLDER/*.tar"
        )
    for name in map(str, every):
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(f"{info} lists {name!r}, which is not a file of its folder")
    path, splits = _loaded(folder, _SPLITS)
    parts: dict[str, list[str]] = {TRAIN: list(every)} if split is None else {}
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
    placed = {*excluded, *(tar for tars in parts.values() for tar in tars)}
    astray = dict.fromkeys(tar for tar in (*every, *sorted(there)) if tar not in placed)
    return [tar for tar in every if tar in wanted], list(astray)


def _names(path: str, patterns: Any) -> list[str]:
    """The names that the brace patterns of a list stand for."""
    try:
        return [name for each in patterns or () for name in braceexpand.braceexpand(each)]
    except (TypeError, ValueError) as error:
        raise SourceError(f"{path} has {patterns!r:.100} as shards: {error}; {_AGAIN}") from None


def _loaded(folder: str, names: tuple[str, ...]) -> tuple[str, Any]:
    """The path and content of the first file of these that is there, or of none."""
    path = ""
    for name in names:
        path = urls.join(urls.join(folder, FOLDER), name)
        try:
            refuse_outside(path, folder)
            return path, load_document(name, storage.read(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError as error:
            raise SourceError(f"{path} cannot be understood ({error}): write it again") from None
    return path, None
