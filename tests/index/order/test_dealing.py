"""The one rule by which packs are dealt to steps and ranks, and its way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.index.order import dealing as dealing_module
from packidx.index.order.dealing import Dealing
from packidx.index.order.epochs import EpochOrder


@st.composite
def dealings(draw: st.DrawFn) -> tuple[Dealing, int]:
    """(dealing, world_size); packs from number 5 on, in up to two ranges."""
    world_size = draw(st.integers(1, 5))
    size = world_size * draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=2))
    ranges = [(5 + sum(counts[:at]), count) for at, count in enumerate(counts)]
    chunk = draw(st.integers(1, 4))
    order = EpochOrder(ranges, chunk * draw(st.integers(1, 6)), chunk, draw(st.integers(0, 9)))
    return Dealing(order, size), world_size


@given(dealings())
def test_turns_are_what_ranks_and_steps_get(drawn: tuple[Dealing, int]) -> None:
    dealing, world_size = drawn
    everything = dealing.packs(0, dealing.order.num_packs).tolist()
    turns = {pack: dealing.turn(at, world_size) for at, pack in enumerate(everything)}
    for rank in range(world_size):
        mine = dealing.packs_of_rank(0, dealing.end, rank, world_size).tolist()
        per_step = dealing.global_batch // world_size
        for number, pack in enumerate(mine):
            turn = turns[pack]
            assert (turn.step, turn.micro_step, turn.rank) == (*divmod(number, per_step), rank)
    for step in range(dealing.num_steps):
        for place, pack in enumerate(dealing.packs_of_step(step).tolist()):
            assert (turns[pack].step, turns[pack].place) == (step, place)
    dealt = [pack for step in range(dealing.num_steps) for pack in dealing.packs_of_step(step)]
    assert [*dealt, *dealing.left_out().tolist()] == everything
    assert len(dealing.left_out()) < dealing.global_batch


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_positions_lead_back(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packs asked for twice, in any order, and of packs that are another epoch's."""
    monkeypatch.setattr(dealing_module, "_CHUNK", chunk)
    dealing = Dealing(EpochOrder([(10, 30), (50, 13)], 6, 2, 3), 4)
    asked = np.array([52, 10, 9, 39, 52, 40, 62, 63, 11])
    positions = dealing.positions_of(asked)
    assert positions.dtype == np.int64
    assert [asked[at] for at in np.flatnonzero(positions < 0)] == [9, 40, 63]
    known = positions >= 0
    assert dealing.order.packs(positions[known]).tolist() == asked[known].tolist()
    assert dealing.positions_of(np.array([], np.int64)).tolist() == []
