"""The parts of all exports: the snapshot that they open, packs in order, files described."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from packidx.digests import file_digest
from packidx.errors import OptionError
from packidx.format.index import IndexManifest
from packidx.index import Index, open_index
from packidx.io import files
from packidx.io.output_folder import Kind, check_free, is_within
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.fetch import Snapshot
from packidx.run.workers import Progress, Workers

Reader = TypeVar("Reader")
Made = TypeVar("Made")


def open_exported(
    index: str | os.PathLike[str] | Index,
    output: str,
    kind: Kind,
    roots: Mapping[str, str] | None,
) -> Index:
    """Open the snapshot that is exported.

    Raises:
        OptionError: the plan is of a transform; or `output` holds what is exported, is in the
            index, is no folder, or holds what no export has written.
    """
    opened = open_index(index if isinstance(index, Index) else os.fspath(index), roots)
    transform, shards = opened.snapshot.lengths.transform, opened.snapshot.shards
    if transform is not None:
        raise OptionError(
            f"the lengths of {opened.path}@{opened.id[:12]} were counted with the transform "
            f"{transform.name}, which runs in training, on the files' own records: export a plan "
            "of lengths without one, or read this one with packidx.torch.PackedDataset"
        )
    for path in (opened.path, *(opened.resolve(shard.uri) for shard in shards)):
        if is_within(path, output):
            holds = "is itself what" if is_within(output, path) else f"holds {path}, which"
            raise OptionError(f"{output} {holds} is exported: name another folder")
    if is_within(output, opened.path):
        raise OptionError(f"{output} is in the index {opened.path}: name a folder outside of it")
    check_free(output, kind)
    return opened


def labels_of(index: Snapshot) -> LabelPolicy:
    """Return the rule for what is trained on that the lengths of an index were counted by."""
    manifest = index.snapshot
    encoder = (manifest.lengths if isinstance(manifest, IndexManifest) else manifest).encoder
    stated = None if encoder is None else encoder.labels
    return DEFAULT_POLICY if stated is None else LabelPolicy.parse(stated)


def packs_in_order(
    index: Index,
    read: Callable[[range, Reader], Made],
    setup: Callable[[], Reader],
    workers: Workers,
    progress: Progress | None,
    *,
    size: int = 1,
) -> Iterator[tuple[range, Made]]:
    """Yield what `read` makes of all packs, `size` at a time, in their order.

    Args:
        setup: makes what a process reads by.

    Raises:
        SourceError: a process died.
        PackidxError: as of `read`.
    """
    stop = index.num_packs
    tasks = [range(at, min(at + size, stop)) for at in range(0, stop, size)]
    for task, made in zip(tasks, workers.map(read, tasks, setup), strict=True):
        yield task, made
        if progress is not None:
            progress("packs", task.stop, stop)


def describe_files(folder: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return path, bytes and SHA-256 of files of a folder, which are on disk then."""
    paths = {name: os.path.join(folder, name) for name in names}
    for path in paths.values():
        files.fsync_path(path)
    return [
        {"path": name, "bytes": os.path.getsize(path), "sha256": file_digest(path)}
        for name, path in paths.items()
    ]
