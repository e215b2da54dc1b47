"""Packs for Megatron-Energon 7.4 as text beside the original WebDataset: no media are copied.

packs.jsonl        a line per pack (FORMAT.md), in the schedule's order
packs.jsonl.idx    where each line begins, and the end: little-endian uint64, Energon's own index
metadataset.yaml   a MetadatasetV2 that gives `packs.jsonl` the tars' folders as ``aux``
.packidx.json      what was exported; the mark of a folder that an export may replace

Energon reads a ``.jsonl`` with such an index as crude samples, and hands a cooker the stores named
in ``aux``, in which media are looked up by member name (`DatasetReference.aux` in its
metadataset/metadataset_v2.py, `CrudeJsonlDatasetFactory` in flavors/jsonl).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packidx import digests
from packidx.errors import OptionError, PackidxError
from packidx.export.energon.parts import KIND, VERSION, PackRange, PartWriter, finish, write_parts
from packidx.export.energon.sources import Sources, as_energon_names
from packidx.export.outputs import check_output, check_shards
from packidx.format.manifest import Shard
from packidx.index import Index, open_index
from packidx.io import urls
from packidx.io.output_folder import replacing
from packidx.run.engines import open_workers
from packidx.run.progress import Progress

_PART_PACKS = 256  # thousands of samples: what a killed export does again at most


@dataclass(frozen=True)
class EnergonSummary:
    """What an export holds."""

    path: str
    snapshot_id: str
    num_packs: int
    num_samples: int
    """Lines have so many in all: pieces and copies are one each."""
    num_media: int
    """Members that they name."""
    nbytes: int
    """Of the lines and their index."""
    source_bytes: int
    """Of the tars it refers to."""
    sources: dict[str, str]
    """Name in ``aux`` → folder, as Energon sees it."""
    warnings: list[str]
    """What must be done before training, a sentence each."""
    resumed_parts: int
    """Parts that a killed run of the same export had finished."""
    seconds: float


def export_energon(
    index: str | os.PathLike[str] | Index,
    output: str | os.PathLike[str],
    *,
    roots: Mapping[str, str] | None = None,
    relative: bool = False,
    energon_roots: Mapping[str, str] | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> EnergonSummary:
    """Write a snapshot's packs for Megatron-Energon; only headers and JSON of the tars are read.

    `output` is built beside its place and swapped in whole. Equal arguments give equal bytes.

    Args:
        index: the index, or ``INDEX@ID``.
        output: a folder; an export that is there is replaced.
        roots: ``{old: new}`` path prefixes of data that has moved since it was planned.
        relative: name the tars' folders relative to `output`, not absolutely.
        energon_roots: ``{old: new}`` prefixes of the tars' folders where Energon sees them.
        workers: processes; the CPUs that this process may use by default.
        engine: ``'local'`` or ``'ray'``, as for `packidx.estimate_lengths`: who writes. The bytes
            are the same.
        progress: called with how far the work is: ``('packs', done, total)``.

    Raises:
        NotFoundInIndex, FormatError: there is no such snapshot, or it cannot be read.
        OptionError: an option or `output` cannot be used, the samples are not in tars, or the plan
            is of a transform.
        SourceError, BadRecord, MismatchError: a tar is not the one that was planned.
    """
    begun = time.monotonic()
    writers = open_workers(engine, workers)
    output = os.fspath(output)
    opened = open_index(index if isinstance(index, Index) else os.fspath(index), roots)
    check_output(output, opened, KIND)
    check_shards(opened)
    shards = _tars(opened)
    sources = Sources([opened.resolve(shard.uri) for shard in shards])
    _check_roots(energon_roots or {}, list(sources.folders.values()))
    aux = {
        name: _as_seen(folder, output, relative, energon_roots or {})
        for name, folder in sources.folders.items()
    }
    # What decides the parts: another export's are not taken for ours.
    facts = [KIND.format, VERSION, _PART_PACKS, opened.id, sources.folders]
    identity = digests.digest(digests.canonical_json(facts))
    with replacing(output, KIND, identity) as built:
        writer = PartWriter(opened, sources, built)
        spans = [
            PackRange(number, first, min(first + _PART_PACKS, opened.num_packs))
            for number, first in enumerate(range(0, opened.num_packs, _PART_PACKS))
        ]
        with writers:
            resumed, num_media = write_parts(writer, spans, writers, progress)
        manifest = finish(built, writer, spans, opened, aux, num_media)
    return EnergonSummary(
        path=output,
        snapshot_id=opened.id,
        num_packs=opened.num_packs,
        num_samples=manifest.num_samples,
        num_media=num_media,
        nbytes=sum(file.bytes for file in manifest.files),
        source_bytes=sum(shard.bytes for shard in shards),
        sources=aux,
        warnings=[*sources.warnings, *_about_lengths(opened)],
        resumed_parts=resumed,
        seconds=time.monotonic() - begun,
    )


def _tars(index: Index) -> list[Shard]:
    """The shards of the packed sources.

    Raises:
        PackidxError: the plan does not say where its samples are, or has none.
        OptionError: one is no tar, or the plan is of a transform or of preference pairs.
    """
    if not index.num_packs:
        raise OptionError(f"snapshot {index.id[:12]} has no pack, so there is nothing to export")
    transform = index.snapshot.lengths.transform
    if transform is not None:
        raise OptionError(
            f"the lengths of snapshot {index.id[:12]} were counted with the transform "
            f"{transform.name}, which gets the files' own records, and lines have others: export "
            "a plan of lengths without one, or read this one with packidx.torch.PackedDataset"
        )
    if index.snapshot.has_pairs:
        raise OptionError(
            f"snapshot {index.id[:12]} has preference pairs, of whose sides Energon says nothing: "
            "read it with packidx.torch.PackedDataset, or export a plan of one side (--pair chosen)"
        )
    packed = {source.name for source in index.snapshot.sources if source.num_samples}
    shards = [shard for shard in index.snapshot.shards if shard.source in packed]
    if not shards:
        raise PackidxError(
            f"snapshot {index.id[:12]} was planned from bare lengths and does not say where its "
            "samples are: plan from a table that `packidx estimate` wrote"
        )
    for shard in shards:
        if shard.container != "tar":
            raise OptionError(
                f"{shard.uri} is no tar, and only in tars Energon finds media: `packidx export "
                "wds` writes tars that hold the packs"
            )
    return shards


def _as_seen(folder: str, output: str, relative: bool, roots: Mapping[str, str]) -> str:
    """A folder of tars as `metadataset.yaml` names it."""
    for old in sorted(roots, key=len, reverse=True):
        prefix = old.rstrip("/")
        if folder in (prefix, old) or folder.startswith(f"{prefix}/"):
            return roots[old].rstrip("/") + folder[len(prefix) :]
    if relative:
        here, there = urls.absolute(output), urls.absolute(folder)
        if _root_of(here) != _root_of(there):
            raise OptionError(f"{folder} and {output} are not in one place: leave --relative out")
        return os.path.relpath(there[len(_root_of(there)) :], here[len(_root_of(here)) :])
    return as_energon_names(folder)


def _root_of(path: str) -> str:
    """Scheme and bucket; nothing of a path of this machine."""
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""


def _about_lengths(index: Index) -> list[str]:
    """What keeps a sample from having its `token_len`."""
    warnings = []
    methods = index.snapshot.lengths.methods
    if guessed := methods.get("heuristic", 0):
        warnings.append(
            f"{guessed} of {sum(methods.values())} lengths are guesses, so token_len is not "
            "len(input_ids): estimate with --processor"
        )
    return warnings


def _check_roots(roots: Mapping[str, str], folders: Sequence[str]) -> None:
    """Refuse a root with which no folder begins: a slip that training would find.

    Raises:
        OptionError: there is one.
    """
    for old in roots:
        if not any(f"{folder}/".startswith(f"{old.rstrip('/')}/") for folder in folders):
            raise OptionError(
                f"--energon-root {old}=…: no folder of tars begins so, there is {folders[0]}"
            )
