"""Planning on in the middle of an epoch: what training has had is taken off, exactly.

A continued snapshot names the snapshots and states that it goes on from, oldest first. What they
have consumed is read again from each of them, so that any number of changes add up: consumed +
remaining + excluded is everything, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from packidx.arrays import Bools, Int64s
from packidx.errors import MismatchError, OptionError
from packidx.format.index import Consumed
from packidx.index.opening import open_index
from packidx.index.order import consumed_packs
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.plan.select.eligible import ConsumedRows, Finished, Rules, Trained
from packidx.plan.select.pieces import Stretches, changes, joined_columns, pairs_in, select

_STATE = ("seed", "epoch", "global_batch", "position")
_BY_CHOICE = ("excluded", "max_packs")
_COLUMNS = ("sample_id", "copy", "piece", "token_start", "length")


def lineage(index: Index, state: Mapping[str, Any]) -> tuple[Consumed, ...]:
    """Return what a plan that goes on from `state` of `index` states in its options, oldest
    first."""
    own = {name: state[name] for name in _STATE}
    return (*index.snapshot.options.continues, Consumed(snapshot_id=index.id, **own))


def continued_rules(table: Lengths, index: Index, state: Mapping[str, Any], rules: Rules) -> Rules:
    """`rules`, and nothing that training had consumed at `state` of `index` or before.

    Raises:
        MismatchError: the state is of another snapshot, or `index` was planned of other lengths.
        FormatError: it is no state of a sampler.
        NotFoundInIndex: a snapshot of the lineage is gone.
        OptionError: the state is of an epoch that has not begun.
    """
    consumed_packs(index.snapshot, state)  # refuses a state of another snapshot
    _check_begun(index, state)
    planned, given = index.snapshot.lengths.fingerprint, table.fingerprint()
    if planned != given:
        raise MismatchError(
            f"{index.path}@{index.id[:12]} was planned of lengths with fingerprint {planned}, "
            f"{table.uri} has {given}: continue with the lengths that were planned"
        )
    runs: list[Finished] = []
    trained: list[Trained] = []
    begun = Stretches.none()
    for entry in lineage(index, state):
        ident = entry.snapshot_id
        ancestor = index if ident == index.id else open_index(f"{index.path}@{ident}")
        finished, left, had = _consumed(ancestor, {"version": 1, **entry.to_json()})
        begun = _gone_on(begun, finished, left)
        runs.append(finished)
        trained.append(had)
    every, tokens = joined_columns(runs), joined_columns(trained)
    if len(runs) > 1:
        every = select(every, np.lexsort((every.copy, every.sample_id)))
        tokens = select(tokens, np.argsort(tokens.sample, kind="stable"))
    consumed = ConsumedRows(every, begun, tokens)
    return replace(rules, consumed=consumed, before=_left_out(index))


def _check_begun(index: Index, state: Mapping[str, Any]) -> None:
    """Refuse position 0, of whatever epoch: nothing of it is consumed that could be taken off.

    An epoch that has not begun is planned like any other. Most such states are mistakes: those of a
    sampler that somebody else's loop has not told how far it is.
    """
    if state["position"]:
        return
    before = index.snapshot.options.continues
    instead = "plan without --continue"
    if before:
        instead = f"--continue with the state of {index.path}@{before[-1].snapshot_id[:12]}"
    raise OptionError(
        f"the state says that 0 packs of epoch {state['epoch']} of {index.path}@{index.id[:12]} are"
        f" trained, after which there is nothing to continue: give what sampler.state_at(step)"
        f" said after the last finished step, or, if that epoch has not begun, {instead}"
    )


def _left_out(index: Index) -> dict[str, Int64s]:
    """Samples that were left out by choice; what was left out as it did not fit is looked at anew.

    A plan that continues another one has these among its own dropped ones, and so on.
    """
    left_out: dict[str, list[Int64s]] = {}
    for number in range(len(index.snapshot.windows)):
        dropped = index.window("dropped", number, ["sample_id", "reason"])
        reasons = pl.Series(pl.from_arrow(dropped["reason"]))
        ids = dropped["sample_id"].to_numpy()
        for reason in _BY_CHOICE:
            mine = ids[(reasons == reason).to_numpy()]
            if len(mine):
                left_out.setdefault(reason, []).append(mine)
    return {reason: np.sort(np.concatenate(ids)) for reason, ids in left_out.items()}


def _consumed(index: Index, state: Mapping[str, Any]) -> tuple[Finished, Stretches, Trained]:
    """The samples and copies that one snapshot's training had whole, in order, what it left of
    others, and the tokens that it had of all; read window by window."""
    done = np.zeros(index.num_packs, bool)
    done[consumed_packs(index.snapshot, state)] = True
    variant = state["epoch"] % index.snapshot.options.epochs
    none = np.empty(0, np.int64), np.empty(0, np.int32)
    runs, lefts, tokens = [Finished(*none)], [Stretches.none()], [Trained(*none, none[1])]
    for number, _, first, _, window in index.snapshot.placed:
        of_window = done[first : first + sum(window.num_packs)]
        if not of_window.any():
            continue
        packs = index.window("packs", number, ["epoch", "num_samples"])
        sizes = packs["num_samples"].to_numpy()
        mine = np.repeat(packs["epoch"].to_numpy() == variant, sizes)
        samples = index.window("samples", number, _COLUMNS)
        pieces = {name: samples[name].to_numpy()[mine] for name in _COLUMNS}
        finished, left, trained = _of_window(pieces, np.repeat(of_window, sizes)[mine])
        runs.append(finished)
        lefts.append(left)
        tokens.append(trained)
    return joined_columns(runs), joined_columns(lefts), joined_columns(tokens)


def _of_window(
    pieces: dict[str, NDArray[Any]], consumed: Bools
) -> tuple[Finished, Stretches, Trained]:
    """Of a window's pieces, columns ``[n]`` of the samples table, what was consumed (bool [n]):
    copies that were whole, what is left of others, and the tokens that were consumed."""
    order = np.lexsort((pieces["piece"], pieces["copy"], pieces["sample_id"]))
    sample, copy = pieces["sample_id"][order], pieces["copy"][order]
    consumed = consumed[order]
    first = np.flatnonzero(changes(sample, copy))
    number = np.diff(np.append(first, len(sample)))
    taken = np.add.reduceat(consumed.astype(np.int64), first)
    had = order[consumed]
    start, length = pieces["token_start"][had], pieces["length"][had]
    trained = Trained(pieces["sample_id"][had], start, start + length)
    is_finished = taken == number
    at = first[is_finished]
    finished = Finished(sample[at], copy[at])
    of_begun = np.repeat((taken > 0) & (taken < number), number)
    rows = order[of_begun & ~consumed]
    if not len(rows):
        return finished, Stretches.none(), trained
    highest = np.maximum.reduceat(pieces["piece"][order], first)
    free = np.repeat(highest, number)[of_begun & ~consumed].astype(np.int64) + 1
    own, of_copy, start = (
        pieces[name][rows].astype(np.int64) for name in ("sample_id", "copy", "token_start")
    )
    stop = start + pieces["length"][rows]
    begins = changes(own, of_copy)
    begins[1:] |= start[1:] != stop[:-1]  # pieces that follow each other are one stretch again
    ends = np.append(np.flatnonzero(begins)[1:], len(rows)) - 1
    left = Stretches(own[begins], of_copy[begins], start[begins], stop[ends], free[begins])
    return finished, left, trained


def _gone_on(begun: Stretches, finished: Finished, left: Stretches) -> Stretches:
    """`begun` after more training: copies that it has had whole since are gone, what is left of
    others is `left`."""
    gone = pairs_in(begun.sample, begun.copy, finished.sample_id, finished.copy)
    gone |= pairs_in(begun.sample, begun.copy, left.sample, left.copy)
    both = joined_columns([select(begun, ~gone), left])
    return select(both, np.lexsort((both.start, both.copy, both.sample)))
