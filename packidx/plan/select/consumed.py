"""Samples that training has consumed, for `plan --continue`.

A sample is consumed if any copy or piece of it was in a pack that training has finished. Plans
continued before list what was consumed then among their dropped samples, so one snapshot and its
state say everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from packidx.errors import MismatchError, OptionError
from packidx.format.index import Consumed
from packidx.index.order import consumed_packs
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.plan.select.eligible import Rules

_STATE = ("seed", "epoch", "global_batch", "position")


def continued(
    table: Lengths, index: Index, state: Mapping[str, Any], rules: Rules
) -> tuple[Rules, Consumed]:
    """Return `rules` that also drop the samples consumed at `state` of `index`, and that state.

    Raises:
        MismatchError: the state is of another snapshot, or `index` was planned of other lengths.
        FormatError: it is not a state of a sampler.
        OptionError: the state is of an epoch that has not begun.
    """
    packs = consumed_packs(index.snapshot, state)  # refuses a state of another snapshot
    if not state["position"]:
        raise OptionError(
            f"the state says that 0 packs of epoch {state['epoch']} of {index.path}@{index.id[:12]}"
            " are trained, so there is nothing to continue: give what sampler.state_at(step)"
            " returned after the last finished step, or plan without --continue"
        )
    planned, given = index.snapshot.lengths.fingerprint, table.fingerprint()
    if planned != given:
        raise MismatchError(
            f"{index.path}@{index.id[:12]} was planned of lengths with fingerprint {planned[:12]}, "
            f"{table.uri} has {given[:12]}: continue with the lengths that were planned"
        )
    done = np.zeros(index.num_packs, bool)
    done[packs] = True
    found: dict[str, list[Any]] = {"consumed": [], "excluded": []}
    for number, _, first, _, window in index.snapshot.placed:
        dropped = index.window("dropped", number, ["sample_id", "reason"])
        reason = dropped["reason"].to_numpy()
        for name, parts in found.items():
            parts.append(dropped["sample_id"].to_numpy()[reason == name])
        of_window = done[first : first + window.num_packs]
        if of_window.any():
            sizes = index.window("packs", number, ["num_samples"])["num_samples"].to_numpy()
            ids = index.window("samples", number, ["sample_id"])["sample_id"].to_numpy()
            found["consumed"].append(ids[np.repeat(of_window, sizes)])
    own = {name: state[name] for name in _STATE}
    dropped_before = {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}
    return replace(rules, before=dropped_before), Consumed(snapshot_id=index.id, **own)
