"""A run's log: whose loss is whose, and which rows hold."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from trained_packs import Encode, rows, tiny_model, trained_index

from packidx.errors import FormatError, MismatchError, OptionError, SourceError
from packidx.index import Index
from packidx.records.fetch import Fetcher
from packidx.torch import PackedDataset, PackSampler, StepLog, collate, headspace
from packidx.torch.headspace import measure_headspace
from packidx.torch.loss import LossWeights, packed_loss

BY_SAMPLE = "SELECT step, rank, pack_id, sample_id, label_tokens, loss, source, key FROM losses"


def logged(
    log: StepLog,
    dataset: PackedDataset,
    model: Any,
    steps: range,
    together: int = 1,
    attention: str = "sdpa",
) -> None:
    """Run `steps` of the log's rank, `together` packs at a time, without training."""
    sampler = log.sampler
    for step in steps:
        packs = sampler.packs_of_step(step)[sampler.rank :: sampler.world_size]
        for start in range(0, len(packs), together):
            held = [dataset[k] for k in packs[start : start + together]]
            batch = collate(held, attention, sample_table=True)
            inputs = {k: v for k, v in batch.items() if k not in ("labels", "sample_table")}
            with torch.no_grad():
                logits = model(**inputs).logits
            packed_loss(logits, batch, LossWeights(), 1.0, log=log.add)
        log.end_step(step, torch.tensor(1.0 + step))


def alone(index: Index, model: Any, samples: list[int]) -> dict[int, float]:
    """The loss sums of samples, each by itself: nothing of packidx.torch."""
    fetcher, encode, losses = Fetcher(index), Encode(), {}
    packs = [index.pack(k) for k in range(index.num_packs)]
    for sample in (each for pack in packs for each in pack.samples):
        if sample.sample_id in samples:
            encoded = encode(fetcher.read(sample))
            with torch.no_grad():
                logits = model(encoded["input_ids"][None], use_cache=False).logits[0, :-1]
            loss = functional.cross_entropy(logits, encoded["labels"][1:], reduction="sum")
            losses[sample.sample_id] = float(loss)
    return losses


def sampler_of(index: Index, **options: Any) -> PackSampler:
    return PackSampler(index, **({"global_batch": 4} | options))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return trained_index(tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize(
    ("together", "attention", "ranks"), [(1, "sdpa", 2), (4, "sdpa", 1), (2, "flash", 2)]
)
def test_each_loss_is_the_sample_s_own(
    tmp_path: Path, index: Index, together: int, attention: str, ranks: int
) -> None:
    model, dataset = tiny_model(), PackedDataset(index, Encode())
    for rank in range(ranks):
        log = StepLog(tmp_path, sampler_of(index, rank=rank, world_size=ranks))
        logged(log, dataset, model, range(3), together, attention)
        log.close()
    found = rows(index, tmp_path, BY_SAMPLE)
    sampler = sampler_of(index)
    for step in range(3):
        packs = sampler.packs_of_step(step)
        planned = {s.sample_id: s for k in packs for s in index.pack(k).samples}
        mine = {row["sample_id"]: row for row in found if row["step"] == step}
        assert mine.keys() == planned.keys()
        losses = alone(index, model, list(planned))
        for ident, row in mine.items():
            assert row["loss"] == pytest.approx(losses[ident], rel=1e-5)
            assert row["label_tokens"] == planned[ident].label_tokens
            assert (row["source"], row["key"]) == (planned[ident].source, planned[ident].key)
            assert row["rank"] == packs.index(row["pack_id"]) % ranks
    steps = rows(index, tmp_path, "SELECT * FROM logged_steps ORDER BY step, rank")
    assert len(steps) == 3 * ranks
    assert [each["grad_norm"] for each in steps[::ranks]] == [1.0, 2.0, 3.0]
    assert [each["seconds"] is None for each in steps] == [True] * ranks + [False] * 2 * ranks
    lengths = [index.pack(k).stats["length"] for k in sampler.packs_of_step(0)[::ranks]]
    assert steps[0]["length"] == sum(lengths)


@pytest.mark.parametrize("attention", ["thd", "indexed", "sdpa"])
@pytest.mark.parametrize("align", [1, 8])
def test_padding_hides_no_sample(tmp_path: Path, attention: str, align: int) -> None:
    """Padding behind samples and at the ends of rows belongs to the sample before it."""
    index = trained_index(tmp_path, 4, align=align, pad_pack_to=64, capacity=256)
    dataset, log = PackedDataset(index, Encode()), StepLog(tmp_path / "log", sampler_of(index))
    planned: dict[int, int | None] = {}
    for step in range(log.sampler.num_steps):
        packs = log.sampler.packs_of_step(step)
        planned |= {s.sample_id: s.label_tokens for k in packs for s in index.pack(k).samples}
        for start in (0, 2):
            held = [dataset[k] for k in packs[start : start + 2]]
            batch = collate(held, attention, sample_table=True)
            log.add(batch, torch.ones(batch["labels"].shape))
        log.end_step(step)
    log.close()
    found = rows(index, tmp_path / "log", BY_SAMPLE)
    assert planned and {row["sample_id"]: row["label_tokens"] for row in found} == planned


def test_a_sample_that_is_left_out_confuses_no_other(tmp_path: Path, index: Index) -> None:
    class Skipping(Encode):
        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            if record["id"] in bad:
                raise ValueError("broken")
            return super().__call__(record)

    model, bad = tiny_model(), {f"key-{n}" for n in (0, 3, 5, 101, 107)}
    dataset = PackedDataset(index, Skipping(), on_bad="skip")
    log = StepLog(tmp_path, sampler_of(index))
    logged(log, dataset, model, range(log.sampler.num_steps), 2)
    log.close()
    found = rows(index, tmp_path, BY_SAMPLE)
    packs = [k for step in range(log.sampler.num_steps) for k in log.sampler.packs_of_step(step)]
    planned = {sample.key for k in packs for sample in index.pack(k).samples}
    assert planned & bad and {row["key"] for row in found} == planned - bad
    losses = alone(index, model, [row["sample_id"] for row in found])
    for row in found:
        assert row["loss"] == pytest.approx(losses[row["sample_id"]], rel=1e-5)


def test_the_later_of_two_rows_holds(tmp_path: Path, index: Index) -> None:
    """A run of two ranks is killed after step 2, and goes on from step 1 on one rank."""
    model, dataset = tiny_model(), PackedDataset(index, Encode())
    for rank in range(2):
        log = StepLog(tmp_path, sampler_of(index, rank=rank, world_size=2), flush_steps=1)
        logged(log, dataset, model, range(3))
        log.close()
    log = StepLog(tmp_path, sampler_of(index), flush_steps=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    logged(log, dataset, model, range(1, 4))
    log.close()
    steps = rows(index, tmp_path, "SELECT step, rank, world_size FROM logged_steps ORDER BY 1, 2")
    assert [tuple(each.values()) for each in steps] == [
        *((0, 0, 2), (0, 1, 2), (1, 0, 1), (2, 0, 1), (3, 0, 1))
    ]
    second = rows(index, tmp_path, f"{BY_SAMPLE} WHERE step = 1")
    losses = alone(index, model, [row["sample_id"] for row in second])
    assert len(losses) == len(second) == len({row["sample_id"] for row in second})
    for row in second:
        assert row["loss"] == pytest.approx(losses[row["sample_id"]], rel=1e-5)


def _killed(folder: str, path: str) -> None:
    log = StepLog(folder, sampler_of(Index(*path.split("@"))), flush_steps=2)
    dataset = PackedDataset(log.sampler.index, Encode())
    logged(log, dataset, tiny_model(), range(5))
    while len(list(Path(folder).glob("*.parquet"))) < 2:
        pass
    os._exit(9)


def test_a_killed_run_loses_its_last_part(tmp_path: Path, index: Index) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_killed, args=(str(tmp_path), f"{index.path}@{index.id}")
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    steps = rows(index, tmp_path, "SELECT step FROM logged_steps ORDER BY 1")
    assert [each["step"] for each in steps] == [0, 1, 2, 3]


def test_what_makes_no_sense_is_refused(tmp_path: Path, index: Index) -> None:
    log = StepLog(tmp_path, sampler_of(index))
    batch = collate(PackedDataset(index, Encode())[0], sample_table=True)
    with pytest.raises(MismatchError, match=r"losses of shape \[3\] are not of a batch"):
        log.add(batch, torch.ones(3))
    del batch["sample_table"]
    with pytest.raises(MismatchError, match="collate with sample_table=True"):
        log.add(batch, torch.ones(batch["labels"].shape))
    with pytest.raises(OptionError, match="step 99 is outside"):
        log.end_step(99)
    with pytest.raises(OptionError, match="flush_steps is 0"):
        StepLog(tmp_path, sampler_of(index), flush_steps=0)
    with pytest.raises(SourceError, match="holds no log of steps"):
        rows(index, tmp_path, BY_SAMPLE)
    log.end_step(0)
    log.close()
    assert rows(index, tmp_path, BY_SAMPLE) == []
    with pytest.raises(MismatchError, match="with seed 0, this one has 1: give each run"):
        StepLog(tmp_path, sampler_of(index, seed=1))


def test_a_run_that_resumes_with_its_clock_behind_holds(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = tiny_model(), PackedDataset(index, Encode())
    log = StepLog(tmp_path, sampler_of(index))
    logged(log, dataset, model, range(3))
    log.close()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    monkeypatch.setattr("packidx.torch.step_log.time.time_ns", lambda: 10**18)  # in 2001
    for _ in range(2):  # the second one goes back within its process, too
        log = StepLog(tmp_path, sampler_of(index))
        logged(log, dataset, model, range(1, 3))
        logged(log, dataset, model, range(1, 3))
        log.close()
    for step in range(1, 3):
        found = rows(index, tmp_path, f"{BY_SAMPLE} WHERE step = {step}")
        losses = alone(index, model, [row["sample_id"] for row in found])
        assert len(found) == len(losses) > 0
        for row in found:
            assert row["loss"] == pytest.approx(losses[row["sample_id"]], rel=1e-5)


def test_a_flipped_bit_in_a_part_is_damage(tmp_path: Path, index: Index) -> None:
    log = StepLog(tmp_path, sampler_of(index))
    logged(log, PackedDataset(index, Encode()), tiny_model(), range(2))
    log.close()
    (part,) = tmp_path.glob("*.parquet")
    whole = part.read_bytes()
    columns = pq.read_metadata(part).row_group(0)
    by_name = {
        columns.column(n).path_in_schema: columns.column(n) for n in range(columns.num_columns)
    }
    losses = by_name["samples.list.element.loss"]
    end = losses.dictionary_page_offset + losses.total_compressed_size
    name = whole.index(b"label_tokens")
    for at in (*range(end - 20, end), name + 3):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(FormatError, match="is damaged"):
            rows(index, tmp_path, BY_SAMPLE)


def test_steps_state_their_memory_and_their_waiting(tmp_path: Path, index: Index) -> None:
    peaks = iter([700, 900, None])
    log = StepLog(tmp_path, sampler_of(index), memory=lambda: next(peaks))

    def slow() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.05)
            yield number

    for step in log.watch(slow()):
        time.sleep(0.05)
        log.end_step(step)
    assert log.metrics().splitlines()[0] == 'packidx_step{rank="0"} 2'
    assert "packidx_data_wait_ratio" in log.metrics() and "memory" not in log.metrics()
    log.close()
    steps = rows(index, tmp_path, "SELECT memory, data_wait FROM logged_steps ORDER BY step")
    assert [each["memory"] for each in steps] == [700, 900, None]
    assert steps[0]["data_wait"] is None  # its time is unknown
    assert all(0.2 < each["data_wait"] < 0.8 for each in steps[1:])


def test_a_watched_loader_is_the_loader(tmp_path: Path, index: Index) -> None:
    loader = DataLoader(range(6), batch_size=2)  # type: ignore[arg-type]
    watched = StepLog(tmp_path, sampler_of(index)).watch(loader)
    assert len(watched) == 3 and watched.batch_size == 2
    assert [each.tolist() for each in watched] == [each.tolist() for each in loader]


def test_the_headspace_is_what_waiting_costs(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow:
        def __iter__(self) -> Iterator[int]:
            for number in range(20):
                time.sleep(0.04)
                yield number

    steps: list[int] = []

    def step(batch: int) -> None:
        steps.append(batch)
        time.sleep(0.02)

    found = measure_headspace(Slow(), step, steps=8, warmup=2)
    assert 2.0 < found.ratio < 4.5 and 0.5 < found.waited / found.loaded < 0.8
    assert steps == [*range(10), *[9] * 10]
    assert f"could be {found.ratio:.2f} times as fast" in str(found)
    with pytest.raises(OptionError, match="has 20 batches, 60 are needed"):
        measure_headspace(Slow(), lambda batch: None, steps=60, warmup=0)
    with pytest.raises(SystemExit) as ended:
        headspace.main(["no_module:loop"])
    assert ended.value.code == 1 and "no_module:loop cannot be loaded" in capsys.readouterr().err
