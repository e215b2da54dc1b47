"""What an index needs of this machine: its own files, its sources, and packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from packidx import storage
from packidx.copies import sizes
from packidx.errors import PackidxError
from packidx.fetch import Fetcher, Located
from packidx.index import Index, Sample
from packidx.inspect.doctor.finding import Finding
from packidx.inspect.doctor.machine import Environment
from packidx.inspect.doctor.reading import chosen_packs
from packidx.manifest import unsound_file

_MOST = 200  # shards and records that are looked at
_MOVED = "say where it is now with --root OLD=NEW"


def check_files(index: Index) -> Finding:
    """The snapshot's own files, by their sizes.

    Raises:
        OSError: a store cannot be asked.
    """
    if wrong := unsound_file(index.place, index.manifest):
        do = "restore it, or plan again (`packidx verify` compares every byte)"
        return Finding("files", "problem", wrong, do)
    number = len(index.manifest["files"])
    return Finding("files", "ok", f"{number} with the sizes that the manifest states")


def check_lengths(index: Index) -> Finding:
    """Whether a sample will be as long as it was planned."""
    methods = {name: n for name, n in index.manifest["lengths"]["methods"].items() if n}
    if not methods:
        return Finding("lengths", "ok", "taken as they were given")
    listed = ", ".join(f"{number:,} {name}" for name, number in methods.items())
    if set(methods) <= {"exact"}:
        return Finding("lengths", "ok", f"{listed}, which is all of them")
    detail = f"{listed}: not all exact, so this plan is for trainers that pack by it themselves"
    return Finding("lengths", "unknown", detail, "estimate with --processor to read packs here")


def check_data(index: Index) -> Finding:
    """Whether shards and media roots are where the manifest, and the user's roots, say.

    Raises:
        OSError: a store cannot be asked.
    """
    shards = index.manifest["shards"]
    if not shards:
        return Finding("data", "ok", "none: planned from bare lengths")
    step = -(-len(shards) // _MOST)
    looked_at = shards[::step]
    paths = [storage.local_path(index.resolve(shard["uri"])) for shard in looked_at]
    wrong, here = [], os.getcwd()
    for path, size, shard in zip(paths, sizes(paths), looked_at, strict=True):
        if size is None:
            wrong.append(f"{path} of source {shard['source']} is not there (seen from {here})")
        elif size != shard["bytes"]:
            wrong.append(f"{path} has {size:,} bytes, {shard['bytes']:,} when it was planned")
    roots = dict(_media_places(index))
    for place, name in roots.items():
        if not storage.is_folder(place):
            wrong.append(f"{place}, media root of source {name}, is not there (seen from {here})")
    if wrong:
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return Finding("data", "problem", f"{wrong[0]}{more}", _MOVED)
    number = f"{len(shards):,}" if step == 1 else f"{len(looked_at):,} of {len(shards):,}"
    sources = len(index.manifest["sources"])
    found = f"{number} shard{'s' * (len(shards) != 1)} of {sources} source{'s' * (sources != 1)}"
    media = f", {len(roots)} media root{'s' * (len(roots) != 1)}" if roots else ""
    return Finding("data", "ok", f"{found}{media}: all there")


def _media_places(index: Index) -> Iterator[tuple[str, str]]:
    """Folders that the media of sources lie in, as far as they are stated; and whose they are."""
    for source in index.manifest["sources"]:
        root = source.get("media_root") or (source.get("layout") or {}).get("media_root")
        for place in filter(None, (root, *source.get("remote_media", ()))):
            yield storage.local_path(index.resolve(place)), source["name"]


def check_extras(index: Index, environment: Environment) -> Finding:
    """Whether the packages are here without which its data cannot be read."""
    needed = _needed(index)
    listed, missing = [], []
    for name, why in sorted(needed.items()):
        extra = environment.extra(name)
        if extra is not None and extra.installed:
            listed.append(f"{name} ({why})")
        else:
            missing.append((name, why, extra))
    if missing:
        said = "; ".join(f"{name} is not here, which {why} need" for name, why, _ in missing)
        names = ",".join(name for name, _, _ in missing)
        return Finding("extras", "problem", said, f'pip install "packidx[{names}]"')
    said = ", ".join(listed) or "nothing but torch and what its encoder needs"
    return Finding("extras", "ok", f"needed by the packs that were looked at: {said}")


def _needed(index: Index) -> dict[str, str]:
    """Extras by name, each with what needs it."""
    needed: dict[str, str] = {}
    places = [index.path, *(index.resolve(one["uri"]) for one in index.manifest["shards"])]
    places += [place for place, _ in _media_places(index)]
    if any(_is_s3(place) for place in places):
        needed["s3"] = "s3:// URLs"
    for kind, reference in _references(index):
        if kind == "video":
            needed["video"] = "videos"
        if ".lmdb::" in reference:
            needed["lmdb"] = "images in LMDB"
        if _is_s3(reference):
            needed["s3"] = "s3:// URLs"
    return needed


def _is_s3(place: str) -> bool:
    return place.partition("://")[0].lower() in ("s3", "s3a") and storage.is_url(place)


def _references(index: Index) -> Iterator[tuple[str, str]]:
    """(kind, reference) of the media of some samples; what cannot be read is told by `packs`."""
    from packidx.records.dialects import parse

    for found in _records(index):
        with suppress(PackidxError):
            for medium in parse(found.record).media:
                refs: Any = medium.ref
                for ref in refs if isinstance(refs, list | tuple) else [refs]:
                    yield medium.kind, ref if isinstance(ref, str) else ""


def _records(index: Index) -> Iterator[Located]:
    if not index.manifest["shards"] or not index.num_packs:
        return
    fetcher = Fetcher(index)
    samples = _samples(index)
    for sample in samples[:: -(-len(samples) // _MOST) or 1]:
        with suppress(PackidxError, OSError):
            yield fetcher.record(sample)


def _samples(index: Index) -> list[Sample]:
    found: list[Sample] = []
    with suppress(PackidxError):
        for number in chosen_packs(index):
            found += index.pack(number).samples
    return found
