"""`datasets`, asked where the files of a Hub data set's splits are; it reads none, runs no code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from packidx.errors import MissingExtraError, SourceError
from packidx.records.containers.registry import KNOWN, SUFFIXES

# What a config of README may state without changing what a file's records are.
_HARMLESS = ("name", "version", "data_dir", "data_files", "description", "features")


def is_installed() -> bool:
    """Whether `datasets` is, of any release."""
    return importlib.util.find_spec("datasets") is not None


def library(arg: str) -> Any:
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
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    both = (datasets.utils.logging, logging)
    levels, hidden = [each.get_verbosity() for each in both], are_progress_bars_disabled()
    for each in both:
        each.set_verbosity_error()
    if not hidden:
        disable_progress_bars()
    try:
        yield
    finally:
        for each, level in zip(both, levels, strict=True):
            each.set_verbosity(level)
        if not hidden:
            enable_progress_bars()


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


def builder_of(arg: str, place: str, config: str | None, commit: str | None) -> Any:
    """What `datasets` would load a data set with: of the Hub at a commit, or a folder.

    Raises:
        SourceError: it finds no such config, no data file, or a script.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = library(arg)
    own = os.path.realpath(place) if commit is None else f"hf://datasets/{place}@{commit}"
    try:
        with _quietly(datasets), _within(arg, own, datasets):
            return datasets.load_dataset_builder(place, config, revision=commit)
    except SourceError:
        raise
    except Exception as error:  # many kinds: no such config, no data file, a script
        words = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{arg}: `datasets` says: {words:.500}; a config is named org/name:CONFIG, and files "
            "are named hf://datasets/org/name/PATH"
        ) from error


def files_of(arg: str, builder: Any, splits: Sequence[str]) -> dict[str, list[str]]:
    """The files of each split, all of which are records that are read as they lie there."""
    from datasets.packaged_modules.folder_based_builder.folder_based_builder import (
        FolderBasedBuilder,
    )

    there = builder.config.data_files or {}
    refuse_absent(arg, splits, there)
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


def refuse_absent(arg: str, splits: Sequence[str], there: Iterable[Any]) -> None:
    """Raise a SourceError unless all of `splits` are there."""
    absent = [split for split in splits if split not in there]
    if absent:
        raise SourceError(f"{arg}: there is no split {absent[0]!r}, but {listed(there)}: name one")


def listed(names: Iterable[Any]) -> str:
    """Names, in order, as a sentence has them."""
    return ", ".join(sorted(str(name) for name in names)) or "none"
