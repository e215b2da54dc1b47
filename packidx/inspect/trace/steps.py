"""The packs and samples of one optimizer step."""

from __future__ import annotations

from typing import Unpack

from packidx.errors import OptionError
from packidx.format.schema import Pack
from packidx.index.order import Epochs, check_global_batch, check_ranks
from packidx.index.reader import Index
from packidx.inspect.trace.results import StepTrace, TracedPack, TracedSample, ancestors
from packidx.inspect.trace.run import RunOptions, run_of


def trace_step(
    index: Index,
    step: int,
    *,
    rank: int | None = None,
    **options: Unpack[RunOptions],
) -> StepTrace:
    """What optimizer step `step` of an epoch trains on, 0 ≤ step < the epoch's steps.

    The packs of a rank are those that ``PackSampler(index, rank=rank, world_size=world_size,
    global_batch=global_batch, seed=seed, epoch=epoch)`` yields in that step, in that order. Only
    their rows of the index are read.

    Args:
        index: what is trained on.
        step: counted from 0 in its epoch.
        rank: whose packs; None means those of all ranks. It needs `world_size`.
        options: of the run, see `RunOptions`.

    Raises:
        OptionError: there is no such step, or values make no sense together.
        MismatchError: the state is of another snapshot or run.
        FormatError: a file is missing or damaged.
    """
    run = run_of(index, **options)
    world_size = run.world_size
    if rank is not None and world_size is None:
        raise OptionError(f"rank {rank} of how many? Give the world size, too")
    if rank is not None and world_size is not None:
        check_ranks(rank, world_size)
    if run.global_batch is None or run.global_batch_from is None:
        raise OptionError(
            f"{index.path}@{index.id[:12]} has no steps of its own (random order without a global"
            " batch): give the global batch that the sampler was given"
        )
    check_global_batch(
        run.global_batch, 1, Epochs.of(index.snapshot), f"{index.path}@{index.id[:12]}"
    )
    epoch = run.epoch or 0
    dealing = run.dealing(index, epoch)
    numbers = dealing.packs_of_step(step).tolist()
    positions = range(step * run.global_batch, (step + 1) * run.global_batch)
    turns = [dealing.turn(position, world_size or 1) for position in positions]
    mine = [at for at, turn in enumerate(turns) if rank is None or turn.rank == rank]
    # In order of their numbers, each row group is decoded once.
    packs = {number: index.pack(number) for number in sorted(numbers[at] for at in mine)}
    told = ancestors(index)
    is_dealt = world_size is not None
    return StepTrace(
        snapshot_id=index.id,
        path=index.path,
        step=step,
        num_steps=dealing.num_steps,
        epoch=epoch,
        seed=run.seed,
        global_batch=run.global_batch,
        global_batch_from=run.global_batch_from,
        world_size=world_size,
        rank=rank,
        consumed=None if run.position is None else positions.stop <= run.position,
        ancestors=told,
        steps_before=sum(ancestor.steps for ancestor in told),
        packs=tuple(
            TracedPack(
                pack_id=numbers[at],
                order_position=positions[at],
                place_in_step=turns[at].place,
                micro_step=turns[at].micro_step if is_dealt else None,
                rank=turns[at].rank if is_dealt else None,
                length=packs[numbers[at]].stats["length"],
                samples=_samples(index, packs[numbers[at]]),
            )
            for at in mine
        ),
    )


def _samples(index: Index, pack: Pack) -> tuple[TracedSample, ...]:
    return tuple(
        TracedSample(
            position=sample.position,
            sample_id=sample.sample_id,
            source=sample.source,
            key=sample.key,
            pair=sample.pair,
            copy=sample.copy,
            piece=sample.piece,
            token_start=sample.token_start,
            length=sample.length,
            shard=shard_of(index, sample.shard),
            row=sample.row,
        )
        for sample in pack.samples
    )


def shard_of(index: Index, shard: int | None) -> str | None:
    """Where shard number `shard` is, by the index's roots; None where there is none."""
    shards = index.snapshot.shards
    if shard is None or not 0 <= shard < len(shards):
        return None
    return index.resolve(shards[shard].uri)
