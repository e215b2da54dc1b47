"""What `packidx trace` tells, as `packidx trace --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from packidx.errors import FormatError, NotFoundInIndex
from packidx.index.opening import open_index
from packidx.index.reader import Index


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot that a plan goes on from, and how far training on it was."""

    snapshot_id: str
    seed: int
    epoch: int
    global_batch: int
    position: int
    """Packs that were trained on, over all ranks."""
    steps: int
    """Whole optimizer steps of it that were done."""
    missing: str | None
    """Why it cannot be read; None where it can."""


@dataclass(frozen=True, slots=True)
class TracedSample:
    """A sample, or a piece of one, in a pack."""

    position: int
    """Place in the pack."""
    sample_id: int
    source: str | None
    key: str | None
    pair: str | None
    copy: int
    piece: int
    token_start: int
    """First token of the piece in its sample."""
    length: int
    """Tokens of the piece."""
    shard: str | None
    """Path or URL of the file that holds the record."""
    row: int | None
    """Record number in the shard."""


@dataclass(frozen=True, slots=True)
class TracedPack:
    """A pack of a step. `micro_step` and `rank` are null without a world size."""

    pack_id: int
    order_position: int
    place_in_step: int
    micro_step: int | None
    rank: int | None
    length: int
    samples: tuple[TracedSample, ...]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What one optimizer step trains on, on one rank or on all."""

    snapshot_id: str
    path: str
    step: int
    num_steps: int
    """Of the epoch."""
    epoch: int
    seed: int
    global_batch: int
    global_batch_from: str
    """``given``, ``state`` or ``plan``."""
    world_size: int | None
    rank: int | None
    consumed: bool | None
    """Whether the state says that all of the step is done; null without a state."""
    ancestors: tuple[Ancestor, ...]
    """Oldest first."""
    steps_before: int
    """Whole steps that training on the ancestors took."""
    packs: tuple[TracedPack, ...]
    """In order of micro-steps, and of ranks within one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A sample, or a piece or copy of it, in a pack, and when that is trained on.

    `step` and what follows are null where the epoch leaves the pack out, or nobody says how large a
    step is; `micro_step` and `rank` without a world size.
    """

    epoch: int
    pack_id: int
    position: int
    copy: int
    piece: int
    token_start: int
    length: int
    order_position: int
    left_out: bool
    """One of the packs after the last whole step of the epoch, which it leaves out."""
    step: int | None
    place_in_step: int | None
    micro_step: int | None
    rank: int | None
    consumed: bool | None
    """Whether training has had it; null without a state."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a sample is in no pack."""

    reason: str
    detail: str | None
    length: int | None


@dataclass(frozen=True, slots=True)
class Before:
    """What training on an ancestor has had of a sample."""

    snapshot_id: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class SampleTrace:
    """One sample: where it is packed, or why not, and what was trained on before."""

    sample_id: int
    source: str | None
    key: str | None
    pair: str | None
    shard: str | None
    row: int | None
    dropped: Dropped | None
    places: tuple[Place, ...]
    """By epoch, then in the order of training."""
    before: tuple[Before, ...]
    """Of each ancestor that has trained on some of it, oldest first."""


@dataclass(frozen=True, slots=True)
class SampleTraces:
    """The samples of a key, or the one of a sample id; none where the index has none."""

    snapshot_id: str
    path: str
    key: str | None
    sample_id: int | None
    source: str | None
    epochs: tuple[int, ...]
    seed: int
    global_batch: int | None
    global_batch_from: str | None
    world_size: int | None
    ancestors: tuple[Ancestor, ...]
    samples: tuple[SampleTrace, ...]
    near: tuple[str, ...]
    """Keys like the one that is not there."""


def ancestors(index: Index) -> tuple[Ancestor, ...]:
    """What `index` goes on from by its options, oldest first."""
    told = []
    for entry in index.snapshot.options.continues:
        opened = opened_ancestor(index, entry.snapshot_id)
        told.append(
            Ancestor(
                snapshot_id=entry.snapshot_id,
                seed=entry.seed,
                epoch=entry.epoch,
                global_batch=entry.global_batch,
                position=entry.position,
                steps=entry.position // entry.global_batch,
                missing=opened if isinstance(opened, str) else None,
            )
        )
    return tuple(told)


def opened_ancestor(index: Index, ident: str) -> Index | str:
    """The snapshot `ident` beside `index`, or why it cannot be read.

    Raises:
        OSError: the store cannot be asked.
    """
    try:
        return open_index(f"{index.path}@{ident}", index.roots)
    except (NotFoundInIndex, FormatError) as error:
        return str(error)
