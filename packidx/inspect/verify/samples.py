"""Whether samples, read again, have the tokens that were planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from packidx.errors import MissingExtraError, PackidxError
from packidx.hashing import derive_key
from packidx.index import Index, Sample
from packidx.inspect.verify.check import Check
from packidx.permutation import permutation
from packidx.records.fetch import Fetcher
from packidx.user_code.named import fingerprint_of
from packidx.user_code.transform import Transform


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
    same = given == planned
    detail = (
        "the encoder is the one that counted"
        if same
        else (
            f"the encoder has fingerprint {given}, the lengths were counted by "
            f"{planned} ({counted.name}): use that one, or estimate again"
        )
    )
    yield Check("encoder", same, detail)


def check_samples(
    index: Index,
    encoder: Callable[[Mapping[str, Any]], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Check:
    """Encode some samples for real and compare their lengths with the plan's."""
    rows = permutation(index.snapshot.result.num_pieces, derive_key(seed, "verify"))[:wanted]
    shift = int(index.snapshot.options.shift)
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
        if sample.piece or sample.token_start or length > index.snapshot.options.planned_capacity:
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
