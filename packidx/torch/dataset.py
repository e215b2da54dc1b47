"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch.utils.data import Dataset

from packidx.errors import MismatchError, OptionError
from packidx.index import Index, open_index
from packidx.index import Pack as PlannedPack
from packidx.index import Sample as PlannedSample
from packidx.index.described import short_name, untrained
from packidx.torch.events import Events, Happened, event
from packidx.torch.joining import IGNORE, rules_of
from packidx.torch.packs import NOTHING, Pack, Segment
from packidx.torch.pixels import PackBuffer
from packidx.torch.reader import Encode, SampleReader, encoder_of
from packidx.torch.sample import PlanMismatch, Sample, length_of, media_of, normalise, up_to
from packidx.user_code import Function, fingerprint_of, planned_transform
from packidx.words import number_of

_log = logging.getLogger("packidx.torch")


class PackedDataset(Dataset[Pack]):
    """``dataset[k]`` is pack `k`: its samples, read, encoded and cut as planned (`Pack`).

    What the plan knows to train on nothing, sources and packs without a label token, is told once
    by the log ``packidx.torch``.

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
            leaves it out; ``'fit'``, for plans on guessed lengths, takes
            every sample as long as it is, in order, as far as the capacity goes (less the plan's
            ``--reserve``). A pack is then padded to a multiple of the plan's ``--pad-pack-to``
            alone.
        on_bad: about a sample that cannot be read: ``'error'``, or ``'skip'``, which leaves it
            out. The pack is padded as planned, with pad tokens for what was left out; one of which
            nothing is left is pad tokens alone. `events` tells of each. Ranks that read the same
            pack for themselves (tensor, context or pipeline parallelism) may leave out different
            samples: let those raise.
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
        self.index = open_index(index, roots)
        self.encode = encode = encoder_of(encode, self.index)
        self._rules = rules_of(encode)
        self.events = Events()
        for text in untrained(self.index.snapshot):
            _log.warning("%s: %s", self.index.path, text)
        sources = self.index.snapshot.sources
        self._sources: dict[str | None, int] = {
            source.name: number for number, source in enumerate(sources)
        }
        self._options = self.index.snapshot.options
        _check_fingerprint(self.index, encode)
        planned = self.index.snapshot.lengths.transform
        checked = planned_transform(planned, transform, str(self.index.path))
        self._pad_token_id = int(getattr(encode, "pad_token_id", None) or 0)
        self._reader = SampleReader(self.index, encode, checked, on_mismatch, on_bad)
        self._dummy_image = dummy_image
        if dummy_image and not self._options.reserve:
            _ = self._dummy_sample  # says how much the plan must reserve

    def __len__(self) -> int:
        return self.index.num_packs

    def __repr__(self) -> str:
        name = getattr(self.encode, "__qualname__", type(self.encode).__qualname__)
        return f"PackedDataset({short_name(self.index.path, self.index.snapshot)}, encode={name})"

    def __getitem__(self, k: SupportsIndex) -> Pack:
        """Pack `k`, 0 <= k < len(self).

        Raises:
            IndexError: no such pack.
            MismatchError: shard or encoded sample differ from the plan.
            BadRecord, SourceError: a record, its media or its shard cannot be read.
            OptionError: the plan does not reserve the dummy image's tokens.
        """
        number = operator.index(k)
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} is outside [0, {len(self)}) of {self.index.path}")
        return self.read(self.index.pack(number))

    def read(self, planned: PlannedPack) -> Pack:
        """A pack as it was planned; it raises what ``dataset[k]`` raises."""
        epoch = planned.stats.get("epoch", 0)
        happened: Happened = []
        media = [each for sample in planned.samples for each in sample.media or ()]
        images = [each for each in media if each["kind"] == "image"]
        patches = sum((each["t"] or 0) * (each["h"] or 0) * (each["w"] or 0) for each in images)
        read = self._reader.read_all(planned.samples, epoch, happened, PackBuffer(patches))
        whole = {place: sample for place, sample in enumerate(read) if sample is not None}
        samples = whole if self._reader.room is None else self._fitting(planned, whole, happened)
        for each in happened:
            self.events.add(each)
        kept = [planned.samples[place] for place in samples]
        sources = [self._sources.get(sample.source, -1) for sample in kept]
        return Pack(
            planned.pack_id,
            epoch,
            torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
            torch.tensor(sources, dtype=torch.int64),
            torch.tensor([sample.position for sample in kept], dtype=torch.int64),
            self._segments(planned, kept, list(samples.values())),
            rules=self._rules or None,
            events=happened,
            pixel_table=getattr(self.encode, "pixel_table", None),
        )

    def _fitting(
        self, planned: PlannedPack, read: Mapping[int, Sample], happened: Happened
    ) -> dict[int, Sample]:
        """The samples, by their place, that there is room for, each as long as it is."""
        fitting, left = {}, self._reader.room or 0
        for place, sample in read.items():
            length = length_of(sample)
            taken = up_to(length, self._options.align)
            if taken <= left:
                fitting[place], left = sample, left - taken
                continue
            of_plan = planned.samples[place]
            error = PlanMismatch(
                f"encoded to {length} tokens but planned as {of_plan.length}: of the"
                f" {self._reader.room} of its pack {left} are left"
            )
            happened.append(event("no_room", "left_out", of_plan, error, length))
        return fitting

    def _segments(
        self, planned: PlannedPack, kept: list[PlannedSample], samples: list[Sample]
    ) -> list[Segment]:
        """All that the pack holds, padded as planned, of which `kept` are left as `samples`."""
        pad, align = self._pad_token_id, self._options.align
        slots = [sample.padded_length or sample.length for sample in kept]
        if self._reader.room is not None:
            slots = [up_to(length_of(sample), align) for sample in samples]
        segments = [Segment(*each, pad) for each in zip(samples, slots, strict=True)]
        if self._dummy_image and not any(media_of(sample, self._rules) for sample in samples):
            dummy = {key: value.clone() for key, value in self._dummy_sample.items()}
            segments.append(Segment(dummy, up_to(length_of(dummy), align), pad))
        total = sum(segment.slot for segment in segments)
        padded = up_to(max(total, align), self._options.pad_pack_to)
        if self._reader.room is None:
            padded = max(padded, planned.stats["padded_length"] or 0)
        if padded > self._options.capacity:
            raise MismatchError(
                f"pack {planned.pack_id} of {self.index.path} has {padded} tokens, over its"
                f" capacity of {self._options.capacity}: plan again"
            )
        if rest := padded - total:
            segments.append(Segment(NOTHING.copy(), rest, pad))
        return segments

    @cached_property
    def _dummy_sample(self) -> Sample:
        """The image of packs without media, as a sample without labels."""
        record = self._dummy_image
        if not isinstance(record, Mapping):
            from PIL import Image

            grey = {"type": "image", "image": Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))}
            record = {"messages": [{"role": "user", "content": [grey]}]}
        sample = normalise(self.encode(dict(record)), self._rules)
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

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__}
        state.pop("_dummy_sample", None)  # each worker encodes its own
        return state


_SHOWN = 6  # settings that an error lists
_SIDE = 32  # pixels; processors enlarge it to the smallest size that they take


def _check_fingerprint(index: Index, encode: Encode) -> None:
    counted = index.snapshot.lengths.encoder
    if counted is None or counted.fingerprint is None:
        return
    mine = fingerprint_of(encode)
    if mine in (None, counted.fingerprint):
        return
    policy = "" if counted.labels is None else f" (labels {counted.labels!r})"
    parts = getattr(encode, "fingerprint_parts", None)
    differences = [] if parts is None else counted.differences(parts())
    if len(differences) > _SHOWN:
        more = len(differences) - _SHOWN
        differences[_SHOWN:] = [f"and {number_of(more, 'more setting')}"]
    by = f"one of fingerprint {mine}, not {counted.fingerprint}"
    name = getattr(encode, "name", "another encoder" if differences else by)
    raise MismatchError(
        f"the lengths of {index.path} were counted by {counted.name}, and encode is {name}: use the"
        f" same processor and label policy{policy}, or"
        + "\n  ".join([" estimate and plan again", *differences])
    )
