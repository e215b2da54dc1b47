"""Compare a snapshot with its manifest, its shards and its encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from packidx.errors import MissingExtraError, OptionError, PackidxError, SourceError
from packidx.format.index import TABLES, snapshot_id
from packidx.format.manifest import built_kinds
from packidx.hashing import derive_key
from packidx.index import Index, PlannedSample
from packidx.index.window_files import WindowDigest
from packidx.io import storage, urls
from packidx.io.cache import Content, StoredFile, content_of, local_copy
from packidx.permutation import draw_permutation
from packidx.records.containers.registry import get_container
from packidx.records.fetch import Fetcher
from packidx.records.shards import scan_shard
from packidx.user_code import Function, Transform, fingerprint_of, planned_transform


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    """True if no fault was found, also for a check that was skipped."""
    detail: str
    """One line: how much was checked, the first faults, or why the check was skipped."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Amounts that were checked: ``{"files": 3, "bytes_hashed": 283462}``."""
    checked: bool = True
    """True if the check was run."""


def not_checked(name: str, why: str) -> Check:
    return Check(name, True, f"not checked: {why}", checked=False)


def _make_check(
    name: str, numbers: Mapping[str, int], faults: Iterable[str], right: str = ""
) -> Check:
    """Return a check whose line states `numbers`, and its `faults` or that all is `right`."""
    amounts = []
    for each, number in numbers.items():
        noun, *more = each.split("_")
        noun = noun.removesuffix("s") if number == 1 else noun
        amounts.append(" ".join([f"{number:,}", noun, *more]))
    listed = list(faults)
    said = "; ".join(listed[:5]) or right
    said += f"; and {len(listed) - 5:,} more" if len(listed) > 5 else ""
    detail = ", ".join(amounts) + (f": {said}" if said else "")
    return Check(name, not listed, detail, numbers)


def verify_index(
    index: Index,
    *,
    encoder: Any = None,
    transform: str | Function | None = None,
    num_sampled: int = 0,
    seed: int = 0,
) -> Iterator[Check]:
    """Run every check that this machine's data allows, cheapest first; the others are named.

    Args:
        index: an opened snapshot; its `roots` say where moved data lies.
        encoder: callable(record) -> {"input_ids", ...}, with ``fingerprint()`` if it has one.
        transform: the plan's, where it names one: it is applied to samples before `encoder`.
        num_sampled: encode so many samples, drawn by `seed`, and compare their lengths.
        seed: which samples.

    Raises:
        OptionError: samples are to be encoded and there is nothing to encode, or to do it with.
        MismatchError: samples are to be encoded and `transform` is not the plan's.
        MissingExtraError: a package that encoding them needs is not installed; all other checks
            have been made by then.
    """
    if num_sampled and encoder is None:
        raise OptionError("--sample needs an encoder: give --processor or --encode as well")
    if num_sampled and not index.snapshot.shards:
        raise OptionError(
            f"{index.path} was planned from bare lengths and does not say where its samples are: "
            "leave --sample out"
        )
    planned = index.snapshot.lengths.transform
    given = planned_transform(planned, transform, index.path) if num_sampled or transform else None
    files = check_files(index)
    yield files
    yield check_id(index) if files.ok else not_checked("id", _BROKEN)
    yield check_shards(index)
    yield check_fingerprint(index, encoder)
    if not files.ok:
        yield not_checked(SAMPLES, _BROKEN)
    elif num_sampled:
        try:
            yield check_samples(index, encoder, given, num_sampled, seed)
        except MissingExtraError as error:
            yield not_checked(SAMPLES, str(error))
            raise
    else:
        how = "" if encoder is not None else "--processor DIR (or --encode) and "
        why = f"{how}--sample N encodes N" if index.snapshot.shards else BARE
        yield not_checked(SAMPLES, why)


SAMPLES = "samples"
"""The check of `check_samples`."""
BARE = "planned from bare lengths, which name no shards"
_BROKEN = "files of the index are not as they should be"


def check_files(index: Index) -> Check:
    """Every file is there with the bytes, rows and SHA-256 that the manifest names."""
    parts, files = index.files(), [file for _, file in index.snapshot.files()]
    faults, hashed = _find_faults(parts, content_of, "the manifest says {}")
    rows = 0
    for part, file in zip(parts, files, strict=True):
        if part.path in faults:
            continue
        own: int = pq.read_metadata(local_copy(part)).num_rows
        rows += own
        if own != file.rows:
            faults[part.path] = f"{part.path} has {own:,} rows, the manifest says {file.rows:,}"
    numbers = {"files": len(files), "bytes_hashed": hashed, "rows": rows}
    return _make_check("files", numbers, faults.values())


def check_id(index: Index) -> Check:
    """Compare the id with the digest of the assignment, the options and the lengths."""
    stated, rows = index.snapshot.to_json(), 0
    for number, window in enumerate(stated["windows"]):
        digest = WindowDigest()
        for name in TABLES:
            try:
                table = index.window(name, number)
            except PackidxError as error:
                return Check("id", False, str(error))
            digest.update(name, table)
            rows += table.num_rows
        window["digest"] = digest.hexdigest()
    own, numbers = snapshot_id(stated), {"rows_hashed": rows, "windows": len(stated["windows"])}
    said = f"their id is {own[:12]}…, not {index.id[:12]}…"
    return _make_check("id", numbers, [said] if own != index.id else [])


def check_shards(index: Index) -> Check:
    """Every shard is there with the bytes and the content that were counted."""
    shards = index.snapshot.shards
    if not shards:
        return not_checked("shards", BARE)
    paths = [urls.local_path(index.resolve(each.uri)) for each in shards]
    pairs = list(zip(paths, shards, strict=True))  # two may be one file now
    stated = [StoredFile(path, each.bytes, each.fingerprint) for path, each in pairs]
    kinds = {path: each.container for path, each in pairs}
    in_part = {path for path, kind in kinds.items() if not get_container(kind).hashes_all}

    def content(path: str) -> Content:
        if path not in in_part:
            return content_of(path)
        scanned = scan_shard(path, kind=kinds[path])  # all that the fingerprint of a tar is of
        return Content(scanned.nbytes, scanned.sha256)

    faults, hashed = _find_faults(stated, content, "it had {} when it was counted")
    right = f"as they were counted{', of tars all but media' if in_part else ''}"
    wrong = [f"{why}{_MOVED if why.endswith(_MISSING) else ''}" for why in faults.values()]
    return _make_check("shards", {"shards": len(shards), "bytes_hashed": hashed}, wrong, right)


_MISSING, _MOVED = "is missing", " (name its new place with --root OLD=NEW)"


def _find_faults(
    parts: Sequence[StoredFile],
    read: Callable[[str], Content],
    stated: str,
) -> tuple[dict[str, str], int]:
    """Return what is wrong with files by their paths, and how many bytes were hashed.

    Args:
        parts: with the bytes and SHA-256 that were stated.
        read: gives what a SHA-256 is of.
        stated: how a sentence goes on with what was stated.
    """
    faults: dict[str, str] = {}
    sizes = storage.map_overlapped(storage.size_of, [part.path for part in parts])
    for part, size in zip(parts, sizes, strict=True):
        if size is None:
            faults[part.path] = f"{part.path} {_MISSING}"
        elif part.nbytes not in (None, size):
            said = stated.format(f"{part.nbytes or 0:,}")
            faults[part.path] = f"{part.path} has {size:,} bytes, {said}"
    sound = [part for part in parts if part.path not in faults]

    def content_or_fault(part: StoredFile) -> Content | str:
        try:
            return read(part.path)
        except SourceError as error:
            return str(error)

    hashed = 0
    for part, content in zip(sound, storage.map_overlapped(content_or_fault, sound), strict=True):
        if isinstance(content, str):
            faults[part.path] = content
            continue
        hashed += content.nbytes
        if part.sha256 is not None and content.sha256 != part.sha256:
            said = stated.format(f"{part.sha256[:12]}…")
            faults[part.path] = f"{part.path} has SHA-256 {content.sha256[:12]}…, {said}"
    return faults, hashed


def check_fingerprint(index: Index, encoder: Any) -> Check:
    """`encoder` is the one that counted the lengths."""
    counted = index.snapshot.lengths.encoder
    if encoder is None:
        return not_checked("encoder", "give --processor or --encode")
    if counted is None:
        why = "the lengths are not a processor's, so there is nothing to compare (column method)"
        return not_checked("encoder", why)
    planned, given = counted.fingerprint, fingerprint_of(encoder)
    if planned is None or given is None:
        unknown = "the encoder" if given is None else f"{counted.name}, which counted,"
        return not_checked("encoder", f"{unknown} has no fingerprint; --sample N compares lengths")
    of = getattr(encoder, "fingerprint_parts", None)
    parts = {} if of is None else of()
    numbers = {"settings": len(parts)} if parts else {}
    if given == planned:
        right = f"fingerprint {given[:12]}…: the encoder that counted"
        return _make_check("encoder", numbers, [], right)
    differences = ", ".join([str(counted.name), *(counted.differences(parts) if parts else ())])
    said = f"the encoder has fingerprint {given[:12]}…, the lengths were counted by {planned[:12]}…"
    return _make_check(
        "encoder", numbers, [f"{said} ({differences}): use that one, or estimate again"]
    )


def check_samples(
    index: Index,
    encoder: Callable[[Any], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Check:
    """Encode some samples for real and compare their lengths with the plan's.

    The whole sample of a piece must at least reach the end of the piece.

    Raises:
        MissingExtraError: what encoding them needs is not installed, which says nothing of them.
    """
    longest = index.snapshot.options.longest
    fetcher = Fetcher(index, transform, encoder)
    if hasattr(encoder, "build_kinds"):
        encoder.build_kinds(built_kinds(index.snapshot.lengths.encoder))
    numbers = Counter[str]()
    all_of, wrong_of, wrong = Counter[str](), Counter[str](), []
    for sample in _draw_samples(index, wanted, seed):
        why = None
        try:
            tokens = int(np.asarray(encoder(fetcher.read(sample))["input_ids"]).size)
        except MissingExtraError:
            raise
        except PackidxError as failure:
            why = f": {failure}"
        except Exception as failure:  # the encoder is anybody's code
            why = f": cannot be encoded: {type(failure).__name__}: {failure}"
        if why is not None:
            numbers["failed"] += 1
        else:
            planned = sample.token_start + sample.length
            is_piece = bool(sample.piece or sample.token_start) or tokens > longest
            differs = tokens < planned if is_piece else tokens != planned
            numbers.update(samples_encoded=1, tokens_compared=tokens, pieces=is_piece)
            if differs:
                numbers["different"] += 1
                least = "at least " if is_piece else ""
                why = f" has {tokens:,} tokens, planned were {least}{planned:,}"
        source = sample.source or ""
        all_of[source] += 1
        if why is not None:
            wrong_of[source] += 1
            wrong.append(f"sample {sample.sample_id} ({sample.key}) of {source}{why}")
    if wrong:
        shares = [f"{n:,} of {all_of[name]:,} of {name}" for name, n in wrong_of.most_common(5)]
        wrong[0] = f"{', '.join(shares)}: {wrong[0]}"
    names = ("samples_encoded", "tokens_compared", "failed", "different", "pieces")
    return _make_check(SAMPLES, {name: numbers[name] for name in names}, wrong)


def _draw_samples(index: Index, wanted: int, seed: int) -> Iterator[PlannedSample]:
    """Samples drawn by the seed, in the order of the table."""
    num_pieces = index.snapshot.result.num_pieces
    rows = np.sort(draw_permutation(num_pieces, derive_key(seed, "verify"))[:wanted])
    for number, _, _, first_row, _ in index.snapshot.placed:
        samples = index.window("samples", number)
        stop = first_row + samples.num_rows
        own = rows[(rows >= first_row) & (rows < stop)] - first_row
        for row in samples.take(own).to_pylist():
            yield PlannedSample(**row)
