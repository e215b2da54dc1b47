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
import pyarrow as pa
from numpy.typing import NDArray

from packidx.errors import MismatchError, OptionError
from packidx.index.opening import open_index
from packidx.index.order import consumed_packs
from packidx.index.reader import Index
from packidx.plan.eligible import Consumed, Rules
from packidx.plan.lengths import Lengths

Int64s = NDArray[np.int64]

_STATE = ("seed", "epoch", "global_batch", "position")
_BY_CHOICE = ("excluded", "max_packs")
_COLUMNS = ("sample_id", "copy", "piece", "token_start", "length")
_Left = dict[tuple[int, int], list[tuple[int, int, int]]]


def lineage(index: Index, state: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """What a plan that goes on from `state` of `index` states in its options, oldest first."""
    own = {"snapshot_id": index.id} | {name: state[name] for name in _STATE}
    return (*index.manifest["options"].get("continues", []), own)


def continued_rules(table: Lengths, index: Index, state: Mapping[str, Any], rules: Rules) -> Rules:
    """`rules`, and nothing that training had consumed at `state` of `index` or before.

    Raises:
        MismatchError: the state is of another snapshot, or `index` was planned of other lengths.
        FormatError: it is no state of a sampler.
        NotFoundInIndex: a snapshot of the lineage is gone.
        OptionError: the state is of an epoch that has not begun.
    """
    consumed_packs(index.manifest, state)  # refuses a state of another snapshot
    _check_begun(index, state)
    planned, found = index.manifest["lengths"]["fingerprint"], table.fingerprint()
    if planned != found:
        raise MismatchError(
            f"{index.path}@{index.id[:12]} was planned of lengths with fingerprint {planned}, "
            f"{table.uri} has {found}: continue with the lengths that were planned"
        )
    had: list[tuple[Int64s, Int64s]] = []
    left: _Left = {}
    for one in lineage(index, state):
        ancestor = (
            index
            if one["snapshot_id"] == index.id
            else open_index(f"{index.path}@{one['snapshot_id']}")
        )
        samples, copies = _consumed(ancestor, {"version": 1, **one}, left)
        had.append((samples, copies))
    samples = np.concatenate([one for one, _ in had])
    copies = np.concatenate([one for _, one in had])
    order = np.lexsort((copies, samples))
    consumed = Consumed(samples[order], copies[order], left)
    return replace(rules, consumed=consumed, before=_left_out(index))


def _check_begun(index: Index, state: Mapping[str, Any]) -> None:
    """Refuse position 0, of whatever epoch: nothing of it is consumed that could be taken off.

    An epoch that has not begun is planned like any other. Most such states are mistakes: those of a
    sampler that somebody else's loop has not told how far it is.
    """
    if state["position"]:
        return
    before = index.manifest["options"].get("continues") or ()
    instead = "plan without --continue"
    if before:
        instead = f"--continue {index.path}@{before[-1]['snapshot_id'][:12]} by its own state"
    raise OptionError(
        f"the state says that 0 packs of epoch {state['epoch']} of {index.path}@{index.id[:12]} are"
        f" trained, after which there is nothing to continue: give what sampler.state_at(step)"
        f" said after the last finished step, or, if that epoch has not begun, {instead}"
    )


def _left_out(index: Index) -> dict[str, Int64s]:
    """Samples that were left out by choice; what was left out as it did not fit is looked at anew.

    A plan that continues another one has these among its own dropped ones, and so on.
    """
    dropped = index.dropped(["sample_id", "reason"])
    reasons = np.array(dropped["reason"].to_pylist(), object)
    ids = dropped["sample_id"].to_numpy()
    return {reason: ids[reasons == reason] for reason in _BY_CHOICE if (reasons == reason).any()}


def _consumed(index: Index, state: Mapping[str, Any], left: _Left) -> tuple[Int64s, Int64s]:
    """Sample ids and copies that one snapshot's training had whole; `left` is kept up to date."""
    packs = index.packs(["epoch", "first_row", "num_samples"])
    sizes = packs["num_samples"].to_numpy()
    done = np.zeros(packs.num_rows, bool)
    done[consumed_packs(index.manifest, state)] = True
    variants = int(index.manifest["options"].get("epochs") or 1)
    mine = np.repeat(packs["epoch"].to_numpy() == state["epoch"] % variants, sizes)
    table = index.samples(list(_COLUMNS)).filter(pa.array(mine))
    columns = {name: table[name].to_numpy().astype(np.int64) for name in _COLUMNS}
    consumed = np.repeat(done, sizes)[mine]
    order = np.lexsort((columns["piece"], columns["copy"], columns["sample_id"]))
    columns = {name: values[order] for name, values in columns.items()}
    consumed = consumed[order]
    sample, copy = columns["sample_id"], columns["copy"]
    first = np.flatnonzero(np.r_[True, (sample[1:] != sample[:-1]) | (copy[1:] != copy[:-1])])
    if not len(sample):
        return sample, copy
    pieces = np.diff(np.append(first, len(sample)))
    taken = np.add.reduceat(consumed.astype(np.int64), first)
    whole = taken == pieces
    for at, number in zip(first[whole], pieces[whole], strict=True):
        if number > 1 or left:
            left.pop((int(sample[at]), int(copy[at])), None)
    for at in np.flatnonzero((taken > 0) & ~whole).tolist():
        rows = slice(first[at], first[at] + pieces[at])
        name = int(sample[first[at]]), int(copy[first[at]])
        left[name] = _stretches(
            {key: values[rows] for key, values in columns.items()}, consumed[rows]
        )
    return sample[first[whole]], copy[first[whole]]


def _stretches(
    pieces: dict[str, Int64s], consumed: NDArray[np.bool_]
) -> list[tuple[int, int, int]]:
    """Runs of tokens that are not consumed: (start, stop, first piece number that is free)."""
    free = int(pieces["piece"].max()) + 1
    found: list[tuple[int, int, int]] = []
    for start, length in zip(
        pieces["token_start"][~consumed].tolist(), pieces["length"][~consumed].tolist(), strict=True
    ):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], start + length, free
        else:
            found.append((start, start + length, free))
    return found
