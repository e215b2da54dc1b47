"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from packidx.errors import MismatchError, PackidxError
from packidx.fetch import Fetcher
from packidx.index import Index, Sample, open_index
from packidx.torch.pieces import IGNORE, SEQUENCE_FILL, Encoded, cut, normalise, shift
from packidx.transform import Function, planned_transform

Encode = Callable[[dict[str, Any]], Mapping[str, Any]]


class PackedDataset(Dataset[dict[str, Any]]):
    """``dataset[k]`` reads, encodes and concatenates the samples of pack `k`.

    A pack is a dict of

    - ``input_ids``, ``labels`` int64 [T]: the first label of each sample is -100
    - ``position_ids`` int64 [T], restarting per sample; or [4, T] if `encode` returns mRoPE
      positions: row 0 restarts per sample, rows 1 to 3 are the sample's own
    - ``cu_seqlens`` int32 [n + 1], ``max_seqlen`` int: where the n samples start, the longest
    - every other per-token tensor that `encode` returns (``attention_mask``,
      ``token_type_ids``, ``mm_token_type_ids``), [T]
    - every other tensor that `encode` returns, concatenated on dimension 0 in order
    - ``pack_id`` int, ``sample_ids`` int64 [n], ``source_ids`` int64 [n], numbers in the manifest's
      list of sources
    - ``shifted`` True, only for plans made with ``--shift``: position t predicts ``labels[t]``

    It holds no file open and pickles small: fork and spawn workers alike may use it.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        encode: record, its images opened, -> one sample's tensors, ``input_ids`` [T] or [1, T] at
            least. Labels default to the ids. With a ``fingerprint()`` it is checked against the
            plan. An attribute ``media_token_ids`` (``{"image": id}``) tells where the media of a
            sample are that the plan cuts; ``mm_token_type_ids`` among its tensors do as well.
        roots: old prefix -> new prefix of shard and media paths.
        transform: ``f(record, rng) -> record`` or ``module:NAME`` of it, where the lengths were
            counted with one: applied to every record, its media opened, before `encode`. Its
            random numbers are the plan's: of its seed, the pack's epoch, sample and copy.

    Raises:
        MismatchError: `encode` is not the encoder that the lengths were counted with, or
            `transform` is not the transform.
    """

    def __init__(
        self,
        index: str | Path | Index,
        encode: Encode,
        roots: Mapping[str, str] | None = None,
        transform: str | Function | None = None,
    ) -> None:
        self.index = open_index(index, roots)
        self.encode = encode
        sources = self.index.manifest["sources"]
        self._sources = {source["name"]: number for number, source in enumerate(sources)}
        self._shift = bool(self.index.manifest["options"].get("shift"))
        self._fetcher = Fetcher(self.index)
        _check_fingerprint(self.index, encode)
        planned = self.index.manifest["lengths"].get("transform")
        self._transform = planned_transform(planned, transform, str(self.index.path))

    def __len__(self) -> int:
        return self.index.num_packs

    def __getitem__(self, k: SupportsIndex) -> dict[str, Any]:
        """Pack `k`, 0 <= k < len(self).

        Raises:
            IndexError: no such pack.
            MismatchError: shard or encoded length differ from the plan.
            BadRecord, SourceError: a record, its media or its shard cannot be read.
        """
        number = operator.index(k)
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} is outside [0, {len(self)}) of {self.index!r}")
        pack = self.index.pack(number)
        parts = [self._part(sample, pack.stats["epoch"] or 0) for sample in pack.samples]
        return self._join(number, pack.samples, parts)

    def _part(self, sample: Sample, epoch: int = 0) -> Encoded:
        """The piece of one sample that its pack holds."""
        where = f"pack {sample.pack_id}, sample {sample.sample_id} (key {sample.key!r})"
        try:
            record = self._fetcher.read(sample)
            if self._transform is not None:
                record = self._transform.apply(
                    record, sample.sample_id, epoch=epoch, copy=sample.copy or 0
                )
            encoded = normalise(self.encode(record))
            return self._fit(encoded, sample)
        except MismatchError as error:
            raise MismatchError(f"{where}: {error}") from error
        except Exception as error:
            error.add_note(f"while reading {where} of {self.index.path}@{self.index.id}")
            raise

    def _fit(self, encoded: Encoded, sample: Sample) -> Encoded:
        """`encoded` shifted and cut as planned, with exactly the planned length."""
        if self._shift and encoded.length:
            encoded = shift(encoded)
        found, start = encoded.length, sample.token_start or 0
        if (sample.padded_length or sample.length) != sample.length:
            raise PackidxError(
                "the plan pads samples, which this version cannot read: upgrade packidx"
            )
        if found == sample.length and not start:
            return encoded
        options = self.index.manifest["options"]
        budget = options.get("planned_capacity", self.index.capacity)
        may_cut = options.get("on_long") in ("split", "truncate") and found > budget
        if not may_cut or start + sample.length > found:
            after = " after the shift" if self._shift else ""
            piece = f" from token {start}" if start else ""
            raise MismatchError(
                f"encoded to {found} tokens{after} but planned as {sample.length}{piece};"
                " estimate with this encoder and plan again"
            )
        media_ids: Mapping[str, int] | None = getattr(self.encode, "media_token_ids", None)
        part = cut(encoded, start, start + sample.length, media_ids)
        if not self._shift:
            part.labels[:1] = IGNORE  # its predictor is in another piece
        return part

    def _join(self, number: int, samples: list[Sample], parts: list[Encoded]) -> dict[str, Any]:
        lengths = [part.length for part in parts]
        pack: dict[str, Any] = {
            "input_ids": torch.cat([part.input_ids for part in parts]),
            "labels": torch.cat([part.labels for part in parts]),
            "position_ids": _positions(parts),
            "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
            "max_seqlen": max(lengths),
        }
        for key, fill in SEQUENCE_FILL.items():
            if any(key in part.sequence for part in parts):
                pack[key] = torch.cat([part.per_token(key, fill) for part in parts])
        for key in dict.fromkeys(key for part in parts for key in part.media):
            pack[key] = _concatenate(key, [part.media[key] for part in parts if key in part.media])
        pack["pack_id"] = number
        pack["sample_ids"] = torch.tensor([sample.sample_id for sample in samples])
        pack["source_ids"] = torch.tensor([self._sources.get(one.source, -1) for one in samples])
        if self._shift:
            pack["shifted"] = True
        return pack


def _positions(parts: list[Encoded]) -> Tensor:
    text = torch.cat([torch.arange(part.length) for part in parts])
    if all(part.rows is None for part in parts):
        return text
    equal = (torch.arange(part.length).expand(3, -1) for part in parts)
    rows = [one if part.rows is None else part.rows for one, part in zip(equal, parts, strict=True)]
    return torch.cat([text[None], torch.cat(rows, dim=1)])


def _concatenate(key: str, tensors: list[Tensor]) -> Tensor:
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        raise MismatchError(
            f"encode returned {key} with different shapes {sorted(shapes)} after the first"
            " dimension: samples of one pack must agree in it"
        )
    return torch.cat(tensors)


def _check_fingerprint(index: Index, encode: Encode) -> None:
    planned = (index.manifest["lengths"].get("encoder") or {}).get("fingerprint")
    fingerprint = getattr(encode, "fingerprint", None)
    if fingerprint is not None and not callable(fingerprint):
        raise MismatchError(
            f"encode.fingerprint is {fingerprint!r}, not a method that returns it: make it one"
        )
    if planned is None or fingerprint is None:
        return
    mine = fingerprint()
    if mine != planned:
        labels = (index.manifest["lengths"]["encoder"] or {}).get("labels")
        policy = "" if labels is None else f" (labels {labels!r})"
        raise MismatchError(
            f"encoder fingerprint {mine} is not {planned}, with which the lengths of {index.path}"
            f" were counted: use the same processor and label policy{policy}, or estimate and plan"
            " again"
        )
