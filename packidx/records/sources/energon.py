"""Folders that Megatron-Energon has prepared: which tars make up a split.

``.nv-meta/.info.json`` (before Energon 7 ``.info.yaml``) lists the shards, ``split.yaml`` (or
``split.json``) says which split has which, with brace ranges, and leaves some out (`WebdatasetInfo`
and `WebdatasetSplits` in Energon's flavors/webdataset/structs.py).
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
_EXCLUDED = ""  # in place of a split
_NAMED = 3  # files that a sentence names before it counts


@dataclass(frozen=True)
class NotRead:
    """What of a folder is not read, a sentence each."""

    notes: tuple[str, ...]
    """What it is, in numbers."""
    warnings: tuple[str, ...]
    """What of it may be a mistake."""


@dataclass(frozen=True)
class _Description:
    """What a prepared folder's ``.nv-meta`` says."""

    folder: str
    info: str
    """Path of the list of shards."""
    listed: tuple[str, ...]
    path: str
    """Path of the splits."""
    parts: dict[str, tuple[str, ...]] | None
    """The shards of each split; None where there are no splits."""
    excluded: frozenset[str]

    def lists(self, excluded: str) -> bool:
        """Return whether what is excluded, a shard or a sample of one, is of a shard that is
        listed."""
        return excluded in self.listed or _shard_of(excluded) in self.listed

    def wanted(self, split: str | None) -> set[str] | None:
        """The names of a split's shards; None where there are no splits and none is named."""
        if self.parts is None and split is None:
            return None
        name = split or TRAIN
        if self.parts is None or name not in self.parts:
            known = "none" if self.parts is None else ", ".join(self.parts)
            raise SourceError(
                f"{self.folder} has no split {name!r}, there are: {known}; name one, FOLDER#SPLIT"
            )
        wanted = set(self.parts[name]) - self.excluded
        unknown = sorted(wanted.difference(self.listed))
        if unknown:
            raise SourceError(
                f"the {name} split of {self.folder} has {unknown[0]!r}, which {self.info} does not "
                "list: run `energon prepare` again"
            )
        if not wanted:
            raise SourceError(
                f"the {name} split of {self.folder} has no shard that is not excluded: check "
                f"{self.path}"
            )
        return wanted


def is_prepared(folder: str) -> bool:
    """Return whether `folder` is a data set that Energon has prepared."""
    return storage.is_folder(urls.join(folder, FOLDER))


def shard_names(folder: str, split: str | None = None) -> list[str]:
    """Paths below `folder` of the tars of a split, in the order in which its info lists them.

    Args:
        split: its name; None is `TRAIN`, or all shards where the folder has no splits.

    Raises:
        SourceError: the description cannot be read or understood, has no such split, names shards
            that it does not list, or leaves single samples out.
    """
    described = _described(folder)
    wanted = described.wanted(split)
    if wanted is None:
        return list(described.listed)
    _refuse_single_samples(described, wanted)
    return [name for name in described.listed if name in wanted]


def not_read(folder: str, paths: Collection[str]) -> NotRead:
    """Return what is in a prepared folder, or is listed in it, beside the shards that are read.

    Args:
        paths: of all shards that are read, absolute.

    Raises:
        SourceError: as `shard_names`.
    """
    described = _described(folder)
    names = dict.fromkeys((*described.listed, *_tars_in(folder)))
    left = [name for name in names if urls.absolute(urls.join(folder, name)) not in paths]
    parts = described.parts or {}
    split_of = {name: split for split in reversed(parts) for name in parts[split]}
    split_of |= dict.fromkeys(described.excluded, _EXCLUDED)
    reasons = Counter(split_of[name] for name in left if name in split_of)
    notes = [
        f"{number:,} shard(s) of {folder}: "
        + (f"excluded by {described.path}" if why is _EXCLUDED else f"of its {why} split")
        for why, number in reasons.items()
    ]
    nowhere = [name for name in left if name not in split_of]
    warnings = []
    if nowhere:
        warnings.append(
            f"{len(nowhere):,} tar(s) of {folder} are in no split and not read: {some(nowhere)}; "
            "run `energon prepare` again if they belong to it"
        )
    vain = [name for name in sorted(described.excluded) if not described.lists(name)]
    if vain:
        warnings.append(
            f"{described.path} excludes {some(vain)}, which {described.info} does not list: that "
            "leaves nothing out, so check the names"
        )
    return NotRead(tuple(notes), tuple(warnings))


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


def _refuse_single_samples(described: _Description, read: Collection[str]) -> None:
    single = sorted(name for name in described.excluded if _shard_of(name) in read)
    if single:
        raise SourceError(
            f"{described.path} excludes single samples ({single[0]!r}): whole shards are read, so "
            "take these entries out of a copy of the folder's .nv-meta, and leave the samples out "
            "with `packidx plan --exclude`"
        )


def _described(folder: str) -> _Description:
    info, listed = _listed(folder)
    path, splits = _loaded(folder, _SPLITS)
    parts = splits.get("split_parts") if isinstance(splits, dict) else None
    if not isinstance(parts, dict):
        if splits is not None:
            raise SourceError(f"{path} has no split_parts: run `energon prepare` again")
        return _Description(folder, info, listed, path, None, frozenset())
    excluded = frozenset(_names(path, splits.get("exclude")))
    names = {str(split): tuple(_names(path, shards)) for split, shards in parts.items()}
    return _Description(folder, info, listed, path, names, excluded)


def _listed(folder: str) -> tuple[str, tuple[str, ...]]:
    """The list of a folder's shards, and its path."""
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
    return path, tuple(counts)


def _names(path: str, patterns: Any) -> Iterable[str]:
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
