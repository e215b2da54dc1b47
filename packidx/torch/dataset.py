"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from packidx.errors import MismatchError, OptionError
from packidx.index import Index, Pack, open_index
from packidx.index.described import short_name, untrained
from packidx.torch.encoded import (
    IGNORE,
    Encoded,
    PlanMismatch,
    extend,
    normalise,
    pad_tokens,
    up_to,
)
from packidx.torch.events import Events, Happened, event
from packidx.torch.joining import fills, join_media, pair_ids, rules_of
from packidx.torch.reader import Encode, Policy, SampleReader, room_of

if TYPE_CHECKING:
    from packidx.user_code import Function

_log = logging.getLogger("packidx.torch")


class PackedDataset(Dataset[dict[str, Any]]):
    """``dataset[k]`` reads, encodes and concatenates the samples of pack `k`.

    A pack is a dict of

    - ``input_ids``, ``labels`` int64 [T]: the first label of each sample is -100
    - ``position_ids`` int64 [T], restarting per segment; or [4, T] if `encode` returns mRoPE
      positions: row 0 restarts per segment, rows 1 to 3 are the sample's own
    - ``cu_seqlens`` int32 [s + 1], ``max_seqlen`` int: where the s segments start, padding at their
      ends included, and the longest. A segment is a sample, n of them in order, then the dummy
      image and the pack's own padding, if there are any
    - ``lengths`` int32 [s]: tokens of each segment without padding
    - every other per-token tensor that `encode` returns (``attention_mask``,
      ``token_type_ids``, ``mm_token_type_ids``, and others), [T]
    - every other tensor that `encode` returns, joined in order: on dimension 0, but for those of
      which `join_rules` knows another way
    - ``pack_id`` int, ``sample_ids`` int64 [n], ``source_ids`` int64 [n], numbers in the manifest's
      list of sources
    - ``pair_ids`` int64 [n], only where there are preference pairs (``--pair both``): 0, 1, … the
      same for both sides of a pair, of which the chosen one stands first; -1 for samples of no
      pair, and for a side whose other one was left out
    - ``shifted`` True, only for plans made with ``--shift``: position t predicts ``labels[t]``
    - ``join``, only where `encode` has such an attribute: that
    - ``events``, only where something went otherwise than planned: a list of dicts, as in `events`

    What the plan knows to train on nothing, sources and packs without a label token, is told once
    by the log ``packidx.torch``.

    It pickles small, and what it holds open serves forked and spawned workers alike.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        encode: record, its images opened, -> one sample's tensors, ``input_ids`` [T] or [1, T] at
            least. Labels default to the ids. With a ``fingerprint()`` it is checked against the
            plan. An attribute ``media_token_ids`` (``{"image": id}``) tells where the media of a
            sample are that the plan cuts; ``mm_token_type_ids`` among its tensors do as well. An
            attribute ``pad_token_id`` (0 without) fills what is padded. Whole numbers beside the
            tokens are joined by their name; for names of its own, an attribute ``join`` states how:
            ``{name: rule}``, a rule being ``'rows'`` (dimension 0), ``'last'`` (the last
            dimension), ``'tokens'`` (one number for each token) or ``'index:NAME'`` (numbers of
            NAME's rows).
        roots: old prefix -> new prefix of shard and media paths.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it, where the lengths were
            counted with one: applied to every record as it stands in its file. Its
            random numbers are the plan's: of its seed, the pack's epoch, sample and copy.
        on_mismatch: about a sample that is not what was planned: ``'error'`` raises; ``'skip'``
            leaves it out; ``'truncate'`` cuts a longer one, fills a shorter one with pad tokens,
            and leaves it out where a cut would fall into media or its media are not the planned;
            ``'fit'``, for plans on guessed lengths, takes every sample as long as it is, in order,
            as far as the capacity goes (less the plan's ``--reserve``). A pack is then padded to a
            multiple of the plan's ``--pad-pack-to`` alone. Of a plan with ``--on-long truncate`` a
            sample longer than a pack is cut.
        on_error: about a sample that cannot be read: ``'raise'``, or ``'skip'``, which leaves it
            out. The pack is padded as planned, with pad tokens for what was left out; one of which
            nothing is left is pad tokens alone. `events` tells of each. Ranks that read the same
            pack for themselves (tensor, context or pipeline parallelism) may leave out different
            samples: let those raise.
        retries: how often reading is tried again, after 0.1 s and then twice as long each time,
            where an input or output error may be transient. A missing file or a bad record is not.
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
        encode: Encode,
        roots: Mapping[str, str] | None = None,
        transform: str | Function | None = None,
        *,
        on_mismatch: str = "error",
        on_error: str = "raise",
        retries: int = 3,
        dummy_image: bool | Mapping[str, Any] | None = None,
    ) -> None:
        self._policy = policy = Policy(on_mismatch, on_error, retries)
        self.index = open_index(index, roots)
        self.encode = encode
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
        # It brings numpy.random, which takes time.
        from packidx.user_code import planned_transform

        planned = self.index.snapshot.lengths.transform
        checked = planned_transform(planned, transform, str(self.index.path))
        self._pad_token_id = int(getattr(encode, "pad_token_id", None) or 0)
        self._reader = SampleReader(self.index, encode, checked, policy, self._pad_token_id)
        self._room = room_of(self.index.snapshot) if policy.fits else None
        self._dummy_image = dummy_image
        self._like: Encoded | None = None  # the last first sample, for packs that keep none
        if dummy_image and not self._options.reserve:
            _ = self._encoded_dummy  # says how much the plan must reserve

    def __len__(self) -> int:
        return self.index.num_packs

    def __repr__(self) -> str:
        name = getattr(self.encode, "__qualname__", type(self.encode).__qualname__)
        return f"PackedDataset({short_name(self.index.path, self.index.snapshot)}, encode={name})"

    def __getitem__(self, k: SupportsIndex) -> dict[str, Any]:
        """Pack `k`, 0 <= k < len(self).

        Raises:
            IndexError: no such pack.
            MismatchError: shard or encoded sample differ from the plan.
            BadRecord, SourceError: a record, its media or its shard cannot be read.
            OptionError: the plan does not reserve the dummy image's tokens.
        """
        return self.pack_and_samples(k)[0]

    def pack_and_samples(self, k: SupportsIndex) -> tuple[dict[str, Any], list[Encoded]]:
        """Pack `k` and what it is made of: its samples, each by itself, without padding.

        Raises:
            IndexError, MismatchError, BadRecord, SourceError, OptionError: as `__getitem__`.
        """
        number = operator.index(k)
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} is outside [0, {len(self)}) of {self.index.path}")
        planned = self.index.pack(number)
        epoch = planned.stats["epoch"] or 0
        happened: Happened = []
        with self._reader.together(planned.samples, epoch):
            read = [self._reader.read(sample, epoch, happened) for sample in planned.samples]
        whole = {place: sample for place, sample in enumerate(read) if sample is not None}
        samples = whole if self._room is None else self._fitting(planned, whole, happened)
        kept = replace(planned, samples=[planned.samples[place] for place in samples])
        own = list(samples.values())
        result = self._joined(kept, own)
        if (ids := pair_ids(planned, samples.keys())) is not None:
            result["pair_ids"] = ids
        if happened:
            for each in happened:
                self.events.add(each)
            result["events"] = happened
        return result, own

    def _fitting(
        self, planned: Pack, read: Mapping[int, Encoded], happened: Happened
    ) -> dict[int, Encoded]:
        """The samples, by their place, that there is room for, each as long as it is."""
        fitting, left = {}, self._room or 0
        for place, sample in read.items():
            taken = up_to(sample.length, self._options.align)
            if taken <= left:
                fitting[place], left = sample, left - taken
                continue
            of_plan = planned.samples[place]
            error = PlanMismatch(
                f"encoded to {sample.length} tokens but planned as {of_plan.length}: of the"
                f" {self._room} of its pack {left} are left"
            )
            happened.append(event("no_room", "left_out", of_plan, error, sample.length))
        return fitting

    def _joined(self, pack: Pack, samples: list[Encoded]) -> dict[str, Any]:
        """The samples of `pack`, which are all that is left of it, as one dict."""
        segments, lengths = self._segments(pack, samples)
        sizes = [segment.length for segment in segments]
        joined: dict[str, Any] = {
            "input_ids": torch.cat([segment.input_ids for segment in segments]),
            "labels": torch.cat([segment.labels for segment in segments]),
            "position_ids": _positions(segments),
            "cu_seqlens": torch.tensor([0, *accumulate(sizes)], dtype=torch.int32),
            "max_seqlen": max(sizes),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
        }
        for key, fill in fills(self._rules).items():
            if any(key in segment.sequence for segment in segments):
                joined[key] = torch.cat([segment.per_token(key, fill) for segment in segments])
        joined |= join_media([segment.media for segment in segments], self._rules)
        sources = [self._sources.get(sample.source, -1) for sample in pack.samples]
        ids = [sample.sample_id for sample in pack.samples]
        joined["pack_id"] = pack.pack_id
        joined["sample_ids"] = torch.tensor(ids, dtype=torch.int64)
        joined["source_ids"] = torch.tensor(sources, dtype=torch.int64)
        if self._options.shift:
            joined["shifted"] = True
        if self._rules:
            joined["join"] = self._rules
        return joined

    def _segments(self, pack: Pack, samples: list[Encoded]) -> tuple[list[Encoded], list[int]]:
        """All that the pack holds, padded as planned, and the tokens of each without padding."""
        pad, align = self._pad_token_id, self._options.align
        lengths = [sample.length for sample in samples]
        planned = [sample.padded_length or sample.length for sample in pack.samples]
        if self._room is not None:
            planned = [up_to(length, align) for length in lengths]
        segments = [extend(sample, to, pad) for sample, to in zip(samples, planned, strict=True)]
        if self._needs_dummy(samples):
            dummy = self._encoded_dummy
            # A worker moves what it returns into shared memory: each pack has its own.
            dummy = replace(dummy, media={key: own.clone() for key, own in dummy.media.items()})
            lengths.append(dummy.length)
            segments.append(extend(dummy, up_to(dummy.length, align), pad))
        total = sum(segment.length for segment in segments)
        padded = up_to(max(total, align), self._options.pad_pack_to)
        if self._room is None:
            padded = max(padded, pack.stats["padded_length"] or 0)
        if samples:
            self._like = samples[0]
        if rest := padded - total:
            lengths.append(0)
            segments.append(pad_tokens(rest, pad, None if samples else self._like))
        return segments, lengths

    def _needs_dummy(self, samples: list[Encoded]) -> bool:
        return bool(self._dummy_image) and not any(sample.media for sample in samples)

    @cached_property
    def _encoded_dummy(self) -> Encoded:
        record = self._dummy_image if isinstance(self._dummy_image, Mapping) else None
        dummy = _encode_dummy(self.encode, record)
        options = self._options
        needed = up_to(up_to(dummy.length, options.align), options.pad_pack_to)
        if options.reserve < needed:
            raise OptionError(
                f"the dummy image takes {needed} tokens and the plan reserves {options.reserve} of"
                f" each pack's {self.index.capacity}: plan with --reserve {needed}"
            )
        return dummy

    def __getstate__(self) -> dict[str, Any]:
        small = {key: value for key, value in self.__dict__.items() if key != "_encoded_dummy"}
        return {**small, "_like": None}


def _positions(segments: list[Encoded]) -> Tensor:
    text = torch.cat([torch.arange(segment.length) for segment in segments])
    if all(segment.mrope_positions is None for segment in segments):
        return text
    three = torch.cat([segment.three_positions for segment in segments], dim=1)
    return torch.cat([text[None], three])


_SIDE = 32  # pixels; processors enlarge it to the least they take


def _encode_dummy(encode: Encode, record: Mapping[str, Any] | None) -> Encoded:
    """`record`, or a user's turn with a small grey image, as a sample without labels.

    Raises:
        OptionError: `encode` makes no media of it.
    """
    if record is None:
        from PIL import Image

        image = Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))
        record = {"messages": [{"role": "user", "content": [{"type": "image", "image": image}]}]}
    sample = normalise(encode(dict(record)), rules_of(encode))
    if not sample.media:
        raise OptionError(
            "encode returned no media for the dummy image: give dummy_image= a record of its own"
            " kind with one small image in it"
        )
    sample.labels.fill_(IGNORE)
    return sample


def _check_fingerprint(index: Index, encode: Encode) -> None:
    counted = index.snapshot.lengths.encoder
    planned = None if counted is None else counted.fingerprint
    fingerprint = getattr(encode, "fingerprint", None)
    if fingerprint is not None and not callable(fingerprint):
        raise MismatchError(
            f"encode.fingerprint is {fingerprint!r}, not a method that returns it: make it one"
        )
    if counted is None or planned is None or fingerprint is None:
        return
    mine = fingerprint()
    if mine != planned:
        policy = "" if counted.labels is None else f" (labels {counted.labels!r})"
        parts = getattr(encode, "fingerprint_parts", None)
        differences = [] if parts is None else counted.differences(parts())
        differing = f" ({', '.join(differences)})" if differences else ""
        raise MismatchError(
            f"encoder fingerprint {mine} is not {planned}, with which the lengths of {index.path}"
            f" were counted{differing}: use the same processor and label policy{policy}, or"
            " estimate and plan again"
        )
