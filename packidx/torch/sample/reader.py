"""One sample of a pack: read, encoded, made to fit its plan; or what stands for it."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from packidx.errors import (
    BadRecord,
    ChangedSource,
    MismatchError,
    OptionError,
    PackidxError,
    SourceError,
)
from packidx.index import Index, Sample
from packidx.io.stores import is_transient
from packidx.records.fetch import Fetcher
from packidx.torch.sample.encoded import ADVICE, IGNORE, Encoded, PlanMismatch, normalise
from packidx.torch.sample.events import event
from packidx.torch.sample.fitting import cut, extend, shift
from packidx.torch.sample.holes import Holes, NoHole
from packidx.torch.sample.join_rules import rules_of
from packidx.torch.sample.media_rows import check_media

if TYPE_CHECKING:
    from packidx.user_code.transform import Transform

Encode = Callable[[dict[str, Any]], Mapping[str, Any]]
Happened = list[dict[str, Any]]
T = TypeVar("T")

ON_MISMATCH = ("error", "drop", "truncate")
ON_ERROR = ("raise", "hole")
BACKOFF = 0.1  # seconds before the first retry, twice as many before each further one


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of `PackedDataset` of these names."""

    on_mismatch: str = "error"
    on_error: str = "raise"
    retries: int = 3

    def __post_init__(self) -> None:
        for name, value, known in (
            ("on_mismatch", self.on_mismatch, ON_MISMATCH),
            ("on_error", self.on_error, ON_ERROR),
        ):
            if value not in known:
                raise OptionError(f"{name} {value!r} is none of {', '.join(known)}")
        if operator.index(self.retries) < 0:
            raise OptionError(f"retries is {self.retries}: it must be 0 or more")

    @property
    def makes_holes(self) -> bool:
        return self.on_mismatch != "error" or self.on_error == "hole"


def is_of_the_sample(error: Exception) -> bool:
    """Whether `error` may concern one sample alone, not the plan, an option or an installation."""
    if isinstance(error, PackidxError):
        return isinstance(error, BadRecord | SourceError)
    return not isinstance(error, MemoryError | ImportError)


def retried(read: Callable[[], T], retries: int) -> tuple[T, Exception | None]:
    """``read()``, again after input or output that failed and may work another time.

    Returns:
        what it returned, and the last error before it did.
    """
    failed: Exception | None = None
    for attempt in range(retries):
        try:
            return read(), failed
        except Exception as error:
            if not is_transient(error):
                raise
            failed = error
        time.sleep(BACKOFF * 2**attempt)
    return read(), failed


class SampleReader:
    """Reads the samples of one plan by a policy; `pad_token_id` fills them up."""

    def __init__(
        self,
        index: Index,
        encode: Encode,
        transform: Transform | None,
        policy: Policy,
        pad_token_id: int,
    ) -> None:
        self._index, self._encode, self._transform = index, encode, transform
        self._policy, self._pad_token_id = policy, pad_token_id
        self._fetcher = Fetcher(index)
        self._ready: dict[tuple[int, int], dict[str, Any]] = {}  # by pack and position
        options = index.snapshot.options
        self._shift = options.shift
        self._cuts = options.on_long in ("split", "truncate")
        self._budget = options.planned_capacity
        # Pieces of split samples have the longest length but for the last; where training has had
        # some of a sample's tokens already, the rest may begin and end anywhere.
        self._ends_shown = options.on_long == "split" and not options.continues
        self._longest = self._budget // options.align * options.align
        self._holes = Holes(index, encode, self._read_again, pad_token_id)

    @contextmanager
    def together(self, samples: Sequence[Sample]) -> Iterator[None]:
        """While it lasts, `read` has the records of `samples` that a store must be asked for."""
        records = self._fetcher.read_together(samples)
        ready = {(samples[n].pack_id, samples[n].position): read for n, read in records.items()}
        self._ready |= ready
        try:
            yield
        finally:
            for slot in ready:
                self._ready.pop(slot, None)

    def read(self, sample: Sample, epoch: int, events: Happened) -> Encoded:
        """The piece of `sample` that its pack holds, of exactly the planned length.

        Args:
            sample: as planned.
            epoch: of its pack.
            events: what happens is added here.

        Raises:
            MismatchError: shard or encoded sample differ from the plan.
            BadRecord, SourceError: record, media or shard cannot be read.
        """
        try:
            encoded, failed = retried(lambda: self._encoded(sample, epoch), self._policy.retries)
        except Exception as error:
            self._note_changes(sample, events)
            if self._policy.on_error == "raise" or not is_of_the_sample(error):
                raise _located(error, sample, self._index) from error.__cause__
            return self._hole("unreadable", sample, error, events)
        self._note_changes(sample, events)
        if failed is not None:
            events.append(event("retried", "read", sample, failed, encoded.length))
        try:
            piece = self._fit(encoded, sample)
        except PlanMismatch as error:
            if self._policy.on_mismatch == "error":
                raise _located(error, sample, self._index) from None
            return self._mended(encoded, sample, error, events)
        except MismatchError as error:
            raise _located(error, sample, self._index) from None
        if self._policy.makes_holes:
            self._holes.learn(piece, sample)
        return piece

    def _note_changes(self, sample: Sample, events: Happened) -> None:
        """Warn of shards that seem to have changed, of which `sample` is the first to be read."""
        for change in self._fetcher.take_changes():
            warnings.warn(change.text, stacklevel=4)
            events.append(event("changed", "read", sample, ChangedSource(change.text)))

    def _read_again(self, sample: Sample) -> Encoded:
        """A sample of any pack, as planned or not at all."""
        epoch = self._index.pack(sample.pack_id).stats["epoch"] or 0
        return self._fit(self._encoded(sample, epoch), sample)

    def _encoded(self, sample: Sample, epoch: int) -> Encoded:
        """The whole sample, as long as it may be."""
        record = self._ready.pop((sample.pack_id, sample.position), None)
        if record is None:
            record = self._fetcher.read(sample)
        if self._transform is not None:
            record = self._transform.apply(
                record, sample.sample_id, epoch=epoch, copy=sample.copy or 0
            )
        encoded = normalise(self._encode(record), rules_of(self._encode))
        return shift(encoded) if self._shift and encoded.length else encoded

    def _fit(self, encoded: Encoded, sample: Sample) -> Encoded:
        """`encoded` cut as planned, with exactly the planned length and media."""
        length, start = encoded.length, sample.token_start or 0
        piece = encoded
        if length != sample.length or start:
            may_cut = self._cuts and length > self._budget
            stop = start + sample.length
            is_last = self._ends_shown and sample.length < self._longest
            if not may_cut or stop > length or (is_last and stop < length):
                if not start:  # another grid says more than another length
                    check_media(encoded.media, sample.media)
                after = " after the shift" if self._shift else ""
                begin = f" from token {start}" if start else ""
                raise PlanMismatch(
                    f"encoded to {length} tokens{after} but planned as {sample.length}{begin};"
                    f" {ADVICE}"
                )
            piece = self._cut(encoded, start, start + sample.length)
        check_media(piece.media, sample.media)
        return piece

    def _cut(self, encoded: Encoded, start: int, stop: int) -> Encoded:
        media_ids: Mapping[str, int] | None = getattr(self._encode, "media_token_ids", None)
        piece = cut(encoded, start, stop, media_ids)
        if not self._shift:
            piece.labels[:1] = IGNORE  # its predictor is in another piece
        return piece

    def _mended(
        self, encoded: Encoded, sample: Sample, error: PlanMismatch, events: Happened
    ) -> Encoded:
        """What stands for a sample that is not what was planned."""
        length, start = encoded.length, sample.token_start or 0
        if not encoded.media and self._holes.expects_media(sample):
            return self._hole("mismatch", sample, error, events, length)
        if self._policy.on_mismatch == "truncate" and length > start:
            stop = min(length, start + sample.length)
            try:
                piece = self._cut(encoded, start, stop) if (start, stop) != (0, length) else encoded
                check_media(piece.media, sample.media)
            except MismatchError:  # the cut falls into media, or these are others than planned
                pass
            else:
                keep_labels(piece, sample.label_tokens)
                done = "truncated" if piece.length == sample.length else "padded"
                events.append(event("mismatch", done, sample, error, length))
                return extend(piece, sample.length, self._pad_token_id)
        return self._hole("mismatch", sample, error, events, length)

    def _hole(
        self,
        kind: str,
        sample: Sample,
        error: Exception,
        events: Happened,
        length: int | None = None,
    ) -> Encoded:
        try:
            hole = self._holes.build(sample)
        except (NoHole, PlanMismatch) as reason:
            text = f"{reason}; no hole can stand for it: {error}"
            raise _located(NoHole(text), sample, self._index) from error
        events.append(event(kind, "hole", sample, error, length))
        return hole


def keep_labels(piece: Encoded, planned: int | None) -> None:
    """Mask labels beyond the planned number: the step's denominator does not know them."""
    if planned is not None:
        piece.labels[(piece.labels != IGNORE).nonzero()[planned:, 0]] = IGNORE


def _located(error: Exception, sample: Sample, index: Index) -> Exception:
    """`error` with the pack and the sample in its notes, and in its text if it is ours."""
    where = f"pack {sample.pack_id}, sample {sample.sample_id} (key {sample.key!r})"
    located = error
    if isinstance(error, BadRecord):
        located = BadRecord(error.reason, f"{where}: {error.detail}")
    elif isinstance(error, MismatchError | SourceError):
        located = type(error)(f"{where}: {error}")
    located.add_note(f"while reading {where} of {index.path}@{index.id}")
    return located
