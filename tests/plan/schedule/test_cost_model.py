"""The cost model: weights that equal real models' matrices, by whatever way they are given."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torchvision_cpu  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from packidx.format.index import CostModel
from packidx.format.manifest import decode_json
from packidx.index.cost import pack_cost
from packidx.plan.cost_model import DEFAULT_PRESET, PRESETS, parse_cost


# Parameters without embeddings, from the model cards of Qwen2.5, Qwen2.5-VL's and Qwen3's language
# models; the output matrix (hidden x vocabulary) is counted as well.
@pytest.mark.parametrize(
    ("preset", "billions", "output"),
    [
        ("qwen2.5-vl-7b", 6.53, 3584 * 152064),
        ("qwen2.5-vl-3b", 2.77, 2048 * 151936),
        ("qwen2.5-vl-72b", 70.0, 8192 * 152064),
        ("qwen3-vl-8b", 6.95, 4096 * 151936),
        ("qwen3-vl-4b", 3.6, 2560 * 151936),
        ("text-8b", 6.98, 4096 * 128256),
    ],
)
def test_presets_have_the_published_sizes(preset: str, billions: float, output: int) -> None:
    cost = parse_cost(preset)
    assert cost.llm_linear / 6 - output == pytest.approx(billions * 1e9, rel=0.015)


def test_every_preset_is_sound_and_the_default_is_one() -> None:
    assert DEFAULT_PRESET in PRESETS
    for name in PRESETS:
        cost = parse_cost(name)
        assert (cost.vit_linear > 0) == (name != "text-8b")
        assert decode_json(CostModel, json.loads(json.dumps(cost.to_json()))) == cost
    tower = 32 * 14 * 14 * 3 * 2 * 1280 / 32 + 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    window = 28 * 1280 * 64
    merger = (5120 * 5120 + 5120 * 3584) / 4
    assert parse_cost("qwen2.5-vl-7b").vit_linear == 6 * (tower + merger) + 12 * window


counts = st.integers(0, 10**6)


@given(st.lists(st.tuples(counts, counts, counts, counts), max_size=5), st.integers(0, 50))
def test_the_cost_of_a_pack(rows: list[tuple[int, ...]], scale: int) -> None:
    table = np.array(rows, np.int64).reshape(-1, 4)
    names = ("length", "attention_cost", "vision_patches", "vision_cost")
    columns = dict(zip(names, table.T, strict=True))
    word = f"llm_linear=3,llm_attention={scale},vit_linear=5,vit_attention=7"
    llm, vit = pack_cost(parse_cost(word), columns)
    assert llm.dtype == vit.dtype == np.float64
    assert llm.tolist() == [3 * row[0] + scale * row[1] for row in rows]
    assert vit.tolist() == [5 * row[2] + 7 * row[3] for row in rows]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 300))
def test_windowed_layers_are_charged_enough_and_seldom_more(
    lengths: list[int], window: int
) -> None:
    """Against token by token: as many as it sees of its sample within the window."""
    columns = {
        "length": np.array([sum(lengths)]),
        "attention_cost": np.array([sum(one * one for one in lengths)]),
    }
    weights = parse_cost(f"llm_windowed=1,llm_window={window}")
    charged = float(pack_cost(weights, columns)[0][0])
    # The continuum of l²/2: token t of a sample sees min(t, window).
    seen = 2 * sum(
        one * one / 2 if one <= window else one * window - window * window / 2 for one in lengths
    )
    assert charged >= seen * (1 - 1e-12)
    if max(lengths) <= window or len(set(lengths)) == 1:
        assert charged == pytest.approx(seen)
    assert charged <= min(columns["attention_cost"][0], 2 * window * sum(lengths)) * (1 + 1e-12)


def test_weights_on_the_command_line() -> None:
    stated = {"llm_linear": 2.0, "vit_linear": 1000.0}
    others = dict.fromkeys(parse_cost(DEFAULT_PRESET).to_json(), 0.0)
    assert parse_cost("llm_linear=2,vit_linear=1e3").to_json() == others | stated
    changed = parse_cost("qwen3-vl-8b,vit_linear=0")
    assert changed.vit_linear == 0
    assert changed.llm_linear == parse_cost("qwen3-vl-8b").llm_linear
