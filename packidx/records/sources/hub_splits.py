"""Where the files of a Hub data set's splits are, by what `datasets` and `huggingface_hub` know.

`datasets` finds a split's files (by the ``configs`` of README, or by their names) without reading
one, and its cache has, in ``org___name/config/version/commit``, the Arrow files that it has made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from packidx.errors import MissingExtraError, SourceError
from packidx.records.containers.registry import KNOWN, SUFFIXES

_OF = re.compile(r"(.*[-_])\d+([-_]of[-_])(\d+)(\D.*)", re.DOTALL)
_WITH_MEDIA = (".parquet", ".arrow", ".tar")
# What a config of README may state without changing what a file's records are.
_HARMLESS = ("name", "version", "data_dir", "data_files", "description", "features")


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
    builder = _builder(arg, repo, config, commit)
    if builder.hash != commit:  # it goes over to another revision that it has in its cache
        raise SourceError(
            f"{arg}: `datasets` cannot read {repo} at {commit}: it may be a script, which is never "
            "run, or have no data file; name its files, hf://datasets/org/name/PATH"
        )
    if (found := _prepared(arg, builder.cache_dir, builder.dataset_name, splits)) is not None:
        return found
    files = _files(arg, builder, splits)
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
        raise SourceError(f"{arg}: {root} has {_listed(configs)}: name one, {repo}:CONFIG")
    return _prepared(arg, newest, os.path.basename(root).rpartition("___")[2], splits)


def in_snapshot(arg: str, folder: str, config: str | None, splits: Sequence[str]) -> Found:
    """What the hub cache has of a data set's splits at a commit, where nobody can be asked.

    Raises:
        SourceError: there is no such config or split, or a shard of it is not there.
        MissingExtraError: `datasets` is not installed.
    """
    files = _files(arg, _builder(arg, folder, config, None), splits)
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
    datasets = _library(repo)
    from datasets.naming import camelcase_to_snakecase

    organisation, _, name = repo.rpartition("/")
    folder = f"{organisation}___{camelcase_to_snakecase(name)}"
    return os.path.join(os.path.expanduser(str(datasets.config.HF_DATASETS_CACHE)), folder)


def is_installed() -> bool:
    """Whether `datasets` is, of any release."""
    return importlib.util.find_spec("datasets") is not None


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
def _quietly(datasets: Any) -> Iterator[None]:
    """No bars and notes of `datasets` and `huggingface_hub` in the block."""
    from huggingface_hub import utils

    logging = datasets.utils.logging
    level, hidden = logging.get_verbosity(), utils.are_progress_bars_disabled()
    logging.set_verbosity_error()
    if not hidden:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if not hidden:
            utils.enable_progress_bars()


def _builder(arg: str, place: str, config: str | None, commit: str | None) -> Any:
    datasets = _library(arg)
    try:
        with _quietly(datasets):
            return datasets.load_dataset_builder(place, config, revision=commit)
    except Exception as error:  # many kinds: no such config, no data file, a script
        words = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{arg}: `datasets` says: {words:.500}; a config is named org/name:CONFIG, and files "
            "are named hf://datasets/org/name/PATH"
        ) from error


def _files(arg: str, builder: Any, splits: Sequence[str]) -> dict[str, list[str]]:
    """The files of each split, all of which are records that are read as they lie there."""
    from datasets.packaged_modules.folder_based_builder.folder_based_builder import (
        FolderBasedBuilder,
    )

    listed = builder.config.data_files or {}
    _refuse_absent(arg, splits, listed)
    with_media = isinstance(builder, FolderBasedBuilder)
    if not with_media:
        _refuse_settings(arg, builder.config)
    files = {}
    for split in splits:
        files[split] = [path for path in listed[split] if path.endswith(SUFFIXES)]
        others = [path for path in listed[split] if not path.endswith(SUFFIXES)]
        if not files[split] or (others and not with_media):
            raise SourceError(
                f"{arg}: {len(others):,} of {len(listed[split]):,} files of split {split} are not "
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
        if field.name not in _HARMLESS and value is not None and value != plain:
            raise SourceError(
                f"{arg}: config {config.name} states {field.name}={value!r:.80}, which is not "
                "applied here: name its files, hf://datasets/org/name/PATH, with options for them"
            )


def _prepared(arg: str, folder: str, name: str, splits: Sequence[str]) -> Found | None:
    """The Arrow files that `datasets` has made of some splits; None where one is not there."""
    if not os.path.isfile(os.path.join(folder, "dataset_info.json")):
        return None
    from datasets import DatasetInfo
    from datasets.naming import filenames_for_dataset_split

    made = DatasetInfo.from_directory(folder).splits or {}
    _refuse_absent(arg, splits, made)
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


def _refuse_absent(arg: str, splits: Sequence[str], there: Any) -> None:
    absent = [split for split in splits if split not in there]
    if absent:
        raise SourceError(f"{arg}: there is no split {absent[0]!r}, but {_listed(there)}: name one")


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


def _listed(names: Any) -> str:
    return ", ".join(sorted(str(name) for name in names)) or "none"
