"""Folders that Megatron-Energon has prepared: which tars make up a split.

``.nv-meta/.info.json`` (before Energon 7 ``.info.yaml``) lists the shards, ``split.yaml`` (or
``split.json``) says which split has which, with brace ranges, and leaves some out (`WebdatasetInfo`
and `WebdatasetSplits` in Energon's flavors/webdataset/structs.py).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import braceexpand

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.io.storage import unreadable
from packidx.io.unique_keys import load_json, load_yaml
from packidx.records.media.paths import is_inside, reach, refuse_outside

FOLDER = ".nv-meta"
TRAIN = "train"
"""The split that is meant where none is named."""

_INFOS = (".info.json", ".info.yaml")
_SPLITS = ("split.yaml", "split.json")
_NAMED = 3  # files that a sentence names before it counts
NOWHERE = "in no split (run `energon prepare` again if they belong to it)"
"""Why a tar of a prepared folder is not read that its description does not place."""


class Listed(NamedTuple):
    """What a prepared folder's ``.nv-meta`` says of a split."""

    names: list[str]
    """Paths below the folder of its tars, in the order in which the info lists them."""
    others: dict[str, str]
    """Any other tar of the folder, and why it is not among these."""
    warnings: list[str]
    """What may be a mistake, a sentence each."""


def is_prepared(folder: str) -> bool:
    """Return whether `folder` is a data set that Energon has prepared."""
    return storage.is_folder(urls.join(folder, FOLDER))


def listed(folder: str, split: str | None = None) -> Listed:
    """The tars of a split, and those that are left out.

    Args:
        split: its name; None is `TRAIN`, or all shards where the folder has no splits.

    Raises:
        SourceError: the description cannot be read or understood, has no such split, names shards
            that it does not list, or leaves single samples out.
    """
    info, every = _shards(folder)
    path, splits = _loaded(folder, _SPLITS)
    parts = splits.get("split_parts") if isinstance(splits, dict) else None
    if splits is not None and not isinstance(parts, dict):
        raise SourceError(f"{path} has no split_parts: run `energon prepare` again")
    if not isinstance(parts, dict) and split is None:
        strays = set(_tars_in(folder)).difference(every)
        return Listed(every, dict.fromkeys(sorted(strays), NOWHERE), [])
    parts = {str(name): _names(path, shards) for name, shards in (parts or {}).items()}
    split = split or TRAIN
    if split not in parts:
        known = ", ".join(parts) or "none"
        raise SourceError(
            f"{folder} has no split {split!r}, there are: {known}; name one, FOLDER#SPLIT"
        )
    excluded = set(_names(path, splits.get("exclude")))
    wanted = set(parts[split]) - excluded
    unknown = sorted(wanted.difference(every))
    if unknown:
        raise SourceError(
            f"the {split} split of {folder} has {unknown[0]!r}, which {info} does not "
            "list: run `energon prepare` again"
        )
    if not wanted:
        raise SourceError(
            f"the {split} split of {folder} has no shard that is not excluded: check {path}"
        )
    single = sorted(name for name in excluded if _shard_of(name) in wanted)
    if single:
        raise SourceError(
            f"{path} excludes single samples ({single[0]!r}): whole shards are read, so "
            "take these entries out of a copy of the folder's .nv-meta, and leave the samples out "
            "with `packidx plan --exclude`"
        )
    reasons = {
        tar: f"of its {name} split ({folder}#{name} reads it)"
        for name in reversed(parts)
        for tar in parts[name]
    }
    reasons |= dict.fromkeys(excluded, f"excluded by {path}")
    tars = dict.fromkeys((*every, *_tars_in(folder)))
    others = {tar: reasons.get(tar, NOWHERE) for tar in tars if tar not in wanted}
    vain = sorted(name for name in excluded if name not in every and _shard_of(name) not in every)
    warnings = [
        f"{path} excludes {some(vain)}, which {info} does not list: that "
        "leaves nothing out, so check the names"
    ]
    return Listed([tar for tar in every if tar in wanted], others, warnings if vain else [])


def some(names: Sequence[str]) -> str:
    """The first of these, and how many more there are."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


def _tars_in(folder: str) -> list[str]:
    """The tars below a folder, as its lists name them."""
    prefix = len(urls.join(folder, ""))
    tars = []
    for here, folders, files in walk_once(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        tars += [urls.join(here, name)[prefix:] for name in files if name.endswith(".tar")]
    return sorted(tars)


def walk_once(
    folder: str, outside: list[str] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """`storage.walk`, into each folder once, though a symbolic link may lead back up.

    Args:
        outside: is given the paths of what leads out of `folder` by a link: nothing else is done
            with that.
    """
    seen = set()
    for here, folders, files in storage.walk(folder):
        if not urls.is_url(here):
            for name in [entry.name for entry in os.scandir(here) if entry.is_symlink()]:
                path = os.path.join(here, name)
                if not is_inside(os.path.realpath(path), reach(folder)):
                    (folders if name in folders else files).remove(name)
                    if outside is not None:
                        outside.append(path)
        real = here if urls.is_url(here) else os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield here, folders, files


def _shard_of(excluded: str) -> str:
    """The shard of a single sample that is excluded, ``SHARD/KEY``."""
    shard, dot, _ = excluded.partition(".tar/")
    return f"{shard}.tar" if dot else ""


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
        raise SourceError(f"{path} has no shard_counts: run `energon prepare` again")
    for name in counts:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(f"{path} lists {name!r}, which is no file of its folder")
    return path, list(counts)


def _names(path: str, patterns: Any) -> list[str]:
    """The names that the brace patterns of a list stand for."""
    if patterns is None:
        return []
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise SourceError(f"{path} has {patterns!r:.100} where a list of shards must be")
    names: list[str] = []
    for pattern in patterns:
        try:
            names += expanded(pattern)
        except ValueError as error:
            raise SourceError(f"{path} has {pattern!r:.100}: {error}; write it again") from None
        if len(names) > MAX_NAMES:
            raise SourceError(f"{path} has a list of over {MAX_NAMES:,} shards")
    return names


def _loaded(folder: str, names: tuple[str, ...]) -> tuple[str, Any]:
    """The path and content of the first file of these that is there; ("", None) without one."""
    for name in names:
        path = urls.join(urls.join(folder, FOLDER), name)
        try:
            refuse_outside(path, folder)
            data = storage.read(path)
            return path, load_json(data) if name.endswith(".json") else load_yaml(data)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError as error:
            raise SourceError(f"{path} cannot be understood ({error}): write it again") from None
    return "", None


MAX_NAMES = 1_000_000
"""Names that a pattern, and all patterns of a list together, may stand for."""

_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)")


def expanded(pattern: str) -> list[str]:
    """The names that a pattern stands for.

    Raises:
        ValueError: its braces do not match, or the names are over `MAX_NAMES`.
    """
    try:
        longest = max((abs(int(b) - int(a)) for a, b in _RANGE.findall(pattern)), default=0)
        names = braceexpand.braceexpand(pattern) if longest < MAX_NAMES else range(longest)
        listed = [str(name) for name in itertools.islice(names, MAX_NAMES + 1)]
    except (ValueError, RecursionError):  # also of Python, for a number of thousands of digits
        raise ValueError("its braces make no sense") from None
    if len(listed) > MAX_NAMES or longest >= MAX_NAMES:
        raise ValueError(f"it stands for over {MAX_NAMES:,} names")
    return listed
