"""Read and encode the samples of packs, and compare each with its plan."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from packidx.errors import (
    BadRecord,
    MismatchError,
    OptionError,
    PackidxError,
    SourceError,
)
from packidx.format.index import IndexManifest
from packidx.format.manifest import built_kinds
from packidx.index import Index, Sample
from packidx.io import storage
from packidx.records.fetch import Fetcher
from packidx.torch.events import Happened, event
from packidx.torch.joining import rules_of
from packidx.torch.pixels import PackBuffer
from packidx.torch.sample import (
    ADVICE,
    GUESSED,
    PlanMismatch,
    check_media,
    cut_piece,
    length_of,
    normalise,
)
from packidx.torch.sample import Sample as Tensors

if TYPE_CHECKING:
    from packidx.user_code import Transform

_log = logging.getLogger("packidx.torch")

Encode = Callable[..., Mapping[str, Any]]
"""A record (`records.read.opened_record`) -> one sample's tensors; given a `PackBuffer`, too, if it
``takes_allocate``."""


def encoder_of(encode: Encode | str | PathLike[str], index: Index) -> Encode:
    """Return `encode`, or the `ProcessorEncoder` of a processor, its folder or its name on the Hub,
    with the label policy and the settings that the lengths of `index` were counted with."""
    is_object = hasattr(encode, "save_pretrained")  # and has its settings already
    if not is_object and not isinstance(encode, str | PathLike):
        if not callable(encode):
            raise OptionError(f"encode is {encode!r}: give a processor's folder, or a callable")
        return encode
    from packidx.encode import ProcessorEncoder

    counted = index.snapshot.lengths.encoder
    settings = None if is_object or counted is None else counted.overrides
    policy = None if counted is None else counted.labels
    return ProcessorEncoder(encode, policy or "all", settings=settings)


ON_MISMATCH = ("error", "skip", "fit")
ON_BAD = ("error", "skip")


def room_of(snapshot: IndexManifest) -> int:
    """Tokens that the samples of one pack may take by ``on_mismatch="fit"``, the margin included.

    Raises:
        OptionError: the plan cuts samples whose lengths were guessed.
    """
    options, result = snapshot.options, snapshot.result
    is_split = result.num_pieces != result.num_samples or bool(options.weights)
    is_cut = result.num_tokens_cut > 0 or (options.on_long == "split" and is_split)
    if is_cut and not is_exact(snapshot):
        raise OptionError(
            f"on_mismatch 'fit' cannot read this plan: --on-long {options.on_long} has cut samples"
            " of lengths that were not counted exactly: plan with --on-long drop"
        )
    return (options.capacity - options.reserve) // options.pad_pack_to * options.pad_pack_to


def is_exact(snapshot: IndexManifest) -> bool:
    """Return whether all lengths of a plan were counted exactly."""
    methods = snapshot.lengths.methods
    return bool(methods.get("exact")) and not any(
        number for name, number in methods.items() if name != "exact"
    )


def is_of_the_sample(error: Exception) -> bool:
    """Return whether `error` may concern one sample alone, not the plan or an installation."""
    if isinstance(error, PackidxError):
        return isinstance(error, BadRecord | SourceError)
    return not isinstance(error, MemoryError | ImportError)


class SampleReader:
    """Reads the samples of one plan; `on_mismatch` and `on_bad` are `PackedDataset`'s.

    Attributes:
        room: tokens for the samples of one pack by ``on_mismatch="fit"``; else None.

    Raises:
        OptionError: one of the two is unknown, or the plan cannot be read so.
    """

    def __init__(
        self,
        index: Index,
        encode: Encode,
        transform: Transform | None,
        on_mismatch: str,
        on_bad: str,
    ) -> None:
        if on_mismatch not in ON_MISMATCH:
            raise OptionError(f"on_mismatch {on_mismatch!r} is not one of {', '.join(ON_MISMATCH)}")
        if on_bad not in ON_BAD:
            raise OptionError(f"on_bad {on_bad!r} is not one of {', '.join(ON_BAD)}")
        self._on_mismatch, self._on_bad = on_mismatch, on_bad
        self.room = room_of(index.snapshot) if on_mismatch == "fit" else None
        self._index = index
        self._encode: Any = encode
        self._takes_room = bool(getattr(encode, "takes_allocate", False))
        self._rules = rules_of(encode)
        self._fetcher = Fetcher(index, transform)
        options = index.snapshot.options
        self._cuts = options.on_long in ("split", "truncate")
        # Pieces of long samples have the longest length but for the last of a split one.
        self._longest = options.longest
        self._is_exact = is_exact(index.snapshot)
        if hasattr(encode, "build_kinds"):
            encode.build_kinds(built_kinds(index.snapshot.lengths.encoder))

    def read_all(
        self, samples: Sequence[Sample], epoch: int, events: Happened, room: PackBuffer
    ) -> list[Tensors | None]:
        """Return what `read` makes of each sample; records in a store are read side by side."""
        ready = self._prefetched(samples, epoch)
        return [
            self.read(sample, epoch, events, room, ready.pop(number, None))
            for number, sample in enumerate(samples)
        ]

    def _prefetched(self, samples: Sequence[Sample], epoch: int) -> dict[int, Any]:
        """Return the records of a pack that are in a store, by number.

        A record that cannot be read is left to `read`, which raises the error.
        """
        waiting = [number for number, sample in enumerate(samples) if self._fetcher.waits(sample)]
        if len(waiting) < 2:
            return {}

        def attempt(number: int) -> dict[str, Any] | None:
            try:
                return self._fetcher.read(samples[number], epoch)
            except Exception:
                return None

        with contextlib.suppress(PackidxError):
            for shard in {samples[number].shard or 0 for number in waiting}:
                self._fetcher.shard(shard)  # once, and not in each thread
        with warnings.catch_warnings():
            # Filters belong to all threads: each would take away and bring back the others'.
            warnings.simplefilter("ignore")
            return dict(zip(waiting, storage.overlapped(attempt, waiting), strict=True))

    def read(
        self,
        sample: Sample,
        epoch: int,
        events: Happened,
        room: PackBuffer,
        record: Any = None,
    ) -> Tensors | None:
        """Read the piece of `sample` that its pack holds.

        It has exactly the planned length, or its own by ``on_mismatch="fit"``. None if it is
        skipped.

        Args:
            sample: as planned.
            epoch: of its pack.
            events: what happens is added here.
            room: of its pack, for the pixels of an encoder that ``takes_allocate``.
            record: the sample's, if it is read already.

        Raises:
            MismatchError: shard or encoded sample differ from the plan.
            BadRecord, SourceError: record, media or shard cannot be read.
        """
        try:
            if record is None:
                record = self._fetcher.read(sample, epoch)
            given = [room] if self._takes_room else []
            encoded = normalise(self._encode(record, *given), self._rules)
        except Exception as error:
            if self._on_bad == "error" or not is_of_the_sample(error):
                raise _located(error, sample, self._index) from error.__cause__
            events.append(event("unreadable", "left_out", sample, error))
            return None
        try:
            return self._fit(encoded, sample)
        except PlanMismatch as error:
            if self._on_mismatch == "error":
                raise _located(error, sample, self._index) from None
            if self._on_mismatch == "fit":
                # Guessed lengths are hardly ever right: a warning for each would say nothing.
                if self._is_exact:
                    events.append(event("mismatch", "fitted", sample, error, length_of(encoded)))
                return encoded if length_of(encoded) else None
            events.append(event("mismatch", "left_out", sample, error, length_of(encoded)))
            return None
        except MismatchError as error:
            raise _located(error, sample, self._index) from None

    def _fit(self, encoded: Tensors, sample: Sample) -> Tensors:
        """`encoded` cut as planned, with exactly the planned length and media."""
        length, start = length_of(encoded), sample.token_start or 0
        piece = encoded
        if length != sample.length or start:
            may_cut = self._cuts and length > self._longest
            stop = start + sample.length
            is_short = sample.length < self._longest
            if not may_cut or stop > length or (is_short and stop != length):
                if not start and not may_cut:  # another grid says more than another length
                    check_media(encoded, sample.media)
                begin = f" from token {start}" if start else ""
                raise PlanMismatch(
                    f"encoded to {length} tokens but planned as {sample.length}{begin};"
                    f" {ADVICE if is_exact(self._index.snapshot) else GUESSED}"
                )
            piece = cut_piece(encoded, start, stop, self._rules)
        check_media(piece, sample.media)
        return piece


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
