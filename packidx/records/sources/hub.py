"""Data sets of the Hugging Face Hub, by id or ``hf://`` URL, at one revision.

The Hub says which commit a branch is at now; what is read is of that commit, whatever happens to
the branch: the URL of a shard names it. What `datasets` has prepared of that commit is read from
its cache, else what was downloaded of it from the hub cache, else the repository itself. Where the
Hub cannot be asked, the two caches are all there is. Nothing is copied, and no code is run.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from packidx.errors import SourceError
from packidx.io import urls
from packidx.records.containers.registry import SUFFIXES, required_kind
from packidx.records.layout import Layout
from packidx.records.media.paths import refuse_outside
from packidx.records.shards import Shard
from packidx.records.sources import energon
from packidx.records.sources.hub_library import (
    builder_of,
    files_of,
    is_installed,
    library,
    listed,
    refuse_absent,
)

SCHEME = "hf://"

_REVISION = r"(refs/(?:pr|convert)/[^/:#]+|[^/:#]+)"
_NAME = re.compile(
    rf"(?:hf://datasets/)?(\w[\w.-]*/\w[\w.-]*)(?:@{_REVISION})?(?::([^#/]+))?(?:#([^/]+))?",
    re.ASCII,
)
_URL = re.compile(rf"hf://(datasets/|spaces/)?([^/@]+/[^/@]+)(?:@{_REVISION})?(/.*)?", re.DOTALL)
_TYPES = {"datasets/": "dataset", "spaces/": "space", None: "model"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 10.0  # that the Hub may take to say where a branch is


@dataclass(frozen=True)
class Name:
    """A data set as it is named: ``org/name@revision:config#split,split``."""

    repo: str
    revision: str | None
    config: str | None
    splits: tuple[str, ...]


def named(arg: str) -> Name | None:
    """The data set of the Hub that `arg` may be the name of; None where it is no such name."""
    match = _NAME.fullmatch(arg)
    if match is None or arg.endswith((*SUFFIXES, ".yaml", ".yml")):
        return None
    repo, revision, config, splits = match.groups()
    wanted = tuple(split.strip() for split in (splits or "train").split(","))
    return Name(repo, revision and urllib.parse.unquote(revision), config, wanted)


def shards_of(arg: str, name: Name, layout: Layout) -> list[Shard]:
    """The shards of a data set's splits: of the only or default config and of the train split,
    where none is named.

    Raises:
        SourceError: it is nowhere, or cannot be read as it is.
        MissingExtraError: `datasets`, which knows where a split's files are, is not installed.
    """
    commit, unasked = _commit(arg, "dataset", name.repo, name.revision)
    if commit is None:
        found = _in_caches(arg, name, unasked)
    else:
        found = at_commit(arg, name.repo, commit, name.config, name.splits)
    top = name.repo.rpartition("/")[2] + (f"/{name.config}" if name.config else "")
    shards = [
        Shard(path, path, top if split == "train" else f"{top}/{split}", kind, layout)
        for split, paths in found.files.items()
        for path in paths
        if (kind := required_kind(path, path))
    ]
    number = f"{len(shards):,} file{'s' if len(shards) > 1 else ''}"
    said = f"{name.repo} at {found.revision}: {number} {found.place}"
    return from_hub(shards, f"{said}, since {unasked}" if unasked else said)


def pinned(url: str) -> tuple[str, str]:
    """The place of an ``hf://`` URL at one commit, and what is said of it.

    The place is the URL with the commit in it, or, where the Hub cannot be asked, what the hub
    cache has of it. What has no revisions (a bucket) stays as it is.

    Raises:
        SourceError: there is no such repository or revision, or it cannot be asked for.
    """
    match = _URL.fullmatch(url)
    if match is None or url.startswith(f"{SCHEME}buckets/"):
        return url, ""
    kind, repo, revision, below = match.groups()
    revision, below = revision and urllib.parse.unquote(revision), below or ""
    commit, unasked = _commit(url, _TYPES[kind], repo, revision)
    if commit is not None:
        return f"{SCHEME}{kind or ''}{repo}@{commit}{below}", f"{repo} at {commit}: from the Hub"
    folder, is_whole = snapshot(_TYPES[kind], repo, revision)
    if folder is not None:
        place = folder + urllib.parse.unquote(below)
        if not is_whole and not os.path.isfile(place):
            refuse_part(url, _TYPES[kind], repo)
        said = f"{repo} at {os.path.basename(folder)}: from the hub cache, {folder}"
        return place, f"{said}, since {unasked}"
    raise SourceError(f"{url}: {unasked}, and {hub_folder(_TYPES[kind], repo)} does not have it")


def from_hub(shards: Sequence[Shard], said: str) -> list[Shard]:
    """`shards`, of which the first says where they are from."""
    return [replace(shard, origin="" if number else said) for number, shard in enumerate(shards)]


def _in_caches(arg: str, name: Name, unasked: str) -> Found:
    """What the caches have where the Hub cannot be asked."""
    repo, revision = name.repo, name.revision
    folder, is_whole = snapshot("dataset", repo, revision)
    commit = os.path.basename(folder) if folder is not None else None
    if revision is not None and commit is None and _COMMIT.fullmatch(revision):
        commit = revision
    looked_at = [hub_folder("dataset", repo)]
    if is_installed() and (revision is None or commit is not None):
        looked_at.append(datasets_folder(repo))
        wanted = None if revision is None else commit
        found = in_datasets_cache(arg, repo, wanted, name.config, name.splits)
        if found is not None:
            return found
    if folder is not None and not is_whole:
        refuse_part(arg, "dataset", repo)
    if folder is not None:
        return in_snapshot(arg, folder, name.config, name.splits)
    here = "" if urls.is_url(arg) else "no such file or folder is here, "
    at = "" if revision is None else f" at revision {revision}"
    raise SourceError(
        f"{arg}: {here}{unasked}, and the Hub's data set of that name is not in "
        f"{' or '.join(looked_at)}{at}: see how it is written"
    )


def _commit(arg: str, kind: str, repo: str, revision: str | None) -> tuple[str | None, str]:
    """The commit that the Hub has a revision at, or None and why the Hub did not say it.

    Raises:
        SourceError: the repository has no such revision.
    """
    import huggingface_hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return None, "the Hub is not asked (HF_HUB_OFFLINE)"
    api = huggingface_hub.HfApi()
    try:
        info = api.repo_info(repo, repo_type=kind, revision=revision, timeout=_SECONDS)
    except errors.RevisionNotFoundError:
        raise SourceError(f"{arg}: {repo} has no revision {revision!r} at {api.endpoint}") from None
    except errors.GatedRepoError:
        return None, f"{api.endpoint} shows {repo} only to those who were given access to it"
    except errors.RepositoryNotFoundError:
        seen = "has no such repository, or shows it only to those who may see it (`hf auth login`)"
        return None, f"{api.endpoint} {seen}"
    except Exception as error:  # of its HTTP library, which changes with its version
        words = " ".join(str(error).split()) or type(error).__name__
        return None, f"{api.endpoint} could not be asked ({words:.200})"
    return str(info.sha), ""


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
