"""Pack *k* of a snapshot, materialised on demand."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from packidx.errors import MismatchError, PackidxError, SourceError
from packidx.index import Index, Sample, open_index
from packidx.records.media import open_media
from packidx.records.sources import read_record
from packidx.torch.pieces import IGNORE, SEQUENCE_FILL, Encoded, cut, normalise, shift

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
    - ``pack_id`` int, ``sample_ids`` int64 [n], ``source_ids`` int64 [n] (into the manifest's sources)
    - ``shifted`` True, only for plans made with `--shift`: ``labels[t]`` is what position t predicts

    It holds no file open and pickles small: fork and spawn workers alike may use it.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        encode: record, its images opened, -> one sample's tensors, ``input_ids`` [T] or [1, T] at
            least. Labels default to the ids. With a ``fingerprint()`` it is checked against the
            plan. ``media_token_ids`` (a collection of ids) is used for samples that a plan cut.
        roots: old prefix -> new prefix of shard and media paths.

    Raises:
        MismatchError: `encode` is not the encoder that the lengths were counted with.
    """

    def __init__(
        self,
        index: str | Path | Index,
        encode: Encode,
        roots: Mapping[str, str] | None = None,
    ) -> None:
        self.index = open_index(index, roots)
        self.encode = encode
        manifest = self.index.manifest
        self._sources = {source["name"]: number for number, source in enumerate(manifest["sources"])}
        self._shift = bool(manifest["options"].get("shift"))
        self._checked: set[int] = set()
        _check_fingerprint(self.index, encode)

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
            raise IndexError(f"pack {number} is outside [0, {len(self)}) of snapshot {self.index.id}")
        samples = self.index.pack(number).samples
        return self._join(number, samples, [self._part(sample) for sample in samples])

    def _part(self, sample: Sample) -> Encoded:
        """The piece of one sample that its pack holds."""
        where = f"pack {sample.pack_id}, sample {sample.sample_id} (key {sample.key!r})"
        try:
            record = self._read(sample)
            encoded = normalise(self.encode(record))
            return self._fit(encoded, sample)
        except MismatchError as error:
            raise MismatchError(f"{where}: {error}") from error
        except Exception as error:
            error.add_note(f"while reading {where} of {self.index.path}@{self.index.id}")
            raise

    def _read(self, sample: Sample) -> dict[str, Any]:
        if sample.shard is None or sample.offset is None or sample.nbytes is None:
            raise PackidxError(
                f"snapshot {self.index.id} was planned from bare lengths and does not say where its"
                " samples are; plan from a table that `packidx estimate` wrote to read packs"
            )
        path = self._shard(sample.shard)
        source = self.index.manifest["sources"][self._sources[sample.source]]
        root = source.get("media_root")
        record = read_record(path, sample.offset, sample.nbytes)
        if root is None:
            return open_media(record, os.path.dirname(path) or ".", confined=False)
        return open_media(record, self.index.resolve(root), confined=True)

    def _shard(self, number: int) -> str:
        """Path of a shard; its size is compared with the plan's once per process."""
        shard = self.index.manifest["shards"][number]
        path = self.index.resolve(shard["uri"])
        if number not in self._checked:
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise SourceError(
                    f"shard {path}: {error.strerror}; say where it is now with roots={{old: new}}"
                ) from error
            if size != shard["bytes"]:
                raise MismatchError(
                    f"shard {path} has {size} bytes, {shard['bytes']} when it was planned;"
                    " restore it, or estimate and plan again"
                )
            self._checked.add(number)
        return path

    def _fit(self, encoded: Encoded, sample: Sample) -> Encoded:
        """`encoded` shifted and cut as planned, with exactly the planned length."""
        if self._shift and encoded.length:
            encoded = shift(encoded)
        found, start = encoded.length, sample.token_start or 0
        if (sample.padded_length or sample.length) != sample.length:
            raise PackidxError("the plan pads samples to a multiple, which this version cannot read")
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
        media_ids: Collection[int] | None = getattr(self.encode, "media_token_ids", None)
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
                blanks = (part.sequence.get(key, torch.full((part.length,), fill)) for part in parts)
                pack[key] = torch.cat(list(blanks))
        for key in dict.fromkeys(key for part in parts for key in part.media):
            pack[key] = _concatenate(key, [part.media[key] for part in parts if key in part.media])
        pack["pack_id"] = number
        pack["sample_ids"] = torch.tensor([sample.sample_id for sample in samples])
        pack["source_ids"] = torch.tensor([self._sources.get(one.source, -1) for one in samples])
        if self._shift:
            pack["shifted"] = True
        return pack

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checked": set()}


def _positions(parts: list[Encoded]) -> Tensor:
    text = torch.cat([torch.arange(part.length) for part in parts])
    if all(part.rows is None for part in parts):
        return text
    rows = [
        torch.arange(part.length).expand(3, -1) if part.rows is None else part.rows for part in parts
    ]
    return torch.cat([text[None], torch.cat(rows, dim=1)])


def _concatenate(key: str, tensors: list[Tensor]) -> Tensor:
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        raise MismatchError(
            f"encode returned {key} with different shapes {sorted(shapes)} after the first dimension;"
            " samples of one pack must agree in it"
        )
    return torch.cat(tensors)


def _check_fingerprint(index: Index, encode: Encode) -> None:
    planned = (index.manifest["lengths"].get("encoder") or {}).get("fingerprint")
    fingerprint = getattr(encode, "fingerprint", None)
    if planned is None or not callable(fingerprint):
        return
    mine = fingerprint()
    if mine != planned:
        raise MismatchError(
            f"encoder fingerprint {mine} is not {planned}, with which the lengths of {index.path} were"
            " counted; use the same processor and label policy, or estimate and plan again"
        )
