"""`--memory`: no pack takes more than its limit, by weights that are given or fitted to a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packidx_cli.main import cli
from small_packs import make_index, record

from packidx.errors import OptionError, SourceError
from packidx.index import Index
from packidx.plan.memory import fit_memory
from packidx.torch import PackSampler, StepLog

WEIGHTS = {"a": 3e6, "b": 5e5, "c": 7e6, "d": 2e9}


def records(seed: int, number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sizes = [(2 * int(rng.integers(1, 9)), 2 * int(rng.integers(1, 9))) for _ in range(number)]
    return [
        record(n, [int(rng.integers(3, 40)), *([size] if n % 3 else [])])
        for n, size in enumerate(sizes)
    ]


def bytes_of(index: Index) -> np.ndarray[Any, Any]:
    packs = index.packs(["padded_length", "vision_patches", "num_samples"]).to_pylist()
    a, b, c, d = WEIGHTS.values()
    return np.array(
        [a * p["padded_length"] + b * p["vision_patches"] + c * p["num_samples"] + d for p in packs]
    )


def model(**changed: float) -> str:
    return ",".join(f"{name}={value}" for name, value in (WEIGHTS | changed).items())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 20),
    limit=st.integers(2_300, 2_800),
    strategy=st.sampled_from(["auto", "bfd", "lp", "balanced", "knapsack", "first-fit"]),
    shape=st.sampled_from([{}, {"align": 8}, {"pad_pack_to": 16}, {"pad_pack_to": 128}]),
)
def test_no_pack_takes_more_than_the_limit(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    limit: int,
    strategy: str,
    shape: dict[str, int],
) -> None:
    folder = tmp_path_factory.mktemp("memory")
    limit *= 1_000_000
    if shape.get("pad_pack_to") == 128:  # every pack takes 384 MB for its tokens
        limit += 300_000_000
    index = make_index(
        folder, {"all": records(seed, 70)}, capacity=128, strategy=strategy,
        memory=str(limit), memory_model=model(), **shape,
    )  # fmt: skip
    assert bytes_of(index).max() <= limit
    reasons = index.snapshot.result.dropped
    packed = index.snapshot.result.num_samples
    assert packed + sum(reasons.values()) == 70 and set(reasons) <= {"max_memory", "too_long"}
    lengths = index.packs(["length"])["length"].to_numpy()
    assert index.num_packs < packed or lengths.max() > 60, "samples share packs"


def test_stats_names_the_heaviest_pack(tmp_path: Path) -> None:
    index = make_index(
        tmp_path, {"all": records(3, 60)}, capacity=128, memory="2.6GB", memory_model=model()
    )
    expected = bytes_of(index)
    shown = CliRunner().invoke(cli, ["stats", str(index.path), "--verbose"])
    assert shown.exit_code == 0, shown.output
    heaviest = f"heaviest: pack {expected.argmax()} with {expected.max() / 2**30:,.2f} GiB of 2.42"
    assert heaviest in " ".join(shown.output.split())


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    given_ = {"memory": "3GB", "memory_model": model()}
    for number, (changed, words) in enumerate(
        [
            ({"memory": None}, "--memory-model needs --memory"),
            ({"memory_model": None}, "--memory needs --memory-model"),
            ({"memory": "much"}, "--memory is 'much'"),
            ({"memory_model": "a=x"}, "--memory-model has 'a=x'"),
            ({"memory_model": "q=1"}, "--memory-model has 'q=1'"),
            ({"memory_model": str(tmp_path / "none")}, "is not there"),
            ({"memory": "1GB"}, "is below the 2,000,000,000 bytes"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(OptionError, match=words):
            make_index(folder, {"all": records(1, 9)}, capacity=128, **(given_ | changed))


def test_weights_are_found_in_a_log(tmp_path: Path) -> None:
    """Peaks that follow the weights, 2 packs a step: the fit finds them, and holds every step."""
    index = make_index(tmp_path, {"all": records(5, 900)}, capacity=128, global_batch=2)
    rng = np.random.default_rng(1)
    own = bytes_of(index)
    now: list[int] = []
    log = StepLog(tmp_path / "log", PackSampler(index), memory=lambda: now[-1])
    for step in range(log.sampler.num_steps):
        heaviest = own[log.sampler.packs_of_step(step)].max()
        now.append(int(heaviest * (1 - rng.random() / 1e3)))
        log.end_step(step)
    log.close()
    found = fit_memory(str(tmp_path / "log"))
    names = ("per_token", "per_patch", "per_sample", "fixed")
    for name, value in zip(names, WEIGHTS.values(), strict=True):
        assert found[name] == pytest.approx(value, rel=0.1), name
    packs = index.packs(["padded_length", "vision_patches", "num_samples"]).to_pylist()
    estimates = [
        found["per_token"] * p["padded_length"] + found["per_patch"] * p["vision_patches"]
        + found["per_sample"] * p["num_samples"] + found["fixed"] for p in packs
    ]  # fmt: skip
    for step, peak in enumerate(now):
        assert max(estimates[k] for k in log.sampler.packs_of_step(step)) >= peak - 1


def test_a_log_without_memory_or_with_one_kind_of_step_ends_in_a_sentence(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": records(5, 90)}, capacity=128, global_batch=2)
    log = StepLog(tmp_path / "none", PackSampler(index), memory=lambda: None)
    for step in range(log.sampler.num_steps):
        log.end_step(step)
    log.close()
    with pytest.raises(OptionError, match="has 0 steps with their memory"):
        fit_memory(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no log"):
        fit_memory(str(tmp_path / "empty"))
    texts = [record(n, [64]) for n in range(40)]  # equal packs, no patches: sums of zero
    (tmp_path / "equal").mkdir()
    equal = make_index(tmp_path / "equal", {"all": texts}, capacity=128, global_batch=2)
    log = StepLog(tmp_path / "same", PackSampler(equal), memory=lambda: 10**9)
    for step in range(log.sampler.num_steps):
        log.end_step(step)
    log.close()
    found = fit_memory(str(tmp_path / "same"))
    assert found["per_token"] * 128 + found["per_sample"] * 2 + found["fixed"] == pytest.approx(1e9)
