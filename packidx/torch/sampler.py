"""Order the packs that a rank trains on, and keep the state that resumes it.

`PackSampler` has the order of one rank's epoch, `OrderedPacks` that of a run, for loaders that read
one item after another. `check_ranks` compares what all ranks of a run are about to train on.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import torch.distributed as dist
from torch.utils.data import Dataset, Sampler

from packidx.errors import MismatchError, OptionError
from packidx.index import Index, open_index
from packidx.index.described import short_name
from packidx.index.order import (
    Dealing,
    State,
    check_global_batch,
    check_rank,
    epoch_order,
    packs_per_step,
    put_heaviest_first,
    to_integer,
    whole_number,
)
from packidx.torch.dataset import Encode, PackedDataset
from packidx.torch.loss import LossWeights
from packidx.torch.packs import Pack
from packidx.user_code import fingerprint_of

if TYPE_CHECKING:
    import datasets

_CHUNK = 4096  # order positions computed at a time: a fraction of a millisecond, 32 KiB


class PackSampler(Sampler[int]):
    """Yields one rank's pack numbers, in an order that does not depend on ranks.

    Step S of an epoch trains on order positions [S·G, (S+1)·G), G being the global batch. With W
    ranks, rank r's m-th pack of that step is position S·G + m·W + r. The packs after the last
    whole step are left out of the epoch: `left_out` names them, others in every epoch.

    The plan's micro-steps of equal cost are kept, in another order in every epoch: a step is one
    of the plan's steps where `global_batch` is the plan's (`result.schedule_block`).

    Every iteration starts at the position that was loaded last, 0 if none, until one has run to
    its end or the epoch has changed; looking at a first batch therefore loses nothing.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        rank: data-parallel rank, 0 ≤ rank < world_size.
        world_size: data-parallel ranks.
        global_batch: packs per optimizer step, over all ranks and accumulation; None means that
            of the plan. A random order has none unless it was planned with ``--global-batch``.
        seed: of the order.
        epoch: of the order; see `set_epoch`.
        heaviest_first: so many packs, the heaviest, are the first of epoch 0, so that a run which
            does not fit in memory ends at once; each pack still occurs once. Their micro-steps cost
            more than the plan's.

    Raises:
        OptionError: values that make no sense together.
    """

    def __init__(
        self,
        index: str | Path | Index,
        *,
        rank: int = 0,
        world_size: int = 1,
        global_batch: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        heaviest_first: int = 0,
    ) -> None:
        super().__init__()
        self.index = open_index(index)
        self.rank, self.world_size = to_integer("rank", rank), to_integer("world_size", world_size)
        check_rank(self.rank, self.world_size)
        name = f"{self.index.path}@{self.index.id[:12]}"
        if global_batch is None and (global_batch := packs_per_step(self.index.snapshot)) is None:
            raise OptionError(
                f"{name} is in random order and has no steps of its own: pass global_batch=N, the"
                " packs of an optimizer step over all ranks and accumulation"
            )
        self.global_batch = to_integer("global_batch", global_batch)
        self.seed, self.epoch = whole_number("seed", seed), whole_number("epoch", epoch)
        check_global_batch(self.global_batch, self.world_size, self.index.num_packs, name)
        self.heaviest_first = whole_number("heaviest_first", heaviest_first)
        result = self.index.snapshot.result
        is_aligned = getattr(getattr(self.index.snapshot, "options", None), "align_media", False)
        if is_aligned and (
            self.heaviest_first
            or self.global_batch != result.schedule_block
            or result.schedule_chunk % self.world_size
        ):
            raise OptionError(
                f"{name} has micro-steps of one kind (--align-media) for steps of"
                f" {result.schedule_block} packs, {result.schedule_chunk} at a time: take that"
                " global_batch, a world_size that divides these, and no heaviest_first"
            )
        self._start = 0  # where the next iteration begins
        self._position = 0  # global cursor in packs
        self._dealing = self._make_dealing()

    def _make_dealing(self) -> Dealing:
        order = epoch_order(self.index.snapshot, self.seed, self.epoch)
        number = self.heaviest_first if self.epoch == 0 else 0
        return Dealing(put_heaviest_first(self.index, order, number), self.global_batch)

    def __repr__(self) -> str:
        names = ("rank", "world_size", "global_batch", "seed", "epoch")
        dealt = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"PackSampler({short_name(self.index.path, self.index.snapshot)}, {dealt})"

    @property
    def num_steps(self) -> int:
        """Optimizer steps in this epoch."""
        return self._dealing.num_steps

    @property
    def step(self) -> int:
        """Optimizer steps of this epoch whose packs have been yielded, over all ranks."""
        return self._position // self.global_batch

    @property
    def left_out(self) -> list[int]:
        """Pack ids of the one incomplete step that this epoch leaves out, in order."""
        return [int(pack) for pack in self._dealing.left_out()]

    def __len__(self) -> int:
        """Packs this rank trains on in the whole of this epoch; equal for all ranks."""
        return self._dealing.end // self.world_size

    def __iter__(self) -> Iterator[int]:
        # The order is taken now: set_epoch while a DataLoader iterates concerns the next iteration.
        self._position = start = self._start
        stride, dealing = self.world_size, self._dealing
        while start < dealing.end:
            stop = min(dealing.end, start + _CHUNK * stride)
            packs = dealing.order.packs(np.arange(start + self.rank, stop, stride))
            for number, pack in enumerate(packs.tolist(), start=1):
                if dealing is self._dealing:
                    self._position = start + number * stride
                yield pack
            start = stop
        if dealing is self._dealing:
            self._start = 0

    def set_epoch(self, epoch: int) -> None:
        """Take `epoch`'s order; the cursor goes back to 0 only if that is another epoch."""
        epoch = whole_number("epoch", epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self._dealing = self._make_dealing()
            self._start = self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The state after what has been yielded so far, equal on all ranks at equal counts.

        A DataLoader with workers draws ahead of training: use `state_at` there.
        """
        return self._make_state(self._position)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state once `step` optimizer steps of this epoch are done, 0 ≤ step ≤ num_steps."""
        step = to_integer("step", step)
        if not 0 <= step <= self.num_steps:
            raise OptionError(f"step {step} is outside [0, {self.num_steps}], an epoch's steps")
        return self._make_state(step * self.global_batch)

    def _make_state(self, position: int) -> dict[str, Any]:
        state = State(
            snapshot_id=self.index.id,
            seed=self.seed,
            epoch=self.epoch,
            global_batch=self.global_batch,
            position=position,
            heaviest_first=self.heaviest_first,
        )
        return state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which a sampler of any world size may have written.

        In the middle of a step the rest of it is dealt to the ranks if their number divides it;
        otherwise the step starts again from its first pack: its gradients were never applied.

        Raises:
            MismatchError: the state is of another snapshot, seed or global batch.
            FormatError: it is not a state of this class or version.
        """
        read = State.read(state)
        for name, advice in _MUST_AGREE.items():
            mine, other = self._make_state(0).get(name, 0), getattr(read, name)
            if mine != other:
                raise MismatchError(f"the state has {name} {other}, this sampler {mine}: {advice}")
        read.check_position(self.index.num_packs)
        position = read.position
        self.set_epoch(read.epoch)
        if position % self.global_batch % self.world_size:
            position -= position % self.global_batch
        self._start = self._position = position

    def pack_at(self, position: int) -> int:
        """Pack id at a position of this epoch's order, over all ranks."""
        return int(self._dealing.packs(position, position + 1)[0])

    def packs_of_step(self, step: int) -> list[int]:
        """Pack ids of the global batch of optimizer step `step`, rank 0's first pack first."""
        return [int(pack) for pack in self._dealing.packs_of_step(to_integer("step", step))]

    def denominator(self, step: int, weight: str = "token") -> float | None:
        """Return what the loss of `step` is divided by, for a `LossWeights` of that name.

        Σ n · w(n) over the samples (or pieces) of the global batch, n being a sample's label
        tokens. It reads those packs' rows of the index, nothing else. None if a count is unknown:
        lengths are guessed, or do not say where the label tokens are of a sample that the plan
        cuts. `seen_denominator` is right also where samples are skipped.
        """
        # In order of their numbers: each row group is then decoded once.
        packs = map(self.index.pack, sorted(self.packs_of_step(step)))
        counts = [sample.label_tokens for pack in packs for sample in pack.samples]
        known = [count for count in counts if count is not None]
        return LossWeights(weight).total(known) if len(known) == len(counts) else None


_MUST_AGREE = {
    "snapshot_id": "open the index at the state's snapshot (dir@ID), or start a new run",
    "seed": "construct the sampler with the state's seed",
    "global_batch": "what a step trains on depends on it: keep it and change the accumulation",
    "heaviest_first": "construct the sampler with the state's heaviest_first",
}


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
        self._sampler = PackSampler(self.index, global_batch=global_batch, seed=seed)
        self.global_batch, self.seed = self._sampler.global_batch, self._sampler.seed
        self.epochs, self._per_epoch = whole_number("epochs", epochs, 1), len(self._sampler)

    def __len__(self) -> int:
        return self._per_epoch * self.epochs

    def pack_number(self, i: SupportsIndex) -> tuple[int, int]:
        """The epoch of item `i`, and its pack in the index.

        Raises:
            IndexError: there is no such item.
        """
        item = operator.index(i)
        item += len(self) * (item < 0)
        if not 0 <= item < len(self):
            raise IndexError(f"item {item} is outside [0, {len(self)}), the packs of this run")
        epoch, position = divmod(item, self._per_epoch)
        self._sampler.set_epoch(epoch)
        return epoch, self._sampler.pack_at(position)

    def __getitem__(self, i: SupportsIndex) -> Pack:
        """The pack of item `i`; it raises what `PackedDataset` raises."""
        return self.dataset[self.pack_number(i)[1]]


def as_hf_dataset(ordered: OrderedPacks) -> datasets.Dataset:
    """Return a `datasets.Dataset` whose row i is ``{"pack": ordered[i]}``, read when asked for.

    For trainers that take nothing else; `collate` takes its rows. Let the trainer read it in order,
    not shuffled and not prepared, for one of its epochs, with ``remove_unused_columns=False``.

    Raises:
        OptionError: `ordered` are no `OrderedPacks`.
    """
    if not isinstance(ordered, OrderedPacks):
        raise OptionError("as_hf_dataset takes OrderedPacks: other packs have no order of training")
    from datasets import Dataset

    items = Dataset.from_dict({"item": range(len(ordered))})
    return items.with_transform(partial(_read_rows, ordered))


def _read_rows(ordered: OrderedPacks, rows: Mapping[str, list[int]]) -> dict[str, list[Pack]]:
    return {"pack": [ordered[item] for item in rows["item"]]}


NAMES = {"snapshot_id": "snapshot", "recipe": "stream", "encoder": "encoder's fingerprint"}


def check_ranks(dataset: PackedDataset, sampler: PackSampler) -> None:
    """Compare what the processes of a run are about to train on.

    All processes must call it, after the sampler has loaded its state. They need the same snapshot,
    seed, epoch, position, global batch, world size and encoder, and every data-parallel rank must
    occur equally often: processes that share a rank (tensor or pipeline parallel) share its packs.
    Without a process group only `dataset` and `sampler` are compared with each other.

    Raises:
        MismatchError: something differs; with the same words on every rank.
    """
    fault = ""
    if sampler.index.id != dataset.index.id:
        fault = f"the sampler has snapshot {sampler.index.id}, the dataset {dataset.index.id}"
    facts = {
        **sampler.state_dict(),
        "snapshot_id": dataset.index.id,
        "world_size": sampler.world_size,
        "rank": sampler.rank,
        "heaviest_first": sampler.heaviest_first,
        "encoder": fingerprint_of(dataset.encode),
    }
    check_agreement(facts, fault)


def check_agreement(facts: Mapping[str, Any], fault: str = "") -> None:
    """Compare facts of all processes of a run, by one all_gather.

    Args:
        facts: `rank` and `world_size`, which say who this process is; all others must be equal.
        fault: why this process cannot go on; the others then stop as well.

    Raises:
        MismatchError: something differs, or a process has a fault; with the same words everywhere.
    """
    gathered: list[Any] = [(facts, fault)]
    together = dist.is_available() and dist.is_initialized()
    if together:
        mine, gathered = gathered[0], [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
    for number, (_, theirs) in enumerate(gathered):
        if theirs:
            raise MismatchError(f"{theirs} (process {number})" if together else theirs)
    faults = []
    for key, first in gathered[0][0].items():
        others = [(n, each[key]) for n, (each, _) in enumerate(gathered) if each[key] != first]
        if others and key != "rank":
            number, other = others[0]
            name = f"the {NAMES.get(key, key)}"
            faults.append(f"{name} {first} on process 0, {other} on process {number}")
    times, ranks = Counter(each["rank"] for each, _ in gathered), gathered[0][0]["world_size"]
    if together and len({times[rank] for rank in range(ranks)}) > 1:
        found = ", ".join(f"rank {rank} ({n} processes)" for rank, n in sorted(times.items()))
        faults.append(f"of {ranks} ranks there are {found}")
    if faults:
        raise MismatchError(
            f"the ranks do not agree: {'; '.join(faults)}: give all of them the same data, options,"
            " state and encoder, and each its own rank"
        )
