"""PackSampler and OrderedPacks: who trains on what, resumed anywhere, also by torchdata."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from accelerate.data_loader import prepare_data_loader
from hypothesis import given
from hypothesis import strategies as st
from small_packs import make_index, record
from torch.utils.data import DataLoader, DistributedSampler
from torch_packs import SyntheticEncode
from trained_packs import CAPACITY, Encode, trained_index

from packidx.errors import FormatError, MismatchError, OptionError
from packidx.index import Index
from packidx.index.order import EpochOrder, consumed_packs
from packidx.torch import (
    OrderedPacks,
    Pack,
    PackedDataset,
    PackSampler,
    StreamingPackedDataset,
    collate,
)


class StandIn(Index):
    """An index of any number of packs that needs no files: Hypothesis tries thousands."""

    def __init__(self, num_packs: int, block: int = 1024, chunk: int = 1) -> None:
        self.path, self.id, self.roots = "index", "0123abcd", {}
        result = SimpleNamespace(num_packs=num_packs, schedule_block=block, schedule_chunk=chunk)
        result.schedule = "stratified"
        self.snapshot: Any = SimpleNamespace(snapshot_id=self.id, result=result)
        self.snapshot.ranges = ((0, num_packs),)

    def packs(self, columns: Any = None) -> pa.Table:
        return pa.table({"label_tokens": np.arange(self.num_packs) * 10})


def ranks(index: Index, world_size: int, **options: Any) -> list[PackSampler]:
    return [
        PackSampler(index, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def dealt(samplers: list[PackSampler]) -> list[int]:
    """What all ranks yield, in global order."""
    return [pack for micro in zip(*samplers, strict=True) for pack in micro]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Index, int, int]:
    """(index, world_size, global_batch)"""
    world_size = draw(st.integers(1, 6))
    global_batch = world_size * draw(st.integers(1, 4))
    num_packs = draw(st.integers(global_batch, global_batch * 6 + 5))
    return StandIn(num_packs, draw(st.integers(1, 40))), world_size, global_batch


@given(layouts(), st.integers(0, 9), st.integers(0, 3))
def test_ranks_partition_the_packs(layout: tuple[Index, int, int], seed: int, epoch: int) -> None:
    index, world_size, batch = layout
    samplers = ranks(index, world_size, global_batch=batch, seed=seed, epoch=epoch)
    packs = [list(sampler) for sampler in samplers]
    assert {len(one) for one in packs} == {len(samplers[0])}
    steps = index.num_packs // batch
    assert samplers[0].num_steps == steps and len(samplers[0]) == steps * batch // world_size
    assert [sampler.step for sampler in samplers] == [steps] * world_size
    left_out = samplers[0].left_out
    assert len(left_out) < batch
    assert sorted(sum(packs, []) + left_out) == list(range(index.num_packs))
    for step in range(steps):
        per_rank = batch // world_size
        mine = [one[step * per_rank : (step + 1) * per_rank] for one in packs]
        expected = samplers[0].packs_of_step(step)
        assert [pack for micro in zip(*mine, strict=True) for pack in micro] == expected


@given(layouts(), st.data())
def test_restored_at_every_yield(layout: tuple[Index, int, int], data: st.DataObject) -> None:
    index, world_size, batch = layout
    rank = data.draw(st.integers(0, world_size - 1))
    options: dict[str, Any] = {"world_size": world_size, "global_batch": batch, "rank": rank}
    whole = list(PackSampler(index, seed=1, epoch=2, **options))
    running = PackSampler(index, seed=1, epoch=2, **options)
    iterator = iter(running)
    for count in range(len(whole) + 1):
        state = json.loads(json.dumps(running.state_dict()))
        restored = PackSampler(index, seed=1, **options)
        restored.load_state_dict(state)
        assert restored.epoch == 2 and restored.state_dict() == state
        assert list(restored) == whole[count:]
        assert list(restored) == whole  # after its end it begins again
        next(iterator, None)


@pytest.mark.parametrize("batch", [4, 6])
def test_another_world_size_within_a_step(batch: int) -> None:
    """The rest of the step is dealt where that is possible, else the whole step again."""
    index = StandIn(2 * batch + 3, 5)
    order = list(PackSampler(index, global_batch=batch))
    divisors = [one for one in range(1, batch + 1) if batch % one == 0]
    outcomes = set()
    for world_size, new_size in itertools.product(divisors, divisors):
        for count in range(1, len(order) // world_size + 1):
            states = []
            for sampler in ranks(index, world_size, global_batch=batch):
                list(itertools.islice(sampler, count))
                states.append(sampler.state_dict())
            assert all(state == states[0] for state in states)
            new = ranks(index, new_size, global_batch=batch)
            for sampler in new:
                sampler.load_state_dict(states[0])
            cursor = count * world_size
            possible = -cursor % batch % new_size == 0
            outcomes.add(possible)
            assert dealt(new) == order[cursor if possible else cursor // batch * batch :]
    assert outcomes == {True, False}


def test_iteration_is_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    packs = EpochOrder.packs

    def counting(self: EpochOrder, positions: Any) -> Any:
        sizes.append(len(positions))
        return packs(self, positions)

    monkeypatch.setattr(EpochOrder, "packs", counting)
    sampler = PackSampler(StandIn(10**9), world_size=4, global_batch=8)
    sampler.load_state_dict(sampler.state_at(10**8))
    assert len(list(itertools.islice(sampler, 5000))) == 5000
    assert sum(sizes) <= 3 * 4096


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"world_size": 0}, "world_size is 0"),
    ({"rank": 2, "world_size": 2}, r"rank 2 is outside \[0, 2\)"),
    ({"rank": -1}, "rank -1"),
    (
        {"world_size": 2, "global_batch": 3},
        "global_batch 3 is not a positive multiple of world_size 2",
    ),
    ({"global_batch": 0}, "global_batch 0 is not a positive multiple"),
    ({"global_batch": 21}, "global_batch 21 exceeds the 20 packs"),
    ({"world_size": 21, "global_batch": 21}, "global_batch 21 exceeds the 20 packs"),
    ({"world_size": 3}, "global_batch 1024 is not a positive multiple of world_size 3"),
    ({"world_size": 2}, "global_batch 1024 exceeds the 20 packs of an epoch"),
    ({"seed": -1, "global_batch": 2}, "seed is -1"),
    ({"epoch": -1, "global_batch": 2}, "epoch is -1"),
    ({"rank": 0.5}, r"rank is 0.5 \(float\): it must be an integer"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PackSampler(StandIn(20), **options)


BAD_STATES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"snapshot_id": "ffff"}, MismatchError, "snapshot_id ffff, this sampler 0123abcd.*dir@ID"),
    ({"seed": 5}, MismatchError, "seed 5, this sampler 0"),
    ({"global_batch": 4}, MismatchError, "global_batch 4, this sampler 2.*accumulation"),
    ({"version": 2}, FormatError, "Invalid enum value 2 - at `\\$.version`"),
    ({"position": 21}, FormatError, r"position 21, outside \[0, 20\]"),
    ({"position": "3"}, FormatError, "Expected `int`, got `str` - at `\\$.position`"),
    ({"position": -1}, FormatError, "Expected `int` >= 0 - at `\\$.position`"),
    ({"epoch": True}, FormatError, "got `bool` - at `\\$.epoch`"),
    ({"epoch": 1 << 63}, FormatError, "Expected `int` <= 9223372036854775807"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_STATES)
def test_bad_states(change: dict[str, Any], error: type[Exception], message: str) -> None:
    sampler = PackSampler(StandIn(20), global_batch=2)
    with pytest.raises(error, match=message):
        sampler.load_state_dict(sampler.state_dict() | change)
    with pytest.raises(FormatError, match="missing required field `position`"):
        state = sampler.state_dict()
        del state["position"]
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    ("planned", "step"),
    [
        ({"global_batch": 8, "micro_steps": 2}, 8),
        ({"global_batch": 12}, 12),
        ({}, 8),
        ({"schedule": "random", "global_batch": 4}, 4),
        ({"schedule": "random"}, None),
    ],
)
def test_the_default_step_is_the_plan_s(
    tmp_path: Path, planned: dict[str, Any], step: int | None
) -> None:
    """What is divided by is what the ranks accumulate in that step, read as training reads it."""
    records = [record(n, [9 + n % 37]) for n in range(200)]
    index = make_index(tmp_path, {"all": records}, capacity=120, **planned)
    if step is None:
        with pytest.raises(OptionError, match="random order .* pass global_batch=N"):
            PackSampler(index)
        return
    dataset = PackedDataset(index, SyntheticEncode())
    labels = [int((pack.joined()["labels"] != -100).sum()) for pack in dataset]
    for world_size in (size for size in (1, 2, 3, 4) if step % size == 0):
        samplers = ranks(index, world_size)
        assert samplers[0].global_batch == step and samplers[0].num_steps > 2
        trained = [list(sampler) for sampler in samplers]
        for number in range(samplers[0].num_steps):
            mine = slice(number * step // world_size, (number + 1) * step // world_size)
            packs = [pack for one in trained for pack in one[mine]]
            total = sum(labels[pack] for pack in packs)
            assert [one.denominator(number) for one in samplers] == [total] * world_size


def weighed_index(folder: Path, **options: Any) -> Index:
    rng = np.random.default_rng(2)
    records = [
        record(n, [int(rng.integers(3, 40)), (4, 4 * int(rng.integers(1, 5)))]) for n in range(90)
    ]
    return make_index(folder, {"all": records}, capacity=120, global_batch=4, **options)


@pytest.mark.parametrize(
    "options", [{}, {"memory": "9MB", "memory_model": "a=1e4,b=4e3,c=100,d=5e6"}]
)
def test_the_heaviest_packs_come_first_and_each_pack_once(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    index = weighed_index(tmp_path, **options)
    packs = index.packs(["padded_length", "vision_patches", "num_samples"]).to_pylist()
    weights = {"padded_length": 1e4, "vision_patches": 4e3, "num_samples": 100} if options else {
        "padded_length": 1, "vision_patches": 1
    }  # fmt: skip
    weight = np.array([sum(w * pack[name] for name, w in weights.items()) for pack in packs])
    plain = PackSampler(index, seed=3)
    whole = list(plain) + plain.left_out
    for world_size, number in itertools.product((1, 2, 4), (1, 4, 7)):
        samplers = ranks(index, world_size, seed=3, heaviest_first=number)
        order = dealt(samplers) + samplers[0].left_out
        assert sorted(order) == sorted(whole)
        assert weight[order[:number]].tolist() == np.sort(weight)[::-1][:number].tolist()
        heavy = set(order[:number])
        kept = [
            pack for pack, at in zip(whole, range(len(whole)), strict=True) if order[at] == pack
        ]
        assert len(kept) >= len(whole) - 2 * number and heavy >= set(order[:number])
        for one in samplers:
            one.set_epoch(1)
        assert dealt(samplers) == list(PackSampler(index, seed=3, epoch=1))


def test_a_state_remembers_that_the_heaviest_came_first(tmp_path: Path) -> None:
    index = weighed_index(tmp_path)
    whole = list(PackSampler(index, heaviest_first=5))
    state = json.loads(json.dumps(PackSampler(index, heaviest_first=5).state_at(2)))
    assert "heaviest_first" not in PackSampler(index).state_at(2)
    resumed = ranks(index, 2, heaviest_first=5)
    for one in resumed:
        one.load_state_dict(state)
    assert dealt(resumed) == whole[8:]
    assert consumed_packs(index, state).tolist() == whole[:8]
    with pytest.raises(MismatchError, match="heaviest_first 5, this sampler 0"):
        PackSampler(index).load_state_dict(state)


BATCH = 8


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    records = [record(n, [20 + n % 9]) for n in range(90)]
    options = {"capacity": 64, "global_batch": BATCH, "micro_steps": 2}
    return make_index(tmp_path_factory.mktemp("ordered"), {"all": records}, **options)


def packs_of(index: Index) -> OrderedPacks:
    return OrderedPacks(index, SyntheticEncode(), BATCH, epochs=3, seed=5)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_plain_sampler_gives_the_packs_of_packsampler(index: Index, world_size: int) -> None:
    ordered = packs_of(index)
    for rank in range(world_size):
        plain = DistributedSampler(ordered, world_size, rank, shuffle=False, drop_last=True)
        sampler = PackSampler(index, rank=rank, world_size=world_size, global_batch=BATCH, seed=5)
        expected = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected += [(epoch, pack) for pack in sampler]
        assert [ordered.pack_number(item) for item in plain] == expected


def test_workers_read_them_and_it_pickles_small(index: Index) -> None:
    ordered = packs_of(index)
    assert len(pickle.dumps(ordered)) < 4000
    loader = DataLoader(ordered, batch_size=2, collate_fn=ids_of, num_workers=2)
    wanted = [ordered.pack_number(item)[1] for item in range(len(ordered))]
    assert [number for batch in loader for number in batch] == wanted
    assert collate([ordered[0]])["input_ids"].shape[0] == 1


def test_accelerate_deals_packs_as_the_sampler_does(index: Index) -> None:
    """A sampler of one rank, whose packs `prepare` deals out, is one of several."""
    dataset, sampler = PackedDataset(index, SyntheticEncode()), PackSampler(index)
    loader = DataLoader(dataset, sampler=sampler, collate_fn=ids_of)
    for rank in range(2):
        ranks = {"num_processes": 2, "process_index": rank, "put_on_device": False}
        dealt = prepare_data_loader(loader, **ranks)
        expected = [*PackSampler(index, rank=rank, world_size=2)]
        assert [number for batch in dealt for number in batch] == expected


def ids_of(packs: list[Pack]) -> list[int]:
    return [pack.pack_id for pack in packs]


WORKERS = (0, 1, 3)


def by_torchdata(test: Any) -> Any:
    """Warnings of torchdata 0.11, and of two cores, are ignored."""
    for warning in (
        "This DataLoader will create 3 worker:UserWarning",
        "'set_vital' is deprecated:UserWarning",
    ):
        test = pytest.mark.filterwarnings(f"ignore:{warning}")(test)
    return test


@pytest.fixture(scope="module")
def restored_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """23 packs: five steps of four, and three left out."""
    restored_index = trained_index(tmp_path_factory.mktemp("restore"), 18)
    assert restored_index.num_packs // 4 == 5 and restored_index.num_packs % 4
    return restored_index


def only_id(packs: list[Pack]) -> int:
    return int(packs[0].pack_id)


@by_torchdata
@pytest.mark.parametrize("workers", WORKERS)
def test_torchdata_restores_at_every_batch(restored_index: Index, workers: int) -> None:
    """Its state is that of the batches it has handed out, whatever its workers have drawn."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    options: dict[str, Any] = {"rank": 1, "world_size": 2, "global_batch": 4}

    def loader() -> Any:
        dataset, sampler = (
            PackedDataset(restored_index, Encode()),
            PackSampler(restored_index, **options),
        )
        return stateful.StatefulDataLoader(
            dataset, batch_size=1, sampler=sampler, collate_fn=only_id, num_workers=workers
        )

    running, states, whole = loader(), [], []
    for pack in running:
        whole.append(pack)
        states.append(running.state_dict())
    assert whole == list(PackSampler(restored_index, **options))
    for count, state in enumerate(states[:-1], start=1):
        again = loader()
        again.load_state_dict(state)
        assert list(again) == whole[count:]


@by_torchdata
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Neither dataset nor iter")  # what was read is read once more
def test_torchdata_goes_on_with_a_stream_where_it_was(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    trained_index(tmp_path, num_packs=16)

    def loader() -> Any:
        stream = StreamingPackedDataset(tmp_path / "lengths", Encode(), CAPACITY, lanes=2)
        return stateful.StatefulDataLoader(stream, batch_size=1, collate_fn=only_id, num_workers=2)

    whole, begun = list(loader()), loader()
    packs = iter(begun)
    first = [next(packs) for _ in range(5)]
    going_on = loader()
    going_on.load_state_dict(begun.state_dict())
    assert first + list(going_on) == whole
