"""`packidx trace` says what processes of a run have really read, step by step."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from packidx_cli.main import main
from torch.utils.data import DataLoader
from trained_packs import launch

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset, PackSampler

SEED, EPOCH = 11, 3
Read = tuple[int, list[int]]
"""A pack and its samples, in order."""
Log = dict[tuple[int, int], list[Read]]
"""What was read in each step on each rank, in order of micro-steps."""


def rank_of_a_run(
    rank: int,
    index: str,
    processor: str,
    sampling: dict[str, Any],
    state: dict[str, Any] | None,
    steps: int,
    out: str,
) -> None:
    """Train for `steps` steps, and write down what came out of the DataLoader's workers."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    dataset = PackedDataset(index, ProcessorEncoder(processor))
    sampler = PackSampler(index, rank=rank, **sampling)
    if state is not None:
        sampler.load_state_dict(state)
    first = sampler.state_dict()["position"] // sampler.global_batch
    loader = DataLoader(dataset, sampler=sampler, num_workers=1, collate_fn=lambda packs: packs)
    batches = iter(loader)
    read = []
    for step in range(first, first + steps):
        for _ in range(sampler.global_batch // sampler.world_size):
            [pack] = next(batches)  # the worker is several packs ahead by now
            read.append([step, int(pack["pack_id"]), pack["sample_ids"].tolist()])
    said = {"read": read, "state": sampler.state_at(first + steps)}
    Path(out, f"{rank}.json").write_text(json.dumps(said))


def run(
    folder: Path, index: str, processor: Path, world_size: int, steps: int, **options: Any
) -> tuple[Log, dict[str, Any]]:
    """What all ranks have read, and the state that they have left."""
    state = options.pop("state", None)
    folder.mkdir()
    sampling = {"world_size": world_size, **options}
    arguments = (index, str(processor), sampling, state, steps, str(folder))
    launch(rank_of_a_run, world_size, *arguments)
    log: Log = defaultdict(list)
    states = []
    for rank in range(world_size):
        said = json.loads((folder / f"{rank}.json").read_text())
        states.append(said["state"])
        for step, pack, samples in said["read"]:
            log[step, rank].append((pack, samples))
    assert all(state == states[0] for state in states)
    return dict(log), states[0]


def traced(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["trace", *arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def check(
    capsys: pytest.CaptureFixture[str], log: Log, index: str, world_size: int, *options: str
) -> None:
    """Every rank's and every step's packs are those that were read, with their samples."""
    of_steps: dict[int, list[Any]] = defaultdict(list)
    for (step, rank), read in log.items():
        size = ["--world-size", str(world_size)]
        told = traced(capsys, index, "--step", str(step), "--rank", str(rank), *size, *options)
        mine = [(p["pack_id"], [s["sample_id"] for s in p["samples"]]) for p in told["packs"]]
        assert mine == read
        assert [p["micro_step"] for p in told["packs"]] == list(range(len(read)))
        assert {p["rank"] for p in told["packs"]} == {rank}
        of_steps[step] += [(micro, rank, pack) for micro, (pack, _) in enumerate(read)]
    for step, packs in of_steps.items():
        told = traced(capsys, index, "--step", str(step), *size, *options)
        all_ranks = [(p["micro_step"], p["rank"], p["pack_id"]) for p in told["packs"]]
        assert all_ranks == sorted(packs)


def had(*logs: tuple[str, Log]) -> dict[int, list[tuple[str, int, int]]]:
    """(snapshot, step, pack) by sample, in the order of training."""
    by_sample = defaultdict(list)
    for ident, log in logs:
        for step, rank in sorted(log):
            for pack, samples in log[step, rank]:
                for sample in samples:
                    by_sample[sample].append((ident, step, pack))
    return by_sample


@pytest.mark.slow
def test_four_processes_then_two_then_another_capacity(
    corpus: Path, processors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies, pieces and two epochs of their own; another plan in the middle, and once more."""
    processor = processors / "qwen2.5-vl"
    for name, records in (("photos", 150), ("dialogues", 200), ("vqa_multi_image", 200)):
        with open(corpus / f"{name}.jsonl") as file:
            lines = [next(file) for _ in range(records)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "images").symlink_to(corpus / "images")
    names = [str(path) for path in sorted(tmp_path.glob("*.jsonl"))]
    estimate_lengths(names, tmp_path / "l", processor=processor, media_root=str(corpus))
    place = tmp_path / "i"
    plan_packs(tmp_path / "l", place, capacity=1200, on_long="split", mix=("photos=1.5",), epochs=2)
    first = open_index(place)
    assert max(first.samples(["piece"])["piece"].to_pylist()) > 0
    assert max(first.samples(["copy"])["copy"].to_pylist()) > 0
    index = f"{place}@{first.id}"

    sampling = {"global_batch": 8, "seed": SEED, "epoch": EPOCH}
    asked = ("--global-batch", "8", "--seed", str(SEED), "--epoch", str(EPOCH))
    four, state = run(tmp_path / "four", index, processor, 4, 3, **sampling)
    check(capsys, four, index, 4, *asked)
    two, state = run(tmp_path / "two", index, processor, 2, 4, state=state, **sampling)
    assert min(step for step, _ in two) == 3
    check(capsys, two, index, 2, *asked)
    (tmp_path / "state.json").write_text(json.dumps(state))
    check(capsys, two, index, 2, "--state", str(tmp_path / "state.json"))

    # Another capacity for what is left, on two processes again, and then once more.
    lengths, snapshots = str(tmp_path / "l"), [first.id]
    logs: list[tuple[str, Log]] = [(first.id, four | two)]
    for number, capacity in enumerate((2000, 900)):
        file = tmp_path / f"state-{number}.json"
        file.write_text(json.dumps(state))
        more = ["--continue", str(file), "-o", str(place), "--capacity", str(capacity), "--quiet"]
        assert main(["plan", lengths, *more]) == 0
        opened = open_index(place)
        index = f"{place}@{opened.id}"
        log, state = run(tmp_path / f"on-{number}", index, processor, 2, 2, global_batch=4, seed=5)
        check(capsys, log, index, 2, "--global-batch", "4", "--seed", "5")
        told = traced(capsys, index, "--step", "1", "--global-batch", "4")
        assert [one["snapshot_id"] for one in told["ancestors"]] == snapshots
        assert told["steps_before"] == 7 + 2 * number
        logs.append((opened.id, log))
        snapshots.append(opened.id)

    # What each sample's trace says of the past is what was read, in every snapshot of the lineage.
    (tmp_path / "state.json").write_text(json.dumps(state))
    last = ["--state", str(tmp_path / "state.json")]
    trained = had(*logs)
    assert {len({ident for ident, *_ in read}) for read in trained.values()} >= {1, 2}
    some = sorted(trained)[::7] + [ident for ident in range(550) if ident not in trained][:5]
    some += [ident for ident, read in trained.items() if len({one for one, *_ in read}) > 1]
    for ident in some:
        [sample] = traced(capsys, index, "--sample-id", str(ident), *last)["samples"]
        places = [
            (before["snapshot_id"], place["step"], place["pack_id"])
            for before in sample["before"]
            for place in before["places"]
        ]
        places += [
            (snapshots[-1], place["step"], place["pack_id"])
            for place in sample["places"]
            if place["consumed"]
        ]
        assert sorted(places) == sorted(trained.get(ident, []))
        assert sample["places"] or sample["dropped"]["reason"] == "consumed"
