"""Data sets of the Hugging Face Hub, by id or ``hf://`` URL, at one revision.

The Hub says which commit a branch is at now; what is read is of that commit, whatever happens to
the branch: the URL of a shard names it. What `datasets` has prepared of that commit is read from
its cache, else what was downloaded of it from the hub cache, else the repository itself. Where the
Hub cannot be asked, the two caches are all there is. Nothing is copied, and no code is run.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from packidx.errors import SourceError
from packidx.io import urls
from packidx.records.containers.registry import SUFFIXES, required_kind
from packidx.records.layout import Layout
from packidx.records.shards import Shard
from packidx.records.sources import hub_splits
from packidx.records.sources.hub_library import is_installed

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
        found = hub_splits.at_commit(arg, name.repo, commit, name.config, name.splits)
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
    folder, is_whole = hub_splits.snapshot(_TYPES[kind], repo, revision)
    if folder is not None:
        place = folder + urllib.parse.unquote(below)
        if not is_whole and not os.path.isfile(place):
            hub_splits.refuse_part(url, _TYPES[kind], repo)
        said = f"{repo} at {os.path.basename(folder)}: from the hub cache, {folder}"
        return place, f"{said}, since {unasked}"
    raise SourceError(
        f"{url}: {unasked}, and {hub_splits.hub_folder(_TYPES[kind], repo)} does not have it"
    )


def from_hub(shards: Sequence[Shard], said: str) -> list[Shard]:
    """`shards`, of which the first says where they are from."""
    return [replace(shard, origin="" if number else said) for number, shard in enumerate(shards)]


def _in_caches(arg: str, name: Name, unasked: str) -> hub_splits.Found:
    """What the caches have where the Hub cannot be asked."""
    repo, revision = name.repo, name.revision
    folder, is_whole = hub_splits.snapshot("dataset", repo, revision)
    commit = os.path.basename(folder) if folder is not None else None
    if revision is not None and commit is None and _COMMIT.fullmatch(revision):
        commit = revision
    looked_at = [hub_splits.hub_folder("dataset", repo)]
    if is_installed() and (revision is None or commit is not None):
        looked_at.append(hub_splits.datasets_folder(repo))
        wanted = None if revision is None else commit
        found = hub_splits.in_datasets_cache(arg, repo, wanted, name.config, name.splits)
        if found is not None:
            return found
    if folder is not None and not is_whole:
        hub_splits.refuse_part(arg, "dataset", repo)
    if folder is not None:
        return hub_splits.in_snapshot(arg, folder, name.config, name.splits)
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
