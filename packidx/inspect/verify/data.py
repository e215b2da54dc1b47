"""Whether lengths, shards and the encoder are those that were planned, and samples as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from packidx.errors import FormatError, MissingExtraError, PackidxError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.hashing import derive_key
from packidx.index import Index, Sample
from packidx.inspect.verify.check import Check, few
from packidx.io import storage, urls
from packidx.io.copies import content_digest, overlapped, sizes
from packidx.permutation import permutation
from packidx.records.containers.tar.container import TAR
from packidx.records.fetch import Fetcher
from packidx.records.shards import scan
from packidx.user_code.named import fingerprint_of
from packidx.user_code.transform import Transform


def check_lengths(index: Index) -> Iterator[Check]:
    """The lengths table, where it is still there, is the one that was planned."""
    planned = index.snapshot.lengths
    folder = index.resolve(planned.uri).rstrip("/") or "/"
    path = urls.join(folder, "manifest.json")
    if not storage.is_file(path):
        return
    try:
        manifest = load(path, LengthsManifest, "estimate again")
    except FormatError as error:
        yield Check("lengths table", False, str(error))
        return
    same = manifest.fingerprint == planned.fingerprint
    if not same and _goes_on(index, manifest):
        detail = f"{folder} has shards that were added since: not compared"
        yield Check("lengths table", True, detail)
        return
    detail = f"{folder} is the table that was planned"
    if not same:
        fingerprints = f"{manifest.fingerprint}, planned was {planned.fingerprint}"
        detail = f"{folder} has fingerprint {fingerprints}: plan again"
    yield Check("lengths table", same, detail)


def _goes_on(index: Index, lengths: LengthsManifest) -> bool:
    """Whether `lengths` has the planned shards and more after them."""
    planned, now = index.snapshot.shards, lengths.shards
    names = ("fingerprint", "rows", "source")
    return 0 < len(planned) < len(now) and all(
        getattr(old, name) == getattr(new, name)
        for old, new in zip(planned, now, strict=False)
        for name in names
    )


def check_shards(index: Index) -> Iterator[Check]:
    """Every shard is there with the bytes and the content that were counted."""
    shards = index.snapshot.shards
    if not shards:
        return
    paths = [index.resolve(shard.uri) for shard in shards]
    there_now = sizes(paths)
    there = [
        (path, shard.container)
        for path, size, shard in zip(paths, there_now, shards, strict=True)
        if size == shard.bytes
    ]
    digests = {
        path: digest for (path, _), digest in zip(there, overlapped(_digest, there), strict=True)
    }
    wrong = []
    for path, size, shard in zip(paths, there_now, shards, strict=True):
        if size is None:
            wrong.append(f"{path} is missing (name its new place with --root OLD=NEW)")
        elif size != shard.bytes:
            wrong.append(f"{path} has {size} bytes, counted were {shard.bytes}")
        elif digests[path] != shard.fingerprint:
            wrong.append(f"{path} has changed since it was counted")
    yield Check("shards", not wrong, "; ".join(wrong) or f"{len(shards)} shards unchanged")


def _digest(shard: tuple[str, str]) -> str:
    """A shard's fingerprint: of a tar that of what a scan reads, of another the whole file's."""
    path, kind = shard
    return scan(path, kind=kind).sha256 if kind == TAR else content_digest(path)


def check_fingerprint(index: Index, encoder: Any) -> Iterator[Check]:
    counted = index.snapshot.lengths.encoder
    if counted is None:
        detail = "nothing to compare: the lengths are not a processor's, see their column method"
        yield Check("encoder", True, detail)
        return
    planned, given = counted.fingerprint, fingerprint_of(encoder)
    if planned is None or given is None:
        unknown = "the encoder" if given is None else f"{counted.name}, which counted,"
        detail = f"nothing to compare: {unknown} has no fingerprint; --sample N compares lengths"
        if given is None and planned is not None:
            detail += f" with those of {counted.name}"
        yield Check("encoder", True, detail)
        return
    detail = "the encoder is the one that counted"
    if given != planned:
        parts = getattr(encoder, "fingerprint_parts", None)
        differences = [counted.name, *([] if parts is None else counted.differences(parts()))]
        detail = (
            f"the encoder has fingerprint {given}, the lengths were counted by "
            f"{planned} ({', '.join(map(str, differences))}): use that one, or estimate again"
        )
    yield Check("encoder", given == planned, detail)


def check_samples(
    index: Index,
    encoder: Callable[[Mapping[str, Any]], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Check:
    """Encode some samples for real and compare their lengths with the plan's."""
    rows = permutation(index.snapshot.result.num_pieces, derive_key(seed, "verify"))[:wanted]
    options = index.snapshot.options
    shift, longest = int(options.shift), options.planned_capacity // options.align * options.align
    fetcher = Fetcher(index, transform)
    wrong, cut = [], 0
    for row in index.samples().take(np.sort(rows)).to_pylist():
        sample = Sample(**row)
        try:
            record = fetcher.read(sample, index.pack(sample.pack_id).stats["epoch"] or 0)
            length = int(np.asarray(encoder(record)["input_ids"]).size) - shift
        except MissingExtraError:  # says nothing of the plan
            raise
        except PackidxError as error:
            wrong.append(f"sample {sample.sample_id} ({sample.key}): {error}")
            continue
        except Exception as error:  # the encoder is anybody's code
            text = f"{type(error).__name__}: {error}"
            wrong.append(f"sample {sample.sample_id} ({sample.key}) cannot be encoded: {text}")
            continue
        if sample.piece or sample.token_start or length > longest:
            cut += 1  # a piece: the whole sample must reach at least to its end
            if length < sample.token_start + sample.length:
                wrong.append(f"sample {sample.sample_id} ({sample.key}) is too short for its piece")
        elif length != sample.length:
            wrong.append(
                f"sample {sample.sample_id} ({sample.key}) has {length} tokens, "
                f"planned were {sample.length}"
            )
    done = f"{len(rows)} samples encoded, 0 differences" + (f" ({cut} pieces)" if cut else "")
    return Check("samples", not wrong, few(wrong) or done)
