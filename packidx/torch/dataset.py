"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from packidx.errors import MismatchError
from packidx.index import Index, Pack, open_index
from packidx.index.described import Described, short_name, untrained
from packidx.torch.sample.encoded import Encoded
from packidx.torch.sample.events import Events, Happened
from packidx.torch.sample.fitting import (
    Policy,
    check_reserve,
    encode_dummy,
    extend,
    pad_tokens,
    up_to,
)
from packidx.torch.sample.join_rules import fills, rules_of
from packidx.torch.sample.joining import join_media, pair_ids
from packidx.torch.sample.media_rows import Planned, grids_in
from packidx.torch.sample.reader import Encode, SampleReader
from packidx.torch.sample.room import Fitted, fit_in, room_of

if TYPE_CHECKING:
    from packidx.user_code import Function

_log = logging.getLogger("packidx.torch")


class PackedDataset(Described, Dataset[dict[str, Any]]):
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
      pair, and for both sides where one is a hole
    - ``num_images``, ``num_videos`` int: of the samples, without the dummy image; each only where
      it is known
    - ``has_dummy`` True, only where the dummy image is in it
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
            attribute ``pad_token_id`` (0 without) fills what is padded; a method ``hole(length,
            media)``, if there is one, makes holes. Whole numbers beside the tokens are joined by
            their name; for names of its own, an attribute ``join`` states how: ``{name: rule}``,
            a rule being ``'rows'`` (dimension 0), ``'last'`` (the last dimension), ``'tokens'``
            (one number for each token) or ``'index:NAME'`` (numbers of NAME's rows).
        roots: old prefix -> new prefix of shard and media paths.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it, where the lengths were
            counted with one: applied to every record as it stands in its file. Its
            random numbers are the plan's: of its seed, the pack's epoch, sample and copy.
        on_mismatch: about a sample that is not what was planned: ``'error'`` raises; ``'drop'``
            makes it a hole; ``'truncate'`` cuts a longer one, fills a shorter one with pad tokens,
            and makes a hole where a cut would fall into media or its media are not the planned;
            ``'fit'``, for plans on guessed lengths, takes every sample as long as it is, as far as
            the capacity goes (less the plan's ``--reserve``): what has no room is left out, as few
            tokens as can be, and is told by `events`, whose ``left_out`` counts it. A pack is then
            padded to a multiple of the plan's ``--pad-pack-to`` alone; one of which nothing is left
            is pad tokens. Of a plan with ``--on-long truncate`` a sample longer than a pack is cut.
        on_error: about a sample that cannot be read: ``'raise'``, or ``'hole'``. A hole has the
            shapes of a healthy sample: pad tokens (and media tokens) of the planned length, no
            labels, pixels of zero at the planned grid. With ``on_mismatch='fit'`` there is none,
            and the sample is left out.
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
        self._dummy: Encoded | None = None
        if dummy_image and not self._options.reserve:
            self._encoded_dummy()  # to say now how much the plan must reserve

    def __len__(self) -> int:
        return self.index.num_packs

    def _description(self) -> str:
        name = getattr(self.encode, "__qualname__", type(self.encode).__qualname__)
        return f"{short_name(self.index.path, self.index.snapshot)}, encode={name}"

    def __getitem__(self, k: SupportsIndex) -> dict[str, Any]:
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
        pack = self.index.pack(number)
        epoch = pack.stats["epoch"] or 0
        happened: Happened = []
        with self._reader.together(pack.samples, epoch):
            read = [self._reader.read(sample, epoch, happened) for sample in pack.samples]
        fitted = self._fitted(pack, read, happened)
        result = self._join(fitted) | media_counts(fitted.samples, fitted.pack, happened)
        if (ids := pair_ids(pack, happened)) is not None:
            result["pair_ids"] = ids
        if happened:
            for event in happened:
                self.events.add(event)
            result["events"] = happened
        return result

    def _fitted(self, pack: Pack, read: list[Encoded | None], happened: Happened) -> Fitted:
        """What the pack holds, in order: all that was read, or what there is room for."""
        if self._room is not None:
            align, pad = self._options.align, self._pad_token_id
            return fit_in(pack, read, self._room, align, pad, happened)
        samples = [sample for sample in read if sample is not None]  # all: else it had raised
        padded = [planned.padded_length or planned.length for planned in pack.samples]
        return Fitted(pack, samples, padded)

    def _join(self, fitted: Fitted) -> dict[str, Any]:
        segments, lengths = self._segments(fitted)
        pack = fitted.pack
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
        if self._needs_dummy(fitted.samples):
            joined["has_dummy"] = True
        if self._options.shift:
            joined["shifted"] = True
        if self._rules:
            joined["join"] = self._rules
        return joined

    def _segments(self, fitted: Fitted) -> tuple[list[Encoded], list[int]]:
        """All that the pack holds, padded as planned, and the tokens of each without padding."""
        pad, samples = self._pad_token_id, fitted.samples
        lengths = [sample.length for sample in samples]
        padded_lengths = zip(samples, fitted.padded, strict=True)
        segments = [extend(sample, padded, pad) for sample, padded in padded_lengths]
        if self._needs_dummy(samples):
            dummy = self._encoded_dummy()
            aligned = up_to(dummy.length, self._options.align)
            lengths.append(dummy.length)
            segments.append(extend(dummy, aligned, pad))
        elif fitted.filler is not None:
            lengths.append(0)
            segments.append(fitted.filler)
        total = sum(segment.length for segment in segments)
        padded = up_to(total, self._options.pad_pack_to)
        if self._room is None:
            padded = max(padded, fitted.pack.stats["padded_length"] or 0)
        if rest := padded - total:
            lengths.append(0)
            segments.append(pad_tokens(rest, pad))
        return segments, lengths

    def _needs_dummy(self, samples: list[Encoded]) -> bool:
        return bool(self._dummy_image) and not any(sample.media for sample in samples)

    def _encoded_dummy(self) -> Encoded:
        if self._dummy is None:
            record = self._dummy_image if isinstance(self._dummy_image, Mapping) else None
            dummy = encode_dummy(self.encode, record)
            check_reserve(dummy, self._options, self.index.capacity)
            self._dummy = dummy
        # A worker moves what it returns into shared memory: each pack has its own.
        media = {key: value.clone() for key, value in self._dummy.media.items()}
        return replace(self._dummy, media=media)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dummy": None}


def _positions(segments: list[Encoded]) -> Tensor:
    text = torch.cat([torch.arange(segment.length) for segment in segments])
    if all(segment.mrope_positions is None for segment in segments):
        return text
    three = torch.cat([segment.three_positions for segment in segments], dim=1)
    return torch.cat([text[None], three])


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


COUNTED = {"image": "num_images", "video": "num_videos"}
"""Kind of media → its number in a pack, which the packs table has under the same name."""


def media_counts(
    samples: Sequence[Encoded],
    pack: Pack,
    happened: Sequence[Mapping[str, Any]] = (),
) -> dict[str, int]:
    """``num_images`` and ``num_videos`` of a pack, each as far as it is known.

    Args:
        samples: as they were read, holes among them; without the dummy image.
        pack: as planned, without samples that were left out.
        happened: the events of reading it.
    """
    # The plan says nothing of a sample that is another and was taken all the same.
    others = {
        event["position"]
        for event in happened
        if event["kind"] == "mismatch" and event["done"] != "hole"
    }
    counts = {}
    for kind, name in COUNTED.items():
        each = [
            _count(kind, sample, None if planned.position in others else planned.media)
            for sample, planned in zip(samples, pack.samples, strict=True)
        ]
        known = [count for count in each if count is not None]
        total = sum(known) if len(known) == len(each) else None
        if total is None and not others and len(pack.samples) == pack.stats["num_samples"]:
            total = pack.stats[name]
        if total is not None:
            counts[name] = int(total)
    return counts


def _count(kind: str, sample: Encoded, planned: Planned | None) -> int | None:
    """Media of a kind in one sample or piece; None where neither plan nor tensors say it."""
    if not sample.media:
        return 0
    # A medium whose place is unknown is planned in every piece of its sample.
    if planned is not None and all(medium["at"] is not None for medium in planned):
        return sum(bool(medium["kind"] == kind) for medium in planned)
    grids = grids_in(sample.media, kind)
    if grids is None:
        # Models with grids have tensors for each kind; others may take frames for images.
        has_grids = any(grids_in(sample.media, other) is not None for other in COUNTED)
        return 0 if has_grids else None
    if kind == "video" and all(t == 1 for t, _, _ in grids):
        return None  # some models want a row for each frame
    return len(grids)
