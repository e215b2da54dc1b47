"""The WebDataset folders that an export for Energon refers to, and whether Energon can read them.

Energon finds a member by name in ``.nv-meta/index.sqlite`` of its folder, and its tar in
``.nv-meta/.info.json`` (`WebdatasetFileStore` in megatron.energon.cache). `energon prepare` writes
both; run it again after the tars have changed.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from packidx.errors import OptionError, SourceError
from packidx.io import storage, urls
from packidx.io.option_files import load_document
from packidx.records.sources.folders import ENERGON as FOLDER

_INFOS = (".info.json", ".info.yaml")  # of Energon 7, and of earlier ones
_DATABASE = "index.sqlite"
_BUCKET = re.compile(r"(s3|gs|ais)://([^/]+)(/.*|)", re.DOTALL)


class Sources:
    """The folders of some shards, each with the name that a pack calls it by.

    A shard's folder is the nearest one above it that Energon has prepared, else its own.

    Args:
        shards: their paths, in the manifest's order.

    Attributes:
        folders: name (``src``, ``src1`` …) → folder, in order of appearance.
        warnings: what Energon will miss, a sentence each.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self.shards = list(shards)
        self._shards: dict[str, tuple[str, str]] = {}  # path → folder and name in it
        self._info = functools.cache(_listed)
        for path in shards:
            folder = self._folder_of(urls.absolute(path))
            name = urls.absolute(path)[len(folder) :].lstrip("/")
            self._shards[path] = folder, name
        distinct = dict.fromkeys(folder for folder, _ in self._shards.values())
        self.folders = {f"src{n or ''}": folder for n, folder in enumerate(distinct)}
        self._names = {folder: name for name, folder in self.folders.items()}
        self.warnings = [text for folder in distinct if (text := self._unready(folder))]

    def name_of(self, path: str) -> str | None:
        """Return what a pack calls the folder of a shard; None where there is only one."""
        return self._names[self._shards[path][0]] if len(self.folders) > 1 else None

    def folder_of(self, path: str) -> str | None:
        """Return the folder of a shard; None of another file."""
        return self._shards[path][0] if path in self._shards else None

    def _folder_of(self, path: str) -> str:
        own = folder = path.rpartition("/")[0] or "/"
        while True:
            if self._info(folder) is not None:
                return folder
            above = folder.rpartition("/")[0] or "/"
            if above == folder or above.endswith(("://", ":/")):
                return own
            folder = above

    def _unready(self, folder: str) -> str | None:
        """Return what Energon would miss in a folder; None where nothing."""
        listed = self._info(folder)
        database = urls.join(urls.join(folder, FOLDER), _DATABASE)
        if listed is None or not storage.is_file(database):
            return (
                f"{folder} has no {FOLDER}/{_DATABASE}, in which Energon looks media up: run "
                f"`{prepare_command(folder)}` before training"
            )
        known = set(listed)
        for inside, name in self._shards.values():
            if inside == folder and name not in known:
                return (
                    f"{folder} was prepared without {name}: run `energon prepare` on it again "
                    "before training"
                )
        return None


def prepare_command(folder: str, *options: str) -> str:
    """Return the command that prepares a folder; one of a store as far as Energon knows it."""
    with contextlib.suppress(OptionError):
        folder = as_energon_names(folder)
    return shlex.join(["energon", "prepare", folder, *options])


def as_energon_names(folder: str) -> str:
    """A folder of a store as Energon, which reads stores through Multi-Storage Client, names it.

    ``s3://bucket/x`` is ``msc://_s3-bucket/x``, its profile that needs no configuration.

    Raises:
        OptionError: it is in a store that has no such profile.
    """
    if not urls.is_url(folder) or folder.startswith("msc://"):
        return folder
    match = _BUCKET.fullmatch(folder)
    if match is None:
        raise OptionError(
            f"Energon cannot read {folder}: say with --energon-root OLD=NEW what it is there, such "
            "as msc://PROFILE"
        )
    return f"msc://_{match[1]}-{match[2]}{match[3]}"


def _listed(folder: str) -> list[str] | None:
    """The shards that a prepared folder lists; None where it is not prepared."""
    for name in _INFOS:
        path = urls.join(urls.join(folder, FOLDER), name)
        try:
            data = storage.read(path)
            info: Any = load_document(name, data)
        except OSError:
            continue
        except ValueError:
            info = None
        counts = info.get("shard_counts") if isinstance(info, Mapping) else None
        if not isinstance(counts, Mapping):
            raise SourceError(f"{path} has no shard_counts: run `energon prepare` again")
        return list(map(str, counts))
    return None
