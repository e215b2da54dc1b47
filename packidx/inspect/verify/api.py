"""A snapshot against the data it was planned from: lengths, shards, and samples encoded anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from packidx.errors import FormatError, MissingExtraError, OptionError, PackidxError
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.hashing import derive_key
from packidx.index import Index, Sample
from packidx.inspect.verify.snapshot import Check, verify_snapshot
from packidx.io import storage, urls
from packidx.io.copies import content_digest, overlapped, sizes
from packidx.permutation import permutation
from packidx.records.containers import DEFAULT as JSONL
from packidx.records.containers.tar.container import TAR
from packidx.records.fetch import Fetcher
from packidx.records.shards import scan
from packidx.user_code.named import fingerprint_of
from packidx.user_code.transform import Function, Transform, planned_transform


def verify(
    index: Index,
    *,
    encoder: Any = None,
    transform: str | Function | None = None,
    num_sampled: int = 0,
    seed: int = 0,
) -> Iterator[Check]:
    """Run every check that this machine's data allows, cheapest first.

    Args:
        index: an opened snapshot; its `roots` say where moved data lies.
        encoder: callable(record) -> {"input_ids", ...}, with ``fingerprint()`` if it has one.
        transform: the plan's, where it names one: it is applied to samples before `encoder`.
        num_sampled: encode so many samples, drawn by `seed`, and compare their lengths.

    Raises:
        OptionError: samples are to be encoded and there is nothing to encode, or to do it with.
        MismatchError: samples are to be encoded and `transform` is not the plan's.
        MissingExtraError: a package that encoding them needs is not installed.
    """
    if num_sampled and encoder is None:
        raise OptionError("--sample needs an encoder: give --processor or --encode as well")
    if num_sampled and not index.manifest["shards"]:
        raise OptionError(
            f"{index.path} was planned from bare lengths and does not say where its samples are: "
            "leave --sample out"
        )
    planned = index.manifest["lengths"].get("transform")
    given = planned_transform(planned, transform, index.path) if num_sampled or transform else None
    yield from verify_snapshot(index)
    yield from _check_lengths(index)
    yield from _check_shards(index)
    if encoder is not None:
        yield from _check_fingerprint(index, encoder)
    if num_sampled:
        yield _check_samples(index, encoder, given, num_sampled, seed)


def _check_lengths(index: Index) -> Iterator[Check]:
    """The lengths table, where it is still there, is the one that was planned."""
    planned = index.manifest["lengths"]
    folder = index.resolve(planned["uri"]).rstrip("/") or "/"
    path = urls.join(folder, "manifest.json")
    if not storage.is_file(path):
        return
    try:
        manifest = load(path, LengthsManifest, "estimate again")
    except FormatError as error:
        yield Check("lengths table", False, str(error))
        return
    found = manifest["fingerprint"]
    same = found == planned["fingerprint"]
    if not same and _goes_on(index, manifest):
        detail = f"{folder} has shards that were added since: not compared"
        yield Check("lengths table", True, detail)
        return
    detail = (
        f"{folder} is the table that was planned"
        if same
        else (f"{folder} has fingerprint {found}, planned was {planned['fingerprint']}: plan again")
    )
    yield Check("lengths table", same, detail)


def _goes_on(index: Index, lengths: Mapping[str, Any]) -> bool:
    """Whether `lengths` has the planned shards and more after them."""
    planned, now = index.manifest["shards"], lengths.get("shards", [])
    names = ("fingerprint", "rows", "source")
    return 0 < len(planned) < len(now) and all(
        old.get(name) == new.get(name)
        for old, new in zip(planned, now, strict=False)
        for name in names
    )


def _check_shards(index: Index) -> Iterator[Check]:
    """Every shard is there with the bytes and the content that were counted."""
    shards = index.manifest["shards"]
    if not shards:
        return
    paths = [index.resolve(shard["uri"]) for shard in shards]
    found = sizes(paths)
    there = [
        (path, shard.get("container", JSONL))
        for path, size, shard in zip(paths, found, shards, strict=True)
        if size == shard["bytes"]
    ]
    digests = {
        path: digest for (path, _), digest in zip(there, overlapped(_digest, there), strict=True)
    }
    wrong = []
    for path, size, shard in zip(paths, found, shards, strict=True):
        if size is None:
            wrong.append(f"{path} is missing (name its new place with --root OLD=NEW)")
        elif size != shard["bytes"]:
            wrong.append(f"{path} has {size} bytes, counted were {shard['bytes']}")
        elif digests[path] != shard["fingerprint"]:
            wrong.append(f"{path} has changed since it was counted")
    yield Check("shards", not wrong, "; ".join(wrong) or f"{len(shards)} shards unchanged")


def _digest(shard: tuple[str, str]) -> str:
    """A shard's fingerprint: of a tar that of what a scan reads, of another the whole file's."""
    path, kind = shard
    return scan(path, kind=kind).sha256 if kind == TAR else content_digest(path)


def _check_fingerprint(index: Index, encoder: Any) -> Iterator[Check]:
    counted = index.manifest["lengths"].get("encoder")
    if counted is None:
        detail = "nothing to compare: the lengths are not a processor's, see their column method"
        yield Check("encoder", True, detail)
        return
    planned, given = counted["fingerprint"], fingerprint_of(encoder)
    if planned is None or given is None:
        unknown = "the encoder" if given is None else f"{counted['name']}, which counted,"
        detail = f"nothing to compare: {unknown} has no fingerprint; --sample N compares lengths"
        if given is None and planned is not None:
            detail += f" with those of {counted['name']}"
        yield Check("encoder", True, detail)
        return
    same = given == planned
    detail = (
        "the encoder is the one that counted"
        if same
        else (
            f"the encoder has fingerprint {given}, the lengths were counted by "
            f"{planned} ({counted['name']}): use that one, or estimate again"
        )
    )
    yield Check("encoder", same, detail)


def _check_samples(
    index: Index,
    encoder: Callable[[Mapping[str, Any]], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Check:
    """Encode some samples for real and compare their lengths with the plan's."""
    rows = permutation(index.manifest["result"]["num_pieces"], derive_key(seed, "verify"))[:wanted]
    shift = int(index.manifest["options"]["shift"])
    fetcher = Fetcher(index)
    wrong, cut = [], 0
    for sample in _samples_at(index, np.sort(rows)):
        try:
            record = fetcher.read(sample)
            if transform is not None:
                epoch = index.pack(sample.pack_id).stats["epoch"]
                record = transform.apply(record, sample.sample_id, epoch=epoch, copy=sample.copy)
            length = _num_tokens(encoder(record)) - shift
        except MissingExtraError:  # says nothing of the plan
            raise
        except PackidxError as error:
            wrong.append(f"sample {sample.sample_id} ({sample.key}): {error}")
            continue
        except Exception as error:  # the encoder is anybody's code
            text = f"{type(error).__name__}: {error}"
            wrong.append(f"sample {sample.sample_id} ({sample.key}) cannot be encoded: {text}")
            continue
        if (
            sample.piece
            or sample.token_start
            or length > index.manifest["options"]["planned_capacity"]
        ):
            cut += 1  # a piece: the whole sample must reach at least to its end
            if length < sample.token_start + sample.length:
                wrong.append(f"sample {sample.sample_id} ({sample.key}) is too short for its piece")
        elif length != sample.length:
            wrong.append(
                f"sample {sample.sample_id} ({sample.key}) has {length} tokens, "
                f"planned were {sample.length}"
            )
    shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    done = f"{len(rows)} samples encoded, 0 differences" + (f" ({cut} pieces)" if cut else "")
    return Check("samples", not wrong, shown or done)


def _samples_at(index: Index, rows: Any) -> Iterator[Sample]:
    table = index.samples().take(rows)
    for row in table.to_pylist():
        yield Sample(**row)


def _num_tokens(encoded: Mapping[str, Any]) -> int:
    return int(np.asarray(encoded["input_ids"]).size)
