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

from packidx.errors import MismatchError, OptionError
from packidx.format.index import Consumed as ConsumedState
from packidx.index.opening import open_index
from packidx.index.order import consumed_packs
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.plan.select.copies import Consumed
from packidx.plan.select.eligible import Rules

_STATE = ("seed", "epoch", "global_batch", "position")
_COLUMNS = ("sample_id", "copy", "piece", "token_start", "length")
_COPY = ("sample_id", "copy")
_TRAINED = {"sample_id": pl.Int64, "copy": pl.Int32, "start": pl.Int32, "stop": pl.Int32}
_LEFT = {**_TRAINED, "first_piece": pl.Int32}


def lineage(index: Index, state: Mapping[str, Any]) -> tuple[ConsumedState, ...]:
    """Return what a plan that goes on from `state` of `index` states in its options, oldest
    first."""
    own = {name: state[name] for name in _STATE}
    return (*index.snapshot.options.continues, ConsumedState(snapshot_id=index.id, **own))


def continued_rules(table: Lengths, index: Index, state: Mapping[str, Any], rules: Rules) -> Rules:
    """`rules`, and nothing that training had consumed at `state` of `index` or before.

    Raises:
        MismatchError: the state is of another snapshot, or `index` was planned of other lengths.
        FormatError: it is not a state of a sampler.
        NotFoundInIndex: a snapshot of the lineage is gone.
        OptionError: the state is of an epoch that has not begun.
    """
    consumed_packs(index.snapshot, state)  # refuses a state of another snapshot
    _check_begun(index, state)
    planned, given = index.snapshot.lengths.fingerprint, table.fingerprint()
    if planned != given:
        raise MismatchError(
            f"{index.path}@{index.id[:12]} was planned of lengths with fingerprint {planned[:12]}, "
            f"{table.uri} has {given[:12]}: continue with the lengths that were planned"
        )
    trained, left = pl.DataFrame(schema=_TRAINED), pl.DataFrame(schema=_LEFT)
    for entry in lineage(index, state):
        ident = entry.snapshot_id
        ancestor = index if ident == index.id else open_index(f"{index.path}@{ident}")
        had, rest = _consumed(ancestor, {"version": 1, **entry.to_json()})
        # What is left of a copy is what the last snapshot that trained on it has left.
        left = pl.concat([left.join(had, on=_COPY, how="anti"), rest])
        trained = pl.concat([trained, had])
    consumed = Consumed(trained.sort(*_COPY), left.sort(*_COPY, "start"))
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


def _left_out(index: Index) -> dict[str, pl.DataFrame]:
    """The ``sample_id`` of samples that were excluded, by reason; samples that did not fit are
    judged anew.

    A plan that continues another one has these among its own dropped ones, and so on.
    """
    is_excluded = pl.col("reason") == "excluded"
    dropped = pl.concat(
        pl.DataFrame(index.window("dropped", number, ["sample_id", "reason"])).filter(is_excluded)
        for number in range(len(index.snapshot.windows))
    )
    return {"excluded": dropped.select("sample_id").sort("sample_id")}


def _consumed(index: Index, state: Mapping[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tokens that one snapshot's training has had (`_TRAINED`), and what it has left of copies
    that it has begun (`_LEFT`); read window by window."""
    done = np.zeros(index.num_packs, bool)
    done[consumed_packs(index.snapshot, state)] = True
    trained, left = [pl.DataFrame(schema=_TRAINED)], [pl.DataFrame(schema=_LEFT)]
    for number, _, first, _, window in index.snapshot.placed:
        of_window = done[first : first + window.num_packs]
        if not of_window.any():
            continue
        sizes = index.window("packs", number, ["num_samples"])["num_samples"].to_numpy()
        pieces = pl.DataFrame(index.window("samples", number, _COLUMNS))
        pieces = pieces.select(
            *("sample_id", "copy", "piece", pl.col("token_start").alias("start")),
            stop=pl.col("token_start") + pl.col("length"),
            had=pl.Series(np.repeat(of_window, sizes)),
        )
        had = pieces.filter("had")
        trained.append(had.select(*_TRAINED))
        left.append(_rest(pieces.join(had, on=_COPY, how="semi")))
    return pl.concat(trained), pl.concat(left)


def _rest(pieces: pl.DataFrame) -> pl.DataFrame:
    """What is left of copies that training has begun, of all of their pieces (`_LEFT`): pieces that
    follow each other are one stretch again."""
    highest = pieces.group_by(_COPY).agg(first_piece=pl.col("piece").max() + 1)
    rest = pieces.filter(~pl.col("had")).join(highest, on=_COPY).sort(*_COPY, "start")
    follows = pl.col("start") == pl.col("stop").shift()
    for name in _COPY:
        follows &= pl.col(name) == pl.col(name).shift()
    stretch = follows.fill_null(False).not_().cum_sum().alias("stretch")
    first = pl.col("sample_id", "copy", "start", "first_piece").first()
    found = rest.group_by(stretch, maintain_order=True).agg(first, pl.col("stop").last())
    return found.select(*_LEFT)
