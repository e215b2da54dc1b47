"""All checks of a snapshot: against itself, and against the data it was planned from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.errors import OptionError
from packidx.index import Index
from packidx.inspect.verify.check import Check, not_checked
from packidx.inspect.verify.data import BARE, check_fingerprint, check_shards
from packidx.inspect.verify.lengths import check_lengths
from packidx.inspect.verify.samples import NAME as SAMPLES
from packidx.inspect.verify.samples import check_samples
from packidx.inspect.verify.snapshot import verify_snapshot
from packidx.user_code.transform import Function, planned_transform


def verify(
    index: Index,
    *,
    encoder: Any = None,
    transform: str | Function | None = None,
    num_sampled: int = 0,
    seed: int = 0,
) -> Iterator[Check]:
    """Run every check that this machine's data allows, cheapest first; what is not checked is told.

    Args:
        index: an opened snapshot; its `roots` say where moved data lies.
        encoder: callable(record) -> {"input_ids", ...}, with ``fingerprint()`` if it has one.
        transform: the plan's, where it names one: it is applied to samples before `encoder`.
        num_sampled: encode so many samples, drawn by `seed`, and compare their lengths.

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
    is_sound = True
    for check in verify_snapshot(index):
        is_sound = is_sound and (check.ok or check.name != "files")
        yield check
    if not is_sound:
        yield not_checked("tables", "files of the index are not as they should be")
    yield check_lengths(index)
    yield check_shards(index)
    yield check_fingerprint(index, encoder)
    if not is_sound:
        yield not_checked(SAMPLES, "files of the index are not as they should be")
    elif num_sampled:
        yield check_samples(index, encoder, given, num_sampled, seed)
    else:
        how = "" if encoder is not None else "--processor DIR (or --encode) and "
        why = f"{how}--sample N encodes N" if index.snapshot.shards else BARE
        yield not_checked(SAMPLES, why)
