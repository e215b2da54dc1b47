"""Where the files of a Hub data set's splits are, by what `datasets` and `huggingface_hub` know.

`datasets` finds a split's files (by the ``configs`` of README, or by their names) without reading
one, and its cache has, in ``org___name/config/version/commit``, the Arrow files that it has made.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from packidx.errors import SourceError
from packidx.records.media.inside import refuse_outside
from packidx.records.sources import energon
from packidx.records.sources.hub_library import builder_of, files_of, library, listed, refuse_absent

_OF = re.compile(r"(.*[-_])\d+([-_]of[-_])(\d+)(\D.*)", re.DOTALL)
_WITH_MEDIA = (".parquet", ".arrow", ".tar")


@dataclasses.dataclass(frozen=True)
class Found:
    """The files of some splits, in `datasets`' order, and where they are."""

    files: dict[str, list[str]]
    revision: str
    place: str
    """In words."""


def at_commit(arg: str, repo: str, commit: str, config: str | None, splits: Sequence[str]) -> Found:
    """Of a data set at a commit that the Hub has: in a cache, all of them, or at the Hub.

    Raises:
        SourceError: there is no such config or split, or files that are not read as they are.
        MissingExtraError: `datasets` is not installed.
    """
    builder = builder_of(arg, repo, config, commit)
    if builder.hash != commit:  # it goes over to another revision that it has in its cache
        raise SourceError(
            f"{arg}: `datasets` cannot read {repo} at {commit}: it may be a script, which is never "
            "run, or have no data file; name its files, hf://datasets/org/name/PATH"
        )
    if (found := _prepared(arg, builder.cache_dir, builder.dataset_name, splits)) is not None:
        return found
    files = files_of(arg, builder, splits)
    prefix = f"hf://datasets/{repo}@{commit}/"
    outside = [url for paths in files.values() for url in paths if not url.startswith(prefix)]
    if outside:
        raise SourceError(f"{arg}: {outside[0]} is not of the repository: name it as a source")
    if (local := _local(repo, commit, prefix, files)) is not None:
        return Found(local, commit, f"from the hub cache, {hub_folder('dataset', repo)}")
    return Found(files, commit, "from the Hub")


def _local(
    repo: str, commit: str, prefix: str, files: dict[str, list[str]]
) -> dict[str, list[str]] | None:
    """The files in the hub cache; None where not all that may belong to them is there.

    Beside a text there may be media that it names: then all of the repository is wanted.
    """
    from huggingface_hub import try_to_load_from_cache

    def cached(url: str) -> Any:
        return try_to_load_from_cache(repo, url.removeprefix(prefix), None, commit, "dataset")

    local = {split: [cached(url) for url in paths] for split, paths in files.items()}
    every = [path for paths in local.values() for path in paths]
    if not all(isinstance(path, str) for path in every):
        return None
    with_all = all(path.endswith(_WITH_MEDIA) for path in every)
    return local if with_all or snapshot("dataset", repo, commit)[1] else None


def in_datasets_cache(
    arg: str, repo: str, commit: str | None, config: str | None, splits: Sequence[str]
) -> Found | None:
    """What `datasets` has prepared of a data set at a commit, or last; None where it has nothing.

    Raises:
        SourceError: there is no such split, or are several configs.
        MissingExtraError: `datasets` is not installed.
    """
    root = datasets_folder(repo)
    folders = [
        folder
        for folder in glob.glob(os.path.join(glob.escape(root), "*", "*", commit or "*"))
        if os.path.isfile(os.path.join(folder, "dataset_info.json"))
        and not folder.endswith(".incomplete")
    ]
    if config is not None:
        folders = [folder for folder in folders if _config_of(folder) == config]
    if not folders:
        return None
    newest = max(folders, key=os.path.getmtime)
    same = os.path.basename(newest)
    configs = {_config_of(folder) for folder in folders if os.path.basename(folder) == same}
    if len(configs) > 1:
        raise SourceError(f"{arg}: {root} has {listed(configs)}: name one, {repo}:CONFIG")
    return _prepared(arg, newest, os.path.basename(root).rpartition("___")[2], splits)


def in_snapshot(arg: str, folder: str, config: str | None, splits: Sequence[str]) -> Found:
    """What the hub cache has of a data set's splits at a commit, where nobody can be asked.

    Raises:
        SourceError: there is no such config or split, or a shard of it is not there.
        MissingExtraError: `datasets` is not installed.
    """
    outside: list[str] = []
    for _ in energon.walk_once(folder, outside):
        pass
    for path in outside:
        refuse_outside(path, folder)
    files = files_of(arg, builder_of(arg, folder, config, None), splits)
    for paths in files.values():
        _refuse_missing(arg, folder, paths)
    return Found(files, os.path.basename(folder), f"from the hub cache, {folder}")


def snapshot(kind: str, repo: str, revision: str | None) -> tuple[str | None, bool]:
    """The hub cache's folder of a repository at a revision, None where it has none, and whether all
    of it is there as far as anybody knows."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(repo, repo_type=kind, revision=revision, local_files_only=True)
    except errors.LocalEntryNotFoundError as error:
        return getattr(error, "snapshot_path", None), False
    return str(folder), True


def refuse_part(arg: str, kind: str, repo: str) -> NoReturn:
    """Say that the hub cache has a part of a repository alone."""
    raise SourceError(
        f"{arg}: {hub_folder(kind, repo)} has a part of it alone: run `hf download {repo} "
        f"--repo-type {kind}` where the Hub can be reached, or name its files, "
        f"hf://datasets/{repo}/PATH"
    )


def hub_folder(kind: str, repo: str) -> str:
    """Where the hub cache has a repository."""
    from huggingface_hub import constants

    return os.path.join(constants.HF_HUB_CACHE, "--".join((f"{kind}s", *repo.split("/"))))


def datasets_folder(repo: str) -> str:
    """Where `datasets` has what it has prepared of a data set.

    Raises:
        MissingExtraError: `datasets` is not installed.
    """
    datasets = library(repo)
    from datasets.naming import camelcase_to_snakecase

    organisation, _, name = repo.rpartition("/")
    folder = f"{organisation}___{camelcase_to_snakecase(name)}"
    return os.path.join(os.path.expanduser(str(datasets.config.HF_DATASETS_CACHE)), folder)


def _prepared(arg: str, folder: str, name: str, splits: Sequence[str]) -> Found | None:
    """The Arrow files that `datasets` has made of some splits; None where one is not there."""
    if not os.path.isfile(os.path.join(folder, "dataset_info.json")):
        return None
    from datasets import DatasetInfo
    from datasets.naming import filenames_for_dataset_split

    made = DatasetInfo.from_directory(folder).splits or {}
    refuse_absent(arg, splits, made)
    files = {
        split: filenames_for_dataset_split(
            folder, name, split, filetype_suffix="arrow", shard_lengths=made[split].shard_lengths
        )
        for split in splits
    }
    if not all(os.path.isfile(path) for paths in files.values() for path in paths):
        return None
    place = f"that `datasets` has in its cache, {folder}"
    return Found(files, os.path.basename(folder), place)


def _refuse_missing(arg: str, folder: str, paths: Sequence[str]) -> None:
    """Raise where names that count themselves (``-00003-of-00010``) show that one is not there."""
    there: dict[tuple[str, ...], int] = {}
    for path in paths:
        if match := _OF.fullmatch(path):
            there[match.groups()] = there.get(match.groups(), 0) + 1
    for (_, _, number, _), count in there.items():
        if count < int(number):
            raise SourceError(
                f"{arg}: {folder} has {count:,} of {int(number):,} shards: run `hf download` for "
                "the others where the Hub can be reached, or name the files themselves"
            )


def _config_of(folder: str) -> str:
    return os.path.basename(os.path.dirname(os.path.dirname(folder)))
