"""transformers' Trainer by `PackedTrainer`: its packs, gradients, restarts; ranks that differ."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from trained_packs import (
    BATCH,
    CAPACITY,
    Encode,
    Noting,
    gradients,
    largest_difference,
    launch,
    one_loop,
    rows,
    tiny_model,
    trained_index,
)

from packidx.errors import MismatchError, OptionError
from packidx.index import open_index
from packidx.plan import plan_packs
from packidx.torch import PackedDataset, PackSampler, check_ranks, collate
from packidx.torch.loss import WEIGHTS

RANKS = (1, 4)


def trainer(
    out: str,
    dataset: Any,
    sampler: PackSampler,
    name: str = "token",
    model: Any = None,
    log: str | None = None,
    **options: Any,
) -> Any:
    from transformers import TrainingArguments

    from packidx.trainers.huggingface import PackedTrainer

    settings: dict[str, Any] = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": sampler.global_batch // sampler.world_size,
        "max_grad_norm": 0.0,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 3,
        "data_seed": sampler.seed,
    }
    arguments = TrainingArguments(out, **settings | options)
    return PackedTrainer(model or tiny_model(), arguments, dataset, weight=name, log=log)


def keep_gradients(into: list[Any], losses: list[float]) -> Any:
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            into.append(gradients(model))

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    return Keep()


def one_step(rank: int, world_size: int, path: str, out: str) -> None:
    for name in WEIGHTS:
        sampler = PackSampler(path, rank=rank, world_size=world_size, global_batch=BATCH)
        dataset = PackedDataset(path, Encode())
        found: list[Any] = []
        losses: list[float] = []
        model = tiny_model()
        model.accepts_loss_kwargs = False  # such a one's loss Trainer takes for a mean per batch
        job = trainer(f"{out}/run", dataset, sampler, name, model, max_steps=1)
        job.add_callback(keep_gradients(found, losses))
        job.train()
        torch.save((found, losses), f"{out}/{name}-{world_size}-{rank}.pt")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trainer")
    trained_index(folder)
    return str(folder / "index")


@pytest.mark.slow
@pytest.mark.parametrize("size", RANKS)
def test_gradients_do_not_depend_on_ranks(index: str, tmp_path: Path, size: int) -> None:
    launch(one_step, size, size, index, str(tmp_path))
    for name in WEIGHTS:
        expected, loss = one_loop(PackedDataset(index, Encode()), name)
        for rank in range(size):
            (found,), losses = torch.load(tmp_path / f"{name}-{size}-{rank}.pt")
            difference = largest_difference(found, expected)
            assert difference < 1e-5
            assert rank or losses == [pytest.approx(loss, abs=1e-3)]
        print(f"{name} {size} x {BATCH // size}: {difference:.1e}")


def epochs(rank: int, path: str, out: str) -> None:
    """Two epochs and a half; again from the checkpoint in the middle of the second one."""
    world_size, steps = 2, PackSampler(path, global_batch=4).num_steps
    for resume in (None, f"{out}/run/checkpoint-{steps + 1}"):
        sampler = PackSampler(path, rank=rank, world_size=world_size, global_batch=4, seed=5)
        dataset = Noting(path, Encode())
        options = {"max_steps": 2 * steps + 2, "save_strategy": "steps", "save_steps": steps + 1}
        job = trainer(f"{out}/run", dataset, sampler, **options)
        job.train(resume_from_checkpoint=resume)
        weights = {name: value.clone() for name, value in job.model.state_dict().items()}
        torch.save((dataset.asked, weights), f"{out}/{'resumed' if resume else 'whole'}-{rank}.pt")


@pytest.mark.slow
def test_each_rank_gets_exactly_the_samplers_packs(index: str, tmp_path: Path) -> None:
    launch(epochs, 2, index, str(tmp_path))
    for rank in range(2):
        sampler = PackSampler(index, rank=rank, world_size=2, global_batch=4, seed=5)
        expected = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected += list(sampler)
        asked, weights = torch.load(tmp_path / f"whole-{rank}.pt")
        done = (2 * sampler.num_steps + 2) * 2
        assert asked == expected[:done]
        again, same = torch.load(tmp_path / f"resumed-{rank}.pt")
        assert again == expected[(sampler.num_steps + 1) * 2 : done]
        assert all(torch.allclose(weights[key], same[key], atol=1e-6) for key in weights)
    sampler = PackSampler(index, global_batch=4, seed=5, epoch=1)
    for run in (sampler.num_steps + 1, 2 * sampler.num_steps + 2):  # the second one was resumed
        state = json.loads((tmp_path / f"run/checkpoint-{run}/packs.json").read_text())
        sampler.set_epoch(run // sampler.num_steps)
        assert state == sampler.state_at(run % sampler.num_steps)


def test_a_plan_goes_on_from_a_checkpoints_state(tmp_path: Path) -> None:
    """What the Trainer was given until then is neither planned again nor lost."""
    index = trained_index(tmp_path)
    lengths, total = tmp_path / "lengths", index.num_samples
    dataset = Noting(index, Encode())
    sampler = PackSampler(index, global_batch=4)
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    trainer(str(tmp_path / "run"), dataset, sampler, **options).train()
    trained = [sample.sample_id for k in dataset.asked for sample in index.pack(k).samples]
    state = json.loads((tmp_path / "run/checkpoint-3/packs.json").read_text())
    plan_packs(lengths, tmp_path / "index", resume=(index, state), capacity=2 * CAPACITY)
    rest = open_index(tmp_path / "index").samples(["sample_id"])["sample_id"].to_pylist()
    assert trained and rest and sorted(trained + rest) == list(range(total))


def test_evaluation_has_its_own_denominator(index: str, tmp_path: Path) -> None:
    dataset = PackedDataset(index, Encode())
    few = torch.utils.data.Subset(dataset, [0])
    job = trainer(str(tmp_path), dataset, PackSampler(index, global_batch=4), max_steps=1)
    batch = collate(dataset[0])
    model = job.model.eval()
    with torch.no_grad():
        expected = float(model(**batch).loss)
    assert job.evaluate(few)["eval_loss"] == pytest.approx(expected, abs=1e-4)


def test_a_global_batch_that_is_not_the_plans(tmp_path: Path) -> None:
    trained_index(tmp_path, global_batch=4)
    dataset = PackedDataset(tmp_path / "index", Encode())
    sampler = PackSampler(dataset.index, global_batch=4)
    assert trainer(str(tmp_path), dataset, sampler).order.at(0).global_batch == 4
    with pytest.raises(OptionError, match="steps of 4 packs .* have 2: .* 1 x .* 2 x 1 processes"):
        trainer(str(tmp_path), dataset, sampler, gradient_accumulation_steps=2)
    (tmp_path / "random").mkdir()
    loose = trained_index(tmp_path / "random", global_batch=4, schedule="random")
    trainer(str(tmp_path), PackedDataset(loose, Encode()), sampler, gradient_accumulation_steps=2)


def test_what_a_packed_trainer_does_not_take(index: str, tmp_path: Path) -> None:
    dataset, sampler = PackedDataset(index, Encode()), PackSampler(index, global_batch=4)
    with pytest.raises(OptionError, match="train_dataset is Subset, not a PackedDataset"):
        trainer(str(tmp_path), torch.utils.data.Subset(dataset, [0]), sampler)
    both_ways = tiny_model()
    both_ways.config.is_causal = False
    with pytest.raises(MismatchError, match="lets tokens see one another in both directions"):
        trainer(str(tmp_path), dataset, sampler, model=both_ways)
    with pytest.raises(OptionError, match="turn it off"):
        trainer(str(tmp_path), dataset, sampler, auto_find_batch_size=True)


def test_a_checkpoint_of_another_order_is_refused(index: str, tmp_path: Path) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    for seed, refusal in (
        (5, nullcontext()),
        (6, pytest.raises(MismatchError, match="has seed 5")),
    ):
        sampler = PackSampler(index, global_batch=4, seed=seed)
        job = trainer(str(tmp_path), PackedDataset(index, Encode()), sampler, **options)
        with refusal:
            job.train(resume_from_checkpoint=None if seed == 5 else str(tmp_path / "checkpoint-1"))


def test_a_killed_run_has_logged_the_steps_of_its_checkpoint(index: str, tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Kill(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            query = "SELECT count(*) AS steps FROM logged_steps"
            [logged] = rows(open_index(index), folder, query)
            assert logged["steps"] == state.global_step == 2
            raise KeyboardInterrupt

    sampler, folder = PackSampler(index, global_batch=4), str(tmp_path / "log")
    saved = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    job = trainer(str(tmp_path), PackedDataset(index, Encode()), sampler, log=folder, **saved)
    job.add_callback(Kill())
    with pytest.raises(KeyboardInterrupt):
        job.train()


def test_a_log_has_every_step_s_samples(index: str, tmp_path: Path) -> None:
    """Over the end of an epoch, with losses as the Trainer tells them."""
    sampler, losses, folder = PackSampler(index, global_batch=4), [], str(tmp_path / "log")
    steps = sampler.num_steps + 1
    job = trainer(
        str(tmp_path), PackedDataset(index, Encode()), sampler, log=folder, max_steps=steps
    )
    job.add_callback(keep_gradients([], losses))
    job.train()
    opened = open_index(index)
    query = "SELECT epoch, step, sample_id, loss, label_tokens FROM losses"
    found = rows(opened, folder, query)
    for number, loss in enumerate(losses):
        epoch, step = divmod(number, sampler.num_steps)
        sampler.set_epoch(epoch)
        mine = [row for row in found if (row["epoch"], row["step"]) == (epoch, step)]
        planned = [opened.pack(k).samples for k in sampler.packs_of_step(step)]
        ids = [sample.sample_id for samples in planned for sample in samples]
        assert sorted(row["sample_id"] for row in mine) == sorted(ids)
        mean = sum(row["loss"] for row in mine) / sum(row["label_tokens"] for row in mine)
        assert mean == pytest.approx(loss, abs=1e-3)
    [[count]] = [row.values() for row in rows(opened, folder, "SELECT count(*) FROM logged_steps")]
    assert count == steps == len(losses)


class NamedEncode(Encode):
    """An encoder with a fingerprint."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def fingerprint(self) -> str:
        return self.name


def cases_of(rank: int, first: str, second: str) -> dict[str, tuple[PackedDataset, PackSampler]]:
    """What this rank of two has, by what differs between them."""
    other = second if rank else first
    plain: dict[str, Any] = {"rank": rank, "world_size": 2, "global_batch": 4}

    def pair(path: str, encode: Any = None, **options: Any) -> tuple[PackedDataset, PackSampler]:
        return PackedDataset(path, encode or Encode()), PackSampler(path, **plain | options)

    resumed = pair(first)
    if rank:
        resumed[1].load_state_dict(resumed[1].state_at(1))
    return {
        "nothing": pair(first),
        "parallel": pair(first, rank=0, world_size=1),  # both have all packs, as in tensor parallel
        "snapshot": pair(other),
        "own": (PackedDataset(first, Encode()), PackSampler(other, **plain)),
        "seed": pair(first, seed=rank),
        "epoch": pair(first, epoch=3 * rank),
        "position": resumed,
        "batch": pair(first, global_batch=4 + 2 * rank),
        "worlds": pair(first, rank=0, world_size=1 + rank),
        "ranks": pair(first, rank=0),
        "encode": pair(first, NamedEncode(f"encoder-{rank}")),
    }


def check_cases(rank: int, first: str, second: str, out: str) -> None:
    dist.init_process_group("gloo")
    said = {}
    for name, (dataset, sampler) in cases_of(rank, first, second).items():
        try:
            check_ranks(dataset, sampler)
        except MismatchError as error:
            said[name] = str(error)
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_every_rank_is_told_what_differs(tmp_path: Path) -> None:
    index = trained_index(tmp_path)
    lengths = tmp_path / "lengths"
    plan_packs(lengths, tmp_path / "index", capacity=240, group_by="source", seed=1)
    other = open_index(tmp_path / "index")
    paths = [f"{one.path}@{one.id}" for one in (index, other)]
    launch(check_cases, 2, *paths, str(tmp_path))
    said, same = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert said == same
    expected = {
        "snapshot": f"snapshot {index.id} on process 0, {other.id} on process 1",
        "own": f"the sampler has snapshot {other.id}",
        "seed": "seed 0 on process 0, 1 on process 1",
        "epoch": "epoch 0 on process 0, 3 on process 1",
        "position": "position 0 on process 0, 4 on process 1",
        "batch": "global_batch 4 on process 0, 6 on process 1",
        "worlds": "world_size 1 on process 0, 2 on process 1",
        "ranks": "of 2 ranks there are rank 0 (2 processes)",
        "encode": "fingerprint encoder-0 on process 0, encoder-1 on process 1",
    }
    assert said.keys() == expected.keys()
    for name, words in expected.items():
        assert words in said[name], name


@pytest.mark.slow
def test_one_process_alone_agrees_with_itself(tmp_path: Path) -> None:
    index = trained_index(tmp_path, num_packs=4)
    dataset = PackedDataset(index, Encode())
    check_ranks(dataset, PackSampler(index, rank=1, world_size=2, global_batch=2))
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=240, seed=1)
    with pytest.raises(MismatchError, match="the sampler has snapshot"):
        check_ranks(dataset, PackSampler(tmp_path / "index", global_batch=1))
