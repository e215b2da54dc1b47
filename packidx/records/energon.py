"""Folders that Megatron-Energon has prepared: which tars make up a split.

``.nv-meta/.info.json`` (before Energon 7 ``.info.yaml``) lists the shards, ``split.yaml`` (or
``split.json``) says which split has which, with brace ranges, and leaves some out (`WebdatasetInfo`
and `WebdatasetSplits` in Energon's flavors/webdataset/structs.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import yaml

from packidx import storage
from packidx.errors import SourceError
from packidx.records.containers.base import unreadable

FOLDER = ".nv-meta"
TRAIN = "train"
"""The split that is meant where none is named."""

_INFOS = (".info.json", ".info.yaml")
_SPLITS = ("split.yaml", "split.json")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MAX_NAMES = 10_000_000


def is_prepared(folder: str) -> bool:
    """Whether `folder` is a data set that Energon has prepared."""
    return storage.is_folder(storage.join(folder, FOLDER))


def shard_names(folder: str, split: str | None = None) -> list[str]:
    """Paths below `folder` of the tars of a split, in the order in which its info lists them.

    Args:
        folder: a prepared one.
        split: its name; None is `TRAIN`, or all shards where the folder has no splits.

    Raises:
        SourceError: the description cannot be read or understood, has no such split, names shards
            that it does not list, or leaves single samples out.
    """
    path, info = _loaded(folder, _INFOS)
    if info is None:
        raise SourceError(
            f"{storage.join(folder, FOLDER)} has no .info.json: run `energon prepare` on the "
            "folder, or name its tars, FOLDER/*.tar"
        )
    counts = info.get("shard_counts") if isinstance(info, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(name, str) for name in counts):
        raise SourceError(f"{path} has no shard_counts: run `energon prepare` again")
    for name in counts:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(f"{path} lists {name!r}, which is no file of its folder")
    wanted = _of_split(folder, split)
    if wanted is None:
        return list(counts)
    unknown = sorted(wanted - counts.keys())
    if unknown:
        raise SourceError(
            f"the {split or TRAIN} split of {folder} has {unknown[0]!r}, which {path} does not "
            "list: run `energon prepare` again"
        )
    return [name for name in counts if name in wanted]


def _of_split(folder: str, split: str | None) -> set[str] | None:
    """The names of a split's shards; None where there are no splits and none is named."""
    path, splits = _loaded(folder, _SPLITS)
    if splits is None and split is None:
        return None
    parts = splits.get("split_parts") if isinstance(splits, dict) else None
    name = split or TRAIN
    if not isinstance(parts, dict) or name not in parts:
        known = ", ".join(map(str, parts)) if isinstance(parts, dict) else "none"
        raise SourceError(
            f"{folder} has no split {name!r}, there are: {known}; name one, FOLDER#SPLIT"
        )
    excluded = set(_names(path, splits.get("exclude")))
    single = sorted(one for one in excluded if not one.endswith(".tar"))
    if single:
        raise SourceError(
            f"{path} excludes single samples ({single[0]!r}): whole shards are read, so take these "
            "entries out of a copy of the folder's .nv-meta, and leave the samples out with "
            "`packidx plan --exclude`"
        )
    return set(_names(path, parts[name])) - excluded


def _names(path: str, listed: Any) -> Iterator[str]:
    if listed is None:
        return
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise SourceError(f"{path} has {listed!r:.100} where a list of shards must be")
    for one in listed:
        for number, name in enumerate(expand_braces(one)):
            if number == _MAX_NAMES:
                raise SourceError(f"{path}: {one!r} stands for over {_MAX_NAMES} shards")
            yield name


def expand_braces(pattern: str) -> Iterator[str]:
    """The names that ``a-{000..012}.tar`` or ``{a,b}.tar`` stands for, as a shell expands them."""
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    head, tail = pattern[: found.start()], pattern[found.end() :]
    for inner in _alternatives(found[1]):
        yield from (head + inner + rest for rest in expand_braces(tail))


def _alternatives(inner: str) -> Iterator[str]:
    span = _RANGE.fullmatch(inner)
    if span is None:
        yield from inner.split(",") if "," in inner else ("{" + inner + "}",)
        return
    first, last, step = int(span[1]), int(span[2]), abs(int(span[3] or 1)) or 1
    padded = any(
        len(one.lstrip("-")) > 1 and one.lstrip("-")[0] == "0" for one in span.groups()[:2]
    )
    width = max(len(span[1]), len(span[2])) if padded else 0
    down = last < first
    for number in range(first, last + (-1 if down else 1), -step if down else step):
        yield f"{number:0{width}d}"


def _loaded(folder: str, names: tuple[str, ...]) -> tuple[str, Any]:
    """The path and content of the first file of these that is there; ("", None) without one."""
    for name in names:
        path = storage.join(storage.join(folder, FOLDER), name)
        try:
            text = storage.read(path).decode()
            return path, json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            text = " ".join(str(error).split())
            raise SourceError(f"{path} cannot be understood ({text}): write it again") from None
    return "", None
