"""The one rule by which packs are dealt to steps and ranks, and its way back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packidx.index.order import Dealing, EpochOrder


@st.composite
def dealings(draw: st.DrawFn) -> tuple[Dealing, int]:
    """(dealing, world_size); packs in up to two ranges with a gap between them."""
    world_size = draw(st.integers(1, 5))
    size = world_size * draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=2))
    ranges = [(5 + 9 * at + sum(counts[:at]), count) for at, count in enumerate(counts)]
    ranges = draw(st.permutations(ranges))
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


@given(dealings(), st.lists(st.integers(0, 140), max_size=30))
def test_packs_lead_back_to_their_positions(drawn: tuple[Dealing, int], others: list[int]) -> None:
    """In any order, twice, and with packs among them that are another epoch's."""
    order = drawn[0].order
    everything = np.arange(order.num_packs)
    packs = order.packs(everything)
    assert order.positions(packs).tolist() == everything.tolist()
    known = dict(zip(packs.tolist(), everything.tolist(), strict=True))
    positions = order.positions(np.array(others, np.int64))
    assert positions.dtype == np.int64
    assert positions.tolist() == [known.get(pack, -1) for pack in others]
