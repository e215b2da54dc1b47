"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import contextlib
import logging
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch.utils.data import Dataset, Subset

from packidx.errors import BadRecord, MismatchError, OptionError, PackidxError, SourceError
from packidx.format.index import IndexManifest
from packidx.format.manifest import built_kinds
from packidx.index import Index, PlannedPack, PlannedSample, open_index
from packidx.index.described import describe_untrained, short_name
from packidx.io import storage
from packidx.records.fetch import Fetcher
from packidx.torch.events import Events, Happened, make_event
from packidx.torch.joining import IGNORE, rules_of
from packidx.torch.packs import NOTHING, Pack, Segment
from packidx.torch.sample import (
    ADVICE,
    GUESSED,
    PlanMismatch,
    Sample,
    check_media,
    cut_piece,
    length_of,
    media_of,
    normalise_sample,
    up_to,
)
from packidx.user_code import Function, fingerprint_of, planned_transform
from packidx.words import number_of

_log = logging.getLogger("packidx.torch")

Encode = Callable[..., Mapping[str, Any]]
"""A record (`records.read.encoder_input`) -> one sample's tensors."""


class PackedDataset(Dataset[Pack]):
    """``dataset[k]`` is pack `k`: its samples, read, encoded and cut as planned (`Pack`).

    Sources and packs without a label token are reported once, by the log ``packidx.torch``.

    It pickles small, and what it holds open serves forked and spawned workers alike.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        encode: record, its images opened, -> one sample's tensors, ``input_ids`` [T] or [1, T] at
            least; or a processor's folder or name, of which a `ProcessorEncoder` is made, with the
            plan's label policy and settings. Labels default to the ids. With a ``fingerprint()`` it
            is checked against the plan. An attribute ``pad_token_id`` (0 without) fills padding.
            Whole numbers beside the tokens are joined by their name; for names of its own, an
            attribute ``join`` states how: ``{name: rule}``, a rule being ``'rows'`` (dimension 0),
            ``'last'`` (the last dimension), ``'tokens'`` (one number for each token) or
            ``'index:NAME'`` (numbers of NAME's rows).
        roots: old prefix -> new prefix of shard and media paths.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it, where the lengths were
            counted with one: applied to every record as it stands in its file. Its
            random numbers are the plan's: of its seed, sample and copy, and of a stream's epoch.
        on_mismatch: about a sample that is not what was planned: ``'error'`` raises; ``'skip'``
            leaves it out; ``'fit'``, for plans on guessed lengths, takes every sample as long as it
            is, in order, as far as the capacity goes (less the plan's ``--reserve``). A pack is
            then padded to a multiple of the plan's ``--pad-pack-to`` alone.
        on_bad: about a sample that cannot be read: ``'error'``, or ``'skip'``, which leaves it out:
            its pack keeps its length, with pad tokens in its place. `events` tells of each. Ranks
            that read the same pack for themselves (tensor, context or pipeline parallelism) may
            leave out different samples: let those raise.
        dummy_image: True: a pack without media gets one small image as a segment of its own, seen
            by no sample and without labels, for trainers that need every rank to run the vision
            tower; the plan must reserve its tokens (``--reserve``). A record with one image: that.

    Attributes:
        index: the opened index.
        events: what went otherwise than planned so far, in workers, too (`events.Events`).

    Raises:
        MismatchError: `encode` is not the encoder that the lengths were counted with, or
            `transform` is not the transform.
        OptionError: a policy that does not exist.
    """

    def __init__(
        self,
        index: str | Path | Index,
        encode: Encode | str | PathLike[str],
        roots: Mapping[str, str] | None = None,
        transform: str | Function | None = None,
        *,
        on_mismatch: str = "error",
        on_bad: str = "error",
        dummy_image: bool | Mapping[str, Any] | None = None,
    ) -> None:
        for name, asked, known in (
            ("on_mismatch", on_mismatch, ("error", "skip", "fit")),
            ("on_bad", on_bad, ("error", "skip")),
        ):
            if asked not in known:
                raise OptionError(f"{name} {asked!r} is not one of {', '.join(known)}")
        self.index = open_index(index, roots)
        snapshot, where = self.index.snapshot, str(self.index.path)
        self.encode: Any = _encoder_of(encode, self.index)
        encode = self.encode
        self._rules = rules_of(encode)
        self._pad_token_id = int(getattr(encode, "pad_token_id", None) or 0)
        if hasattr(encode, "build_kinds"):
            encode.build_kinds(built_kinds(snapshot.lengths.encoder))
        self.events = Events()
        for text in describe_untrained(snapshot):
            _log.warning("%s: %s", where, text)
        self._sources: dict[str | None, int] = {
            source.name: number for number, source in enumerate(snapshot.sources)
        }
        self._options, self._is_exact = snapshot.options, _is_exact(snapshot)
        self._on_mismatch, self._on_bad = on_mismatch, on_bad
        self._room = _room_of(snapshot) if on_mismatch == "fit" else None
        checked = planned_transform(snapshot.lengths.transform, transform, where)
        self._fetcher = Fetcher(self.index, checked, encode)
        self._dummy_image = dummy_image
        if dummy_image and not self._options.reserve:
            _ = self._dummy_sample  # says how much the plan must reserve

    def __len__(self) -> int:
        return self.index.num_packs

    def __repr__(self) -> str:
        name = getattr(self.encode, "__qualname__", type(self.encode).__qualname__)
        return f"PackedDataset({short_name(self.index.path, self.index.snapshot)}, encode={name})"

    def __getitem__(self, k: SupportsIndex | slice) -> Pack:
        """Read pack `k`, which counts from the end below 0; of a slice, return a `Subset`.

        Raises:
            IndexError: there is no such pack.
            MismatchError: shard or encoded sample differ from the plan.
            BadRecord, SourceError: a record, its media or its shard cannot be read.
            OptionError: the plan does not reserve the dummy image's tokens.
        """
        if isinstance(k, slice):
            return Subset(self, range(len(self))[k])  # type: ignore[return-value]
        number = operator.index(k)
        return self.read(self.index.pack(number + len(self) * (number < 0)))

    def read(self, planned: PlannedPack) -> Pack:
        """A pack as it was planned; it raises what ``dataset[k]`` raises."""
        epoch, pad, align = planned.stats.get("epoch", 0), self._pad_token_id, self._options.align
        happened, left = Happened(), self._room
        ready = _prefetch_records(self._fetcher, planned.samples, epoch)
        kept: list[PlannedSample] = []
        segments: list[Segment] = []
        for number, sample in enumerate(planned.samples):
            tensors = self._read_sample(sample, epoch, happened, ready.pop(number, None))
            if tensors is None:
                continue
            slot = sample.padded_length or sample.length
            if left is not None:
                slot = up_to(length_of(tensors), align)
                if slot > left:
                    error = PlanMismatch(
                        f"encoded to {length_of(tensors)} tokens but planned as {sample.length}: of"
                        f" the {self._room} of its pack {left} are left"
                    )
                    happened.append(
                        make_event("no_room", "left_out", sample, error, length_of(tensors))
                    )
                    continue
                left -= slot
            kept.append(sample)
            segments.append(Segment(tensors, slot, pad))
        if self._dummy_image and not any(media_of(each.tensors, self._rules) for each in segments):
            dummy = {key: value.clone() for key, value in self._dummy_sample.items()}
            segments.append(Segment(dummy, up_to(length_of(dummy), align), pad))
        if rest := self._padded_length(planned, segments) - sum(each.slot for each in segments):
            segments.append(Segment(NOTHING.copy(), rest, pad))
        for each in happened:
            self.events.add(each)
        return Pack(
            planned.pack_id,
            epoch,
            torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
            torch.tensor([self._sources.get(sample.source, -1) for sample in kept]).long(),
            torch.tensor([sample.position for sample in kept], dtype=torch.int64),
            segments,
            rules=self._rules or None,
            events=happened,
            pixel_table=getattr(self.encode, "pixel_table", None),
        )

    def _read_sample(
        self,
        sample: PlannedSample,
        epoch: int,
        happened: Happened,
        record: Any = None,
    ) -> Sample | None:
        """Read the piece of `sample` that its pack holds.

        It has exactly the planned length, or its own by ``on_mismatch="fit"``. None if it is
        skipped.

        Args:
            happened: events are added here.
            record: the sample's, if it is read already.
        """
        encoded = None
        try:
            if record is None:
                record = self._fetcher.read(sample, epoch)
            encoded = normalise_sample(self.encode(record), self._rules)
            return self._cut_to_plan(encoded, sample)
        except Exception as error:
            is_other = isinstance(error, PlanMismatch)
            policy = self._on_mismatch if is_other else self._on_bad
            # Anything else concerns the plan or an installation, and so every sample.
            is_ours = isinstance(error, PackidxError)
            of_sample = isinstance(error, BadRecord | SourceError | PlanMismatch)
            may_skip = of_sample if is_ours else not isinstance(error, MemoryError | ImportError)
            if policy == "error" or not may_skip:
                raise _add_location(error, sample, self.index) from error.__cause__
            length = None if encoded is None else length_of(encoded)
            # Guessed lengths are hardly ever right: a warning for each would say nothing.
            if policy != "fit" or self._is_exact:
                kind, done = ("mismatch" if is_other else "unreadable"), "left_out"
                done = "fitted" if policy == "fit" else done
                happened.append(make_event(kind, done, sample, error, length))
            return encoded if policy == "fit" and length else None

    def _cut_to_plan(self, encoded: Sample, sample: PlannedSample) -> Sample:
        """Return `encoded`, cut as planned, with exactly the planned length and media."""
        length, start = length_of(encoded), sample.token_start or 0
        # Pieces of long samples have the longest length but for the last of a split one.
        longest = self._options.longest
        if length != sample.length or start:
            may_cut = self._options.on_long in ("split", "truncate") and length > longest
            stop = start + sample.length
            if not may_cut or stop > length or (sample.length < longest and stop != length):
                if not start and not may_cut:  # another grid says more than another length
                    check_media(encoded, sample.media)
                begin = f" from token {start}" if start else ""
                raise PlanMismatch(
                    f"encoded to {length} tokens but planned as {sample.length}{begin};"
                    f" {ADVICE if self._is_exact else GUESSED}"
                )
            encoded = cut_piece(encoded, start, stop, self._rules)
        check_media(encoded, sample.media)
        return encoded

    def _padded_length(self, planned: PlannedPack, segments: Sequence[Segment]) -> int:
        """Return the tokens of a pack, its own padding included."""
        options = self._options
        total = sum(segment.slot for segment in segments)
        padded = up_to(max(total, options.align), options.pad_pack_to)
        if self._room is None:
            padded = max(padded, planned.stats["padded_length"] or 0)
        if padded > options.capacity:
            raise MismatchError(
                f"pack {planned.pack_id} of {self.index.path} has {padded} tokens, over its"
                f" capacity of {options.capacity}: plan again"
            )
        return padded

    @cached_property
    def _dummy_sample(self) -> Sample:
        """The image of packs without media, as a sample without labels."""
        record = self._dummy_image
        if not isinstance(record, Mapping):
            from PIL import Image

            grey = {"type": "image", "image": Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))}
            record = {"messages": [{"role": "user", "content": [grey]}]}
        sample = normalise_sample(self.encode(dict(record)), self._rules)
        if not media_of(sample, self._rules):
            raise OptionError(
                "encode returned no media for the dummy image: give dummy_image= a record of its"
                " own kind with one small image in it"
            )
        sample["labels"].fill_(IGNORE)
        options = self._options
        needed = up_to(up_to(length_of(sample), options.align), options.pad_pack_to)
        if options.reserve < needed:
            raise OptionError(
                f"the dummy image takes {needed} tokens and the plan reserves {options.reserve} of"
                f" each pack's {self.index.capacity}: plan with --reserve {needed}"
            )
        return sample


_SIDE = 32  # pixels; processors enlarge it to the smallest size that they take
_SHOWN = 6  # settings that an error lists


def _encoder_of(encode: Encode | str | PathLike[str], index: Index) -> Encode:
    """Return `encode`, or the `ProcessorEncoder` of a processor, its folder or its name on the Hub,
    with the label policy and the settings that the lengths of `index` were counted with.

    Raises:
        OptionError: it is neither.
        MismatchError: the lengths were counted with an encoder of another fingerprint.
    """
    counted = index.snapshot.lengths.encoder
    is_object = hasattr(encode, "save_pretrained")  # and has its settings already
    if is_object or isinstance(encode, str | PathLike):
        from packidx.encode import ProcessorEncoder

        settings = None if is_object or counted is None else counted.overrides
        policy = None if counted is None else counted.labels
        encode = ProcessorEncoder(encode, policy or "all", settings=settings)
    if not callable(encode):
        raise OptionError(f"encode is {encode!r}: give a processor's folder, or a callable")
    mine = fingerprint_of(encode)
    if counted is None or None in (mine, counted.fingerprint) or mine == counted.fingerprint:
        return encode
    policy = "" if counted.labels is None else f" (labels {counted.labels!r})"
    parts = getattr(encode, "fingerprint_parts", None)
    differences = [] if parts is None else counted.differences(parts())
    if (more := len(differences) - _SHOWN) > 0:
        differences[_SHOWN:] = [f"and {number_of(more, 'more setting')}"]
    by = f"one of fingerprint {mine}, not {counted.fingerprint}"
    name = getattr(encode, "name", "another encoder" if differences else by)
    raise MismatchError(
        f"the lengths of {index.path} were counted by {counted.name}, and encode is {name}: use the"
        f" same processor and label policy{policy}, or"
        + "\n  ".join([" estimate and plan again", *differences])
    )


def _room_of(snapshot: IndexManifest) -> int:
    """Tokens that the samples of one pack may take by ``on_mismatch="fit"``, the margin included.

    Raises:
        OptionError: the plan cuts samples whose lengths were guessed.
    """
    options, result = snapshot.options, snapshot.result
    is_split = result.num_pieces != result.num_samples or bool(options.weights)
    is_cut = result.num_tokens_cut > 0 or (options.on_long == "split" and is_split)
    if is_cut and not _is_exact(snapshot):
        raise OptionError(
            f"on_mismatch 'fit' cannot read this plan: --on-long {options.on_long} has cut samples"
            " of lengths that were not counted exactly: plan with --on-long drop"
        )
    return (options.capacity - options.reserve) // options.pad_pack_to * options.pad_pack_to


def _is_exact(snapshot: IndexManifest) -> bool:
    """Return whether all lengths of a plan were counted exactly."""
    methods = snapshot.lengths.methods
    return 0 < methods.get("exact", 0) == sum(methods.values())


def _prefetch_records(
    fetcher: Fetcher, samples: Sequence[PlannedSample], epoch: int
) -> dict[int, Any]:
    """Return the records of a pack that are in a store, by number: they are read side by side.

    A record that cannot be read is left out: it raises the error where it is read by itself.
    """
    waiting = [number for number, sample in enumerate(samples) if fetcher.waits(sample)]
    if len(waiting) < 2:
        return {}

    def attempt(number: int) -> Any:
        try:
            return fetcher.read(samples[number], epoch)
        except Exception:
            return None

    with contextlib.suppress(PackidxError):
        for shard in {samples[number].shard or 0 for number in waiting}:
            fetcher.shard(shard)  # once, and not in each thread
    with warnings.catch_warnings():
        # Filters belong to all threads: each would take away and bring back the others'.
        warnings.simplefilter("ignore")
        return dict(zip(waiting, storage.map_overlapped(attempt, waiting), strict=True))


def _add_location(error: Exception, sample: PlannedSample, index: Index) -> Exception:
    """`error` with the pack and the sample in its notes, and in its text if it is ours."""
    where = f"pack {sample.pack_id}, sample {sample.sample_id} (key {sample.key!r})"
    located = error
    if isinstance(error, BadRecord):
        located = BadRecord(error.reason, f"{where}: {error.detail}")
    elif isinstance(error, MismatchError | SourceError):
        located = type(error)(f"{where}: {error}")
    located.add_note(f"while reading {where} of {index.path}@{index.id}")
    return located
