"""A sample with shuffled labels, found in a run's log, left out, and the epoch continued."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from packidx_cli.main import main
from torch.utils.data import DataLoader
from trained_packs import VOCABULARY, planned_denominator, tiny_model

from packidx.index import open_index
from packidx.torch import PackedDataset, PackSampler, StepLog, collate
from packidx.torch.loss import LossWeights, label_positions, packed_loss

SAMPLES, POISONED = 5_000, 3_333
PAGE = Path(__file__).parents[2] / "docs" / "inspecting.md"


def encode(record: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(record[name]) for name in ("input_ids", "labels")}


def write_samples(path: Path) -> None:
    """Numbers that count up, which a tiny model learns at once; in one sample they are shuffled."""
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(SAMPLES):
            start, length = draw.randrange(90), draw.randrange(24, 64)
            ids = [3 + (start + at) % 90 for at in range(length)]
            labels = [-100] * 4 + ids[4:]
            if number == POISONED:
                draw.shuffle(labels)
            record = {"id": f"count-{number:05d}", "input_ids": ids, "labels": labels}
            file.write(json.dumps(record) + "\n")


def train(index: str, log: Path, steps: int, seed: int = 0) -> dict[str, Any]:
    """The loop of the documentation; returns the sampler's state after `steps`."""
    sampler = PackSampler(index, global_batch=4, seed=seed)
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(
        PackedDataset(index, encode),
        batch_size=4,
        sampler=sampler,
        collate_fn=functools.partial(collate, sample_table=True),
    )
    kept_log = StepLog(log, sampler)
    for step, batch in zip(range(steps), loader, strict=False):
        kept = label_positions(batch)
        outside = ("labels", "sample_table")
        inputs = {name: value for name, value in batch.items() if name not in outside}
        logits = model(**inputs, logits_to_keep=kept).logits
        planned = planned_denominator(sampler, step) or 1.0
        packed_loss(logits, batch, LossWeights(), planned, kept=kept, log=kept_log.add).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        kept_log.end_step(step, norm)
    kept_log.close()
    return sampler.state_at(steps)


def documented(begin: str) -> str:
    [query] = re.findall(rf'--log runs/log "({begin}.*?)"', PAGE.read_text())
    return query


@pytest.mark.slow
def test_the_poisoned_sample_is_found_left_out_and_the_rest_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert VOCABULARY > 93
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path / "counts.jsonl")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert main(["estimate", "counts.jsonl", "-o", "lengths", "--encode", "test_spike:encode"]) == 0
    assert main(["plan", "lengths", "-o", "index", "--capacity", "256"]) == 0
    capsys.readouterr()
    key = f"count-{POISONED:05d}"
    # By the first such seed the sample comes when the model has learned, and has not seen all.
    for seed in range(20):
        query = ["trace", "index", "--key", key, "--global-batch", "4", "--seed", str(seed)]
        assert main([*query, "--json"]) == 0
        [place] = json.loads(capsys.readouterr().out)["places"]
        if 40 < (place["step"] or 0) < 120:
            break
    assert 40 < place["step"] < 120
    state = train("index", tmp_path / "log", 120, seed)
    (tmp_path / "state.json").write_text(json.dumps(state))

    def sql(query: str, *more: str) -> list[dict[str, Any]]:
        form = more or ("--format", "json")
        assert main(["sql", "index", "--log", "log", query, *form]) == 0
        return [] if more else json.loads(capsys.readouterr().out)

    query = documented("SELECT sample_id").replace("812", str(place["step"]))
    first, second, *_ = sql(query)
    assert first["key"] == key and first["per_token"] > 2 * second["per_token"]
    of_run = sql("SELECT sample_id FROM losses")
    assert sql(documented("SELECT step, sample_id"))[0]["sample_id"] == first["sample_id"]
    outliers = documented("SELECT DISTINCT")
    assert [row["sample_id"] for row in sql(outliers)] == [first["sample_id"]]

    sql(outliers, "-o", "outliers.parquet")
    plan = ["plan", "-o", "index", "--continue", "state.json", "--exclude", "outliers.parquet"]
    assert main(plan) == 0
    capsys.readouterr()
    rest = open_index("index")
    had = {row["sample_id"] for row in of_run}
    assert rest.snapshot.result.dropped == {"excluded": 1, "consumed": len(had) - 1}
    left = set(rest.samples(["sample_id"])["sample_id"].to_pylist())
    assert had | left == set(range(SAMPLES)) and had & left == set()
    train("index", tmp_path / "log", 3)  # of another snapshot, in the same folder
    assert [row["step"] for row in sql("SELECT DISTINCT step FROM losses ORDER BY 1")] == [0, 1, 2]
