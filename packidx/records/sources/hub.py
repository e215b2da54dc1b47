"""Data sets of the Hugging Face Hub, by id or ``hf://`` URL, at one revision.

The Hub says which commit a branch is at now; what is read is of that commit, whatever happens to
the branch: the URL of a shard names it. What was downloaded of that commit is read from the hub
cache, else the repository itself is read. Where the Hub cannot be asked, the cache is all there is.
`datasets` is asked where the files of a split are; nothing is copied, and no code is run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import posixpath
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from packidx.errors import MissingExtraError, SourceError
from packidx.format.manifest import Layout
from packidx.io import urls
from packidx.records.containers.registry import KNOWN, SUFFIXES, required_kind
from packidx.records.media.paths import refuse_outside
from packidx.records.shards import InputFile
from packidx.records.sources import energon

SCHEME = "hf://"

_REVISION = r"(refs/(?:pr|convert)/[^/:#]+|[^/:#]+)"
_NAME = re.compile(
    rf"(?:hf://datasets/)?(\w[\w.-]*/\w[\w.-]*)(?:@{_REVISION})?(?::([^#/]+))?(?:#([^/]+))?",
    re.ASCII,
)
_URL = re.compile(rf"hf://(datasets/|spaces/)?([^/@]+/[^/@]+)(?:@{_REVISION})?(/.*)?", re.DOTALL)
_TYPES = {"datasets/": "dataset", "spaces/": "space", None: "model"}
_SECONDS = 10.0  # that the Hub may take to say where a branch is
_OF = re.compile(r"(.*[-_])\d+([-_]of[-_])(\d+)(\D.*)", re.DOTALL)
_WITH_MEDIA = (".parquet", ".arrow", ".tar")
# What a config of README may state without changing what a file's records are.
_HARMLESS = ("name", "version", "data_dir", "data_files", "description", "features")


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


def files_of(arg: str, name: Name, layout: Layout) -> tuple[list[InputFile], str]:
    """The files of a data set's splits, and where they are read from: of the only or default config
    and of the train split, where none is named.

    Raises:
        SourceError: it is nowhere, or cannot be read as it is.
        MissingExtraError: `datasets`, which knows where a split's files are, is not installed.
    """
    commit, unasked = _commit(arg, "dataset", name.repo, name.revision)
    if commit is None:
        folder, is_whole = _snapshot("dataset", name.repo, name.revision)
        if folder is None:
            here = "" if urls.is_url(arg) else "no such file or folder is here, "
            at = "" if name.revision is None else f" at revision {name.revision}"
            raise SourceError(
                f"{arg}: {here}{unasked}, and the Hub's data set of that name is not in "
                f"{_hub_folder('dataset', name.repo)}{at}: see how it is written"
            )
        if not is_whole:
            _refuse_part(arg, "dataset", name.repo)
        commit, place = os.path.basename(folder), f"from the hub cache, {folder}, since {unasked}"
        files = _in_snapshot(arg, folder, name)
    else:
        files, place = _at_commit(arg, name, commit)
    top = name.repo.rpartition("/")[2] + (f"/{name.config}" if name.config else "")
    shards = [
        InputFile(path, path, top if split == "train" else f"{top}/{split}", kind, layout)
        for split, paths in files.items()
        for path in paths
        if (kind := required_kind(path, path))
    ]
    number = f"{len(shards):,} file{'s' if len(shards) > 1 else ''}"
    return shards, f"{name.repo} at {commit}: {number} {place}"


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
    folder, is_whole = _snapshot(_TYPES[kind], repo, revision)
    if folder is not None:
        place = folder + urllib.parse.unquote(below)
        if not is_whole and not os.path.isfile(place):
            _refuse_part(url, _TYPES[kind], repo)
        said = f"{repo} at {os.path.basename(folder)}: from the hub cache, {folder}"
        return place, f"{said}, since {unasked}"
    raise SourceError(f"{url}: {unasked}, and {_hub_folder(_TYPES[kind], repo)} does not have it")


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


def _at_commit(arg: str, name: Name, commit: str) -> tuple[dict[str, list[str]], str]:
    """The files of splits at a commit that the Hub has, and where they are: in the cache, if all
    of them are there, or at the Hub.

    Raises:
        SourceError: there is no such config or split, or files that are not read as they are.
        MissingExtraError: `datasets` is not installed.
    """
    repo = name.repo
    builder = _builder_of(arg, repo, name.config, commit)
    if builder.hash != commit:  # it goes over to another revision that it has in its cache
        raise SourceError(
            f"{arg}: `datasets` cannot read {repo} at {commit}: it may be a script, which is never "
            "run, or have no data file; name its files, hf://datasets/org/name/PATH"
        )
    files = _files_of(arg, builder, name.splits)
    prefix = f"hf://datasets/{repo}@{commit}/"
    outside = [url for paths in files.values() for url in paths if not url.startswith(prefix)]
    if outside:
        raise SourceError(f"{arg}: {outside[0]} is not of the repository: name it as a source")
    if (local := _local(repo, commit, prefix, files)) is not None:
        return local, f"from the hub cache, {_hub_folder('dataset', repo)}"
    return files, "from the Hub"


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
    return local if with_all or _snapshot("dataset", repo, commit)[1] else None


def _in_snapshot(arg: str, folder: str, name: Name) -> dict[str, list[str]]:
    """Return what the hub cache has of a data set's splits at a commit, where nobody can be asked.

    Raises:
        SourceError: there is no such config or split, or a shard of it is not there.
        MissingExtraError: `datasets` is not installed.
    """
    outside: list[str] = []
    for _ in energon.walk_once(folder, outside):
        pass
    for path in outside:
        refuse_outside(path, folder)
    files = _files_of(arg, _builder_of(arg, folder, name.config, None), name.splits)
    for paths in files.values():
        _refuse_missing(arg, folder, paths)
    return files


def _snapshot(kind: str, repo: str, revision: str | None) -> tuple[str | None, bool]:
    """The hub cache's folder of a repository at a revision, None where it has none, and whether all
    of it is there as far as anybody knows."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(repo, repo_type=kind, revision=revision, local_files_only=True)
    except errors.LocalEntryNotFoundError as error:
        return getattr(error, "snapshot_path", None), False
    return str(folder), True


def _refuse_part(arg: str, kind: str, repo: str) -> NoReturn:
    """Say that the hub cache has a part of a repository alone."""
    raise SourceError(
        f"{arg}: {_hub_folder(kind, repo)} has a part of it alone: run `hf download {repo} "
        f"--repo-type {kind}` where the Hub can be reached, or name its files, "
        f"hf://datasets/{repo}/PATH"
    )


def _hub_folder(kind: str, repo: str) -> str:
    """Return where the hub cache has a repository."""
    from huggingface_hub import constants

    return os.path.join(constants.HF_HUB_CACHE, "--".join((f"{kind}s", *repo.split("/"))))


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


# -- `datasets` ------------------------------------------------------------------------------------


def _library(arg: str) -> Any:
    """`datasets`, of a release that runs no code of a repository."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            f"{arg}: `datasets` knows which files a split has: pip install 'packidx[hub]', or name "
            "the files themselves, such as 'hf://datasets/org/name/data/train-*.parquet'"
        ) from None
    if int(datasets.__version__.partition(".")[0]) < 4:
        raise MissingExtraError(
            f"{arg}: datasets {datasets.__version__} may run a repository's own code: "
            "pip install 'packidx[hub]' for a release that does not"
        )
    return datasets


@contextlib.contextmanager
def _within(arg: str, place: str, datasets: Any) -> Iterator[None]:
    """No pattern that a README states leads out of `place` in the block.

    `datasets` follows one to any file of this machine, and to any URL, when it makes a builder.
    """
    resolve = datasets.data_files.resolve_pattern

    def resolve_within(pattern: str, base_path: str, *args: Any, **options: Any) -> Any:
        path = posixpath.normpath(posixpath.join(base_path, pattern))
        if ":" in pattern or not f"{path}/".startswith(f"{posixpath.normpath(place)}/"):
            raise SourceError(
                f"{arg}: its README names {pattern!r:.200}, which is not of its repository: if it "
                "is to be read, name it as a source yourself"
            )
        return resolve(pattern, base_path, *args, **options)

    datasets.data_files.resolve_pattern = resolve_within
    try:
        yield
    finally:
        datasets.data_files.resolve_pattern = resolve


def _builder_of(arg: str, place: str, config: str | None, commit: str | None) -> Any:
    """Return what `datasets` would load a data set with: of the Hub at a commit, or a folder.

    Raises:
        SourceError: it finds no such config, no data file, or a script.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = _library(arg)
    own = os.path.realpath(place) if commit is None else f"hf://datasets/{place}@{commit}"
    try:
        quiet = contextlib.redirect_stderr(io.StringIO())  # of its bars and notes
        logging.disable(logging.WARNING)
        with quiet, _within(arg, own, datasets):
            return datasets.load_dataset_builder(place, config, revision=commit)
    except SourceError:
        raise
    except Exception as error:  # many kinds: no such config, no data file, a script
        words = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{arg}: `datasets` says: {words:.500}; a config is named org/name:CONFIG, and files "
            "are named hf://datasets/org/name/PATH"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _files_of(arg: str, builder: Any, splits: Sequence[str]) -> dict[str, list[str]]:
    """The files of each split, all of which are records that are read as they lie there."""
    from datasets.packaged_modules.folder_based_builder.folder_based_builder import (
        FolderBasedBuilder,
    )

    there = builder.config.data_files or {}
    absent = [split for split in splits if split not in there]
    if absent:
        known = ", ".join(sorted(map(str, there))) or "none"
        raise SourceError(f"{arg}: there is no split {absent[0]!r}, but {known}: name one")
    with_media = isinstance(builder, FolderBasedBuilder)
    if not with_media:
        _refuse_settings(arg, builder.config)
    files = {}
    for split in splits:
        files[split] = [path for path in there[split] if path.endswith(SUFFIXES)]
        others = [path for path in there[split] if not path.endswith(SUFFIXES)]
        if others and not (files[split] and with_media):
            raise SourceError(
                f"{arg}: {len(others):,} of {len(there[split]):,} files of split {split} are not "
                f"read, such as {others[0]}: known endings are {KNOWN}"
            )
    return files


def _refuse_settings(arg: str, config: Any) -> None:
    """Raise where README states how files are read otherwise than `datasets` does of itself."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        plain = field.default
        if field.default_factory is not dataclasses.MISSING:
            plain = field.default_factory()
        if field.name not in _HARMLESS and value != plain:
            raise SourceError(
                f"{arg}: config {config.name} states {field.name}={value!r:.80}, which is not "
                "applied here: name its files, hf://datasets/org/name/PATH, with options for them"
            )
