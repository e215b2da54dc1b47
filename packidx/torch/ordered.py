"""The packs of a run in the order of training, for loaders that read one item after another."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from torch.utils.data import Dataset

from packidx.index import Index, open_index
from packidx.index.order import Dealing, Epochs, check_global_batch, integer, whole_number
from packidx.torch.dataset import PackedDataset
from packidx.torch.packs import Pack
from packidx.torch.reader import Encode

if TYPE_CHECKING:
    import datasets


class OrderedPacks(Dataset[Pack]):
    """Item i is the i-th pack of training, over all epochs of a run.

    With it a trainer needs a sampler that goes on one by one, such as torch's
    ``DistributedSampler(shuffle=False)`` or Megatron's, and a counter of consumed items to resume:
    the packs and their order are those of a `PackSampler` of the same seed and global batch. The
    one incomplete step at the end of an epoch is left out.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        encode: of `PackedDataset`.
        global_batch: packs of an optimizer step, over all ranks and accumulation.
        epochs: of the run.
        seed: of the order.
        reading: further arguments of `PackedDataset`.

    Raises:
        OptionError: a global batch of which an epoch has no step, or another number that is none.
        MismatchError: as of `PackedDataset`.
    """

    def __init__(
        self,
        index: str | Path | Index,
        encode: Encode | str | PathLike[str],
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        roots: Mapping[str, str] | None = None,
        **reading: Any,
    ) -> None:
        self.index = open_index(index, roots)
        self.dataset = PackedDataset(self.index, encode, **reading)
        self.global_batch = integer("global_batch", global_batch)
        self.seed, self.epochs = whole_number("seed", seed), whole_number("epochs", epochs, 1)
        self._epochs = Epochs.of(self.index.snapshot)
        name = f"{self.index.path}@{self.index.id[:12]}"
        check_global_batch(self.global_batch, 1, self._epochs, name)
        steps = self._epochs.num_packs // self.global_batch
        self._per_epoch = steps * self.global_batch

    def __len__(self) -> int:
        return self._per_epoch * self.epochs

    def pack_number(self, i: SupportsIndex) -> tuple[int, int]:
        """The epoch of item `i`, and its pack in the index.

        Raises:
            IndexError: there is no such item.
        """
        item = operator.index(i)
        if not 0 <= item < len(self):
            raise IndexError(f"item {item} is outside [0, {len(self)}), the packs of this run")
        epoch, position = divmod(item, self._per_epoch)
        dealing = _dealing(self._epochs, self.index.id, self.seed, epoch, self.global_batch)
        return epoch, int(dealing.order.packs(np.array([position]))[0])

    def __getitem__(self, i: SupportsIndex) -> Pack:
        """The pack of item `i`; it raises what `PackedDataset` raises."""
        return self.dataset[self.pack_number(i)[1]]


@lru_cache(maxsize=4)
def _dealing(epochs: Epochs, ident: str, seed: int, epoch: int, global_batch: int) -> Dealing:
    return Dealing(epochs.order(ident, seed, epoch), global_batch)


def as_hf_dataset(ordered: OrderedPacks) -> datasets.Dataset:
    """Return a `datasets.Dataset` whose row i is ``{"pack": ordered[i]}``, read when asked for.

    For trainers that take nothing else; `collate` takes its rows as they are. Let the trainer read
    it in order, neither shuffled nor prepared, for one epoch of its own, with
    ``remove_unused_columns=False``. The package ``datasets`` must be there.
    """
    from datasets import Dataset

    items = Dataset.from_dict({"item": range(len(ordered))})
    return items.with_transform(partial(_read_rows, ordered))


def _read_rows(ordered: OrderedPacks, rows: Mapping[str, list[int]]) -> dict[str, list[Pack]]:
    return {"pack": [ordered[item] for item in rows["item"]]}
