"""`--align-media`: the packs of a micro-step all have media, or none has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_packs import make_index, record

from packidx.errors import OptionError
from packidx.index import Index
from packidx.torch import PackSampler


def mixed_records(rng: np.random.Generator, images: int, texts: int) -> list[dict[str, Any]]:
    """Records with one or two small images, and records of text, in random order."""
    parts: list[list[Any]] = [[3, (4, 4), int(rng.integers(4, 30))] for _ in range(images)]
    parts += [[int(rng.integers(4, 60))] for _ in range(texts)]
    return [record(number, parts[at]) for number, at in enumerate(rng.permutation(len(parts)))]


def kinds_of(index: Index) -> np.ndarray[Any, Any]:
    return index.packs(["num_images"])["num_images"].to_numpy() > 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 20),
    images=st.integers(40, 150),
    texts=st.integers(40, 150),
    micro=st.sampled_from([(4, 2), (8, 2), (8, 4), (12, 3)]),
)
def test_no_micro_step_is_mixed_in_any_epoch(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    images: int,
    texts: int,
    micro: tuple[int, int],
) -> None:
    records = mixed_records(np.random.default_rng(seed), images, texts)
    batch, steps = micro
    folder = tmp_path_factory.mktemp("aligned")
    index = make_index(
        folder, {"all": records}, capacity=96, global_batch=batch, micro_steps=steps,
        align_media=True, schedule="stratified",
    )  # fmt: skip
    held, ranks = kinds_of(index), batch // steps
    assert held.any()
    for epoch in range(4):
        sampler = PackSampler(index, seed=seed, epoch=epoch)
        for step in range(sampler.num_steps):
            packs = np.array(sampler.packs_of_step(step)).reshape(-1, ranks)
            mixed = held[packs].any(axis=1) & ~held[packs].all(axis=1)
            assert not mixed.any(), (epoch, step)
    ids = [row for k in range(index.num_packs) for row in index.pack(k).samples]
    assert Counter(each.sample_id for each in ids) == Counter(range(len(records)))
    assert max(index.packs(["length"])["length"].to_pylist()) <= 96
    (folder / "plain").mkdir()
    plain = make_index(folder / "plain", {"all": records}, capacity=96, global_batch=batch,
                       micro_steps=steps, schedule="stratified")  # fmt: skip
    divided = index.num_packs - plain.num_packs
    assert index.snapshot.result.num_packs_divided == divided <= 2 * (ranks - 1)


def test_what_cannot_be_aligned_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one_each = [record(n, [3, (16, 16), 20]) for n in range(9)]  # one image fills a pack
    records = one_each + mixed_records(rng, 0, 40)[:40]
    options = {"capacity": 100, "align_media": True, "schedule": "stratified"}
    with pytest.raises(
        OptionError, match="1 more packs with media, and no pack has two samples with media"
    ):
        make_index(tmp_path / "a", {"all": records}, global_batch=4, micro_steps=2, **options)
    with pytest.raises(OptionError, match="align-media cannot be combined with schedule random"):
        make_index(tmp_path / "b", {"all": records}, **{**options, "schedule": "random"})


def test_a_sampler_that_would_mix_them_is_refused(tmp_path: Path) -> None:
    records = mixed_records(np.random.default_rng(3), 60, 90)
    index = make_index(
        tmp_path, {"all": records}, capacity=96, global_batch=8, micro_steps=4, align_media=True,
    )  # fmt: skip
    for options in ({"world_size": 4}, {"global_batch": 4}, {"heaviest_first": 2}):
        with pytest.raises(OptionError, match="micro-steps of one kind"):
            PackSampler(index, **options)
    assert len(PackSampler(index, world_size=2)) > 0


def test_micro_steps_of_both_kinds_are_in_every_step(tmp_path: Path) -> None:
    records = mixed_records(np.random.default_rng(3), 120, 200)
    index = make_index(
        tmp_path, {"all": records}, capacity=96, global_batch=8, micro_steps=4, align_media=True,
        group_by="media_type",
    )  # fmt: skip
    held = kinds_of(index)
    for epoch in range(3):
        sampler = PackSampler(index, epoch=epoch)
        for step in range(sampler.num_steps):
            of_step = held[sampler.packs_of_step(step)].reshape(-1, 2).any(axis=1)
            assert 0 < of_step.sum() < 4
