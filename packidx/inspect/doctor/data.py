"""What an index needs of this machine: its own files, its sources, and packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from packidx.errors import PackidxError
from packidx.index import Index, Sample
from packidx.inspect.doctor.finding import PATIENCE, Finding, State
from packidx.inspect.doctor.machine import Environment
from packidx.inspect.doctor.reading import chosen_packs
from packidx.io import storage, stores, urls
from packidx.io.copies import sizes, unsound_file
from packidx.records.fetch import Fetcher

_MOST = 200  # shards and records that are looked at
_MOVED = "say where it is now with --root OLD=NEW"


def check_files(index: Index) -> Finding:
    """The snapshot's own files, by their sizes.

    Raises:
        OSError: a store cannot be asked.
    """
    if wrong := unsound_file([file.within(index.location) for file in index.snapshot.files]):
        do = "restore it, or plan again (`packidx verify` compares every byte)"
        return Finding("files", "problem", wrong, do)
    number = len(index.snapshot.files)
    return Finding("files", "ok", f"{number} with the sizes that the manifest states")


def check_lengths(index: Index) -> Finding:
    """Whether a sample will be as long as it was planned."""
    methods = {name: n for name, n in index.snapshot.lengths.methods.items() if n}
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
        OSError: a store cannot be asked, or does not answer.
    """
    shards = index.snapshot.shards
    unused = _unused_roots(index)
    if not shards:
        return _data("ok", "none: planned from bare lengths", unused)
    step = -(-len(shards) // _MOST)
    looked_at = shards[::step]
    paths = [urls.local_path(index.resolve(shard.uri)) for shard in looked_at]
    roots = dict(_media_places(index))
    by_host = {place.split("/", 3)[2]: place for place in (*paths, *roots) if urls.is_url(place)}
    for place in by_host.values():
        stores.await_answer(place, PATIENCE)
    wrong, here = [], os.getcwd()
    for path, size, shard in zip(paths, sizes(paths), looked_at, strict=True):
        if size is None:
            wrong.append(f"{path} of source {shard.source} is not there (seen from {here})")
        elif size != shard.bytes:
            wrong.append(f"{path} has {size:,} bytes, {shard.bytes:,} when it was planned")
    for place, name in roots.items():
        if not storage.is_folder(place):
            wrong.append(f"{place}, media root of source {name}, is not there (seen from {here})")
    if wrong:
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return _data("problem", f"{wrong[0]}{more}", unused)
    number = f"{len(shards):,}" if step == 1 else f"{len(looked_at):,} of {len(shards):,}"
    sources = len(index.snapshot.sources)
    seen = f"{number} shard{'s' * (len(shards) != 1)} of {sources} source{'s' * (sources != 1)}"
    media = f", {len(roots)} media root{'s' * (len(roots) != 1)}" if roots else ""
    return _data("ok", f"{seen}{media}: all there", unused)


def _data(state: State, detail: str, unused: list[str]) -> Finding:
    """A finding of the data, and of options `--root` that lead nothing of it elsewhere."""
    if unused:
        detail += f"; --root {', '.join(unused)}: no path of the index begins so"
    if state == "ok" and unused:
        return Finding("data", "unknown", detail, "leave it out, or write OLD as the index has it")
    return Finding("data", state, detail, _MOVED if state == "problem" else None)


def _unused_roots(index: Index) -> list[str]:
    lengths = index.snapshot.lengths
    stated = [lengths.uri, *(shard.uri for shard in index.snapshot.shards)]
    stated += [place for place, _ in _stated_media_places(index)]
    if lengths.encoder is not None and lengths.encoder.name:
        stated.append(lengths.encoder.name)
    used = {index.root_of(uri) for uri in stated}
    return [old for old in index.roots if old not in used]


def _media_places(index: Index) -> Iterator[tuple[str, str]]:
    """Folders that the media of sources lie in, as far as they are stated; and whose they are."""
    for place, source in _stated_media_places(index):
        yield urls.local_path(index.resolve(place)), source


def _stated_media_places(index: Index) -> Iterator[tuple[str, str]]:
    """The same as the manifest has them, with no root exchanged."""
    for source in index.snapshot.sources:
        own = None if source.layout is None else source.layout.media_root
        root = source.media_root or own
        for place in filter(None, (root, *source.remote_media)):
            yield place, source.name


def check_extras(index: Index, environment: Environment, is_there: bool) -> Finding:
    """Whether the packages are here without which its data cannot be read.

    Args:
        is_there: whether its shards are, so that records of them may be looked at.
    """
    needed = _needed(index, _references(index) if is_there else ())
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


def _needed(index: Index, references: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Extras by name, each with what needs it."""
    needed: dict[str, str] = {}
    places = [index.path, *(index.resolve(shard.uri) for shard in index.snapshot.shards)]
    places += [place for place, _ in _media_places(index)]
    if any(_is_s3(place) for place in places):
        needed["s3"] = "s3:// URLs"
    for kind, reference in references:
        if kind == "video":
            needed["video"] = "videos"
        if kind == "audio":
            needed.setdefault("video", "sound")
        if ".lmdb::" in reference:
            needed["lmdb"] = "images in LMDB"
        if _is_s3(reference):
            needed["s3"] = "s3:// URLs"
    return needed


def _is_s3(place: str) -> bool:
    return place.partition("://")[0].lower() in ("s3", "s3a") and urls.is_url(place)


def _references(index: Index) -> Iterator[tuple[str, str]]:
    """(kind, reference) of the media of some samples; what cannot be read is told by `packs`."""
    from packidx.records.dialects.parse import parse

    if not index.snapshot.shards or not index.num_packs:
        return
    fetcher, samples = Fetcher(index), list[Sample]()
    with suppress(PackidxError):
        for number in chosen_packs(index):
            samples += index.pack(number).samples
    for sample in samples[:: -(-len(samples) // _MOST) or 1]:
        with suppress(PackidxError, OSError):
            for medium in parse(fetcher.record(sample).record).media:
                refs: Any = medium.ref
                for ref in refs if isinstance(refs, list | tuple) else [refs]:
                    yield medium.kind, ref if isinstance(ref, str) else ""
