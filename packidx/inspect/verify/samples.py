"""Samples encoded for real, and their lengths compared with the plan's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from packidx.errors import MissingExtraError, PackidxError
from packidx.hashing import derive_key
from packidx.index import Index, Sample
from packidx.inspect.verify.check import Check, few, number_of
from packidx.permutation import permutation
from packidx.records.fetch import Fetcher
from packidx.user_code import Transform

NAME = "samples"
_EXAMPLES = 3


class Encoded(NamedTuple):
    """A sample, or a piece of one, and the length of what was built."""

    sample: Sample
    is_piece: bool
    length: int | None
    """Tokens of the whole sample; None where it could not be built."""
    error: str | None

    @property
    def planned(self) -> int:
        """Tokens that the sample has at least; of a whole one, that it has."""
        return self.sample.token_start + self.sample.length

    @property
    def differs(self) -> bool:
        if self.length is None:
            return False
        return self.length < self.planned if self.is_piece else self.length != self.planned

    @property
    def difference(self) -> int:
        """Tokens built less those that were planned."""
        return 0 if self.length is None else self.length - self.planned

    def told(self) -> str:
        name = f"sample {self.sample.sample_id} ({self.sample.key})"
        if self.length is None:
            return f"{name}: {self.error}"
        least = "at least " if self.is_piece else ""
        return f"{name} has {self.length:,} tokens, planned were {least}{self.planned:,}"


def check_samples(
    index: Index,
    encoder: Callable[[Mapping[str, Any]], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Check:
    """Encode some samples for real and compare their lengths with the plan's.

    Returns:
        a check whose ``sources`` have ``source``, ``num_encoded``, ``num_pieces`` (of those, pieces
        of longer samples, of which only the end is compared), ``num_failed`` (could not be built),
        ``num_different``, ``planned_median`` and ``materialized_median`` (tokens of whole samples;
        None without any), ``largest_difference`` (materialized less planned, the one farthest from
        0) and ``examples``: ``sample_id``, ``key``, ``planned``, ``materialized`` and ``error``.

    Raises:
        MissingExtraError: what encoding them needs is not installed, which says nothing of them.
    """
    encoded = list(_encoded(index, encoder, transform, wanted, seed))
    by_source: dict[str, list[Encoded]] = {one.name: [] for one in index.snapshot.sources}
    for each in encoded:
        by_source.setdefault(each.sample.source or "", []).append(each)
    sources = sorted(
        (_seen(name, those) for name, those in by_source.items()),
        key=lambda seen: (-seen["num_failed"] - seen["num_different"], seen["source"]),
    )
    built = [each.length for each in encoded if each.length is not None]
    wrong = [each.told() for each in encoded if each.differs or each.error is not None]
    numbers = {
        "samples_encoded": len(built),
        "tokens_compared": sum(built),
        "failed": len(encoded) - len(built),
        "different": sum(each.differs for each in encoded),
        "pieces": sum(each.is_piece for each in encoded),
    }
    return Check(NAME, not wrong, _detail(numbers, wrong), numbers, sources=sources)


def _detail(numbers: Mapping[str, int], wrong: list[str]) -> str:
    done = number_of(numbers["samples_encoded"], "samples") + " encoded"
    done += f", {number_of(numbers['tokens_compared'], 'tokens')} compared"
    if numbers["pieces"]:
        done += f", {number_of(numbers['pieces'], 'pieces')} by their ends"
    done += f", {number_of(numbers['different'], 'differences')}"
    if numbers["failed"]:
        done += f", {numbers['failed']:,} cannot be built"
    return f"{done}: {few(wrong)}" if wrong else done


def _encoded(
    index: Index,
    encoder: Callable[[Mapping[str, Any]], Any],
    transform: Transform | None,
    wanted: int,
    seed: int,
) -> Iterator[Encoded]:
    options = index.snapshot.options
    shift, longest = int(options.shift), options.planned_capacity // options.align * options.align
    fetcher = Fetcher(index, transform)
    for sample, epoch in _drawn(index, wanted, seed):
        length, error = None, None
        try:
            record = fetcher.read(sample, epoch)
            length = int(np.asarray(encoder(record)["input_ids"]).size) - shift
        except MissingExtraError:
            raise
        except PackidxError as failure:
            error = str(failure)
        except Exception as failure:  # the encoder is anybody's code
            error = f"cannot be encoded: {type(failure).__name__}: {failure}"
        is_long = length is not None and length > longest
        is_piece = bool(sample.piece or sample.token_start) or is_long
        yield Encoded(sample, is_piece, length, error)


def _drawn(index: Index, wanted: int, seed: int) -> Iterator[tuple[Sample, int]]:
    """Samples drawn by the seed, in the order of the table, and the epochs of their packs."""
    files = index.snapshot.files
    num_pieces = sum(file.rows for file in files if file.path.startswith("samples-"))
    rows = np.sort(permutation(num_pieces, derive_key(seed, "verify"))[:wanted])
    first_row = 0
    for number, stated in enumerate(index.snapshot.result.windows):
        samples, epochs = index.window("samples", number), index.window("packs", number)["epoch"]
        stop = first_row + samples.num_rows
        own = rows[(rows >= first_row) & (rows < stop)] - first_row
        for row in samples.take(own).to_pylist():
            sample = Sample(**row)
            pack = sample.pack_id - stated.first_pack
            epoch = epochs[pack].as_py() if 0 <= pack < len(epochs) else None
            yield sample, epoch or 0
        first_row = stop


def _seen(name: str, encoded: list[Encoded]) -> dict[str, Any]:
    different = [each for each in encoded if each.differs]
    failed = [each for each in encoded if each.length is None]
    whole = [each for each in encoded if not each.is_piece and each.length is not None]
    differences = [each.difference for each in [*whole, *different]]
    examples = [*sorted(different, key=lambda each: -abs(each.difference)), *failed]
    return {
        "source": name,
        "num_encoded": len(encoded) - len(failed),
        "num_pieces": sum(each.is_piece for each in encoded),
        "num_failed": len(failed),
        "num_different": len(different),
        "planned_median": median(each.planned for each in whole) if whole else None,
        "materialized_median": median(each.length or 0 for each in whole) if whole else None,
        "largest_difference": max(differences, key=abs, default=0),
        "examples": [
            {
                "sample_id": each.sample.sample_id,
                "key": each.sample.key,
                "planned": each.planned,
                "materialized": each.length,
                "error": each.error,
            }
            for each in examples[:_EXAMPLES]
        ],
    }
