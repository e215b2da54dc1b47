"""Data sets of the Hugging Face Hub, by name or URL: downloaded, then read as folders are.

`huggingface_hub` knows caches, revisions and tokens; without a network it gives what its cache has.
What is read is of one commit, which stands in the folder's name. No code of a repository is run.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from packidx.errors import SourceError
from packidx.io import storage, urls
from packidx.records.containers.registry import SUFFIXES
from packidx.records.media.paths import refuse_outside

SCHEME = "hf://datasets/"
_NAME = re.compile(
    r"(?:hf://datasets/)?(\w[\w.-]*/\w[\w.-]*)(?:@(refs/(?:pr|convert)/[^/:#]+|[^/:#]+))?"
    r"(?::([^#/]+))?(?:#([^/]+))?(?:(?<=\w)/(.+))?",
    re.DOTALL,
)
_WITH_MEDIA = (".parquet", ".arrow", ".tar")  # beside which no media lie
_HARMLESS = ("config_name", "data_files", "data_dir", "default", "description", "version")
_CARD = "README.md"
_CARDS = (_CARD, ".gitattributes")  # of which every repository has one


@dataclass(frozen=True)
class Name:
    """A data set as it is named: ``org/name@revision:config#split,split``, or files of one."""

    repo: str
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ()
    below: str | None = None
    """A path or glob in it, of an URL."""


def parse_name(arg: str) -> Name | None:
    """The data set of the Hub that `arg` may be the name of; None if it is no such name."""
    match = _NAME.fullmatch(arg)
    is_url = arg.startswith(SCHEME)
    if match is None or (not is_url and (match[5] or arg.endswith((*SUFFIXES, ".yaml", ".yml")))):
        return None
    repo, revision, config, splits, below = match.groups()
    wanted = tuple(split.strip() for split in splits.split(",")) if splits else ()
    return Name(repo, revision and urllib.parse.unquote(revision), config, wanted, below)


def download_files(arg: str, name: Name) -> tuple[str, list[tuple[str, str]]]:
    """Get what is named into the hub cache: files of splits that the README lists, or all of it.

    Returns the folder of one commit, which is its last name; and of the splits that the README
    lists (name of a source, path or glob). Raise a SourceError if it cannot be had, has no such
    config or split, or its README states more than which files these are.
    """
    folder = _download_snapshot(arg, name, _CARDS if name.below is None else [name.below])
    name = replace(name, revision=os.path.basename(folder))  # wherever a branch goes meanwhile
    places = [("", name.below or "")]
    if name.below is None:
        top = name.repo.rpartition("/")[2] + (f"/{name.config}" if name.config else "")
        splits = _splits_of_card(arg, folder, name.config)
        wanted = name.splits or ("train",)
        if splits and (absent := [split for split in wanted if split not in splits]):
            known = ", ".join(sorted(splits))
            raise SourceError(f"{arg}: there is no split {absent[0]!r}, but {known}: name one")
        places = [
            (top if split == "train" else f"{top}/{split}", path)
            for split in wanted
            for path in splits.get(split, ())
        ]
        folder = _download_snapshot(arg, name, [path for _, path in places] or None)
    places = [(source, urls.join_path(folder, path)) for source, path in places]
    files = [file for _, path in places for file in storage.glob(path)]
    if places and not (files and all(file.endswith(_WITH_MEDIA) for file in files)):
        _download_snapshot(arg, name, None)  # with the media that a text may name
    return folder, places


def _download_snapshot(arg: str, name: Name, paths: Sequence[str] | None) -> str:
    """The hub cache's folder of a data set, with the files, globs and folders at `paths`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    patterns = [each for path in paths or () for each in (path, f"{path.rstrip('/')}/*")]
    try:
        return snapshot_download(
            name.repo, repo_type="dataset", revision=name.revision, allow_patterns=patterns or None
        )
    except Exception as error:  # of its HTTP library, which changes with its version
        here = "" if urls.is_url(arg) else "no such file or folder is here, and "
        words = " ".join(str(error).split()) or type(error).__name__
        text = f"{arg}: {here}the Hub's data set {name.repo} cannot be had ({words:.400})"
        cure = f"run `hf auth login`, or `hf download {name.repo} --repo-type dataset`"
        raise SourceError(f"{text}: check its name, {cure} where there is a network") from None


def _splits_of_card(arg: str, folder: str, config: str | None) -> dict[str, list[str]]:
    """The paths and globs of each split of a config, as the README lists them; none if it does not.
    Raise a SourceError if there is no such config, or it states what is not applied here, or files
    that are not of its repository."""
    from huggingface_hub import metadata_load

    path = os.path.join(folder, _CARD)
    refuse_outside(path, folder)
    try:
        card = metadata_load(path) if os.path.isfile(path) else None
    except Exception as error:  # of its YAML library
        raise SourceError(f"{arg}: its README cannot be understood ({error})") from None
    listed: list[Any] = (card or {}).get("configs") or []
    configs = {str(c.get("config_name", "default")): c for c in listed if isinstance(c, dict)}
    if not configs and config is None:
        return {}
    default = next((n for n, each in configs.items() if each.get("default")), "default")
    chosen = config or (default if len(configs) > 1 else next(iter(configs)))
    if chosen not in configs:
        known = ", ".join(configs) or "none"
        raise SourceError(f"{arg}: name a config, org/name:CONFIG; its README has {known}")
    for key, value in configs[chosen].items():
        if key not in _HARMLESS:
            text = f"{arg}: config {chosen} states {key}={value!r:.80}, which is not applied here"
            raise SourceError(f"{text}: name its files, {SCHEME}org/name/PATH")
    files = configs[chosen].get("data_files") or "**"
    below = str(configs[chosen].get("data_dir") or "")
    splits: dict[str, list[str]] = {}
    for entry in files if isinstance(files, list) else [files]:
        split, given = "train", entry
        if isinstance(entry, dict):
            split, given = str(entry.get("split", "train")), entry.get("path")
        for pattern in given if isinstance(given, list) else [given]:
            place = os.path.join(below, str(pattern))
            if ":" in place or os.path.isabs(place) or ".." in place.split("/"):
                text = f"its README names {place!r:.200}, which is not of its repository"
                raise SourceError(f"{arg}: {text}: name that as a source")
            splits.setdefault(split, []).append(place)
    return splits
