"""All checks of a snapshot: against itself, and against the data it was planned from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.errors import OptionError
from packidx.index import Index
from packidx.inspect.verify.check import Check
from packidx.inspect.verify.data import (
    check_fingerprint,
    check_lengths,
    check_samples,
    check_shards,
)
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
    if num_sampled and not index.snapshot.shards:
        raise OptionError(
            f"{index.path} was planned from bare lengths and does not say where its samples are: "
            "leave --sample out"
        )
    planned = index.snapshot.lengths.transform
    given = planned_transform(planned, transform, index.path) if num_sampled or transform else None
    yield from verify_snapshot(index)
    yield from check_lengths(index)
    yield from check_shards(index)
    if encoder is not None:
        yield from check_fingerprint(index, encoder)
    if num_sampled:
        yield check_samples(index, encoder, given, num_sampled, seed)
