"""The cost model, given or fitted to logged times, and schedules: steps of equal cost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from packidx_cli.main import main

from packidx.format.index import CostModel
from packidx.format.manifest import decode_json
from packidx.format.step_log import STEP_LOG, part_name
from packidx.index import Index, open_index
from packidx.index.cost import pack_cost
from packidx.permutation import draw_permutation
from packidx.plan import plan_packs
from packidx.plan.cost_model import DEFAULT_PRESET, PRESETS, parse_cost
from packidx.plan.schedule import SCHEDULES, schedule_packs


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


RANKS = 4
TRUTH = {"llm_linear": 2e-5, "llm_attention": 4e-9, "vit_attention": 5e-9, "constant": 0.06}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder, random = tmp_path_factory.mktemp("measured"), np.random.default_rng(0)
    length = np.minimum(random.lognormal(6.5, 1.0, 30_000).astype(np.int64) + 8, 8000)
    patches = np.where(random.random(30_000) < 0.5, random.integers(0, 4 * length), 0)
    table = {"length": length, "vision_patches": patches, "vision_cost": patches**2 // 4}
    pq.write_table(pa.table(table), folder / "lengths.parquet")
    options: dict[str, Any] = {"strategy": "next-fit", "schedule": "random", "global_batch": RANKS}
    options["max_samples"] = 3  # so that packs are of all sizes
    plan_packs(folder / "lengths.parquet", folder / "index", capacity=8192, **options)
    return open_index(folder / "index")


def write_log(folder: Path, index: Index) -> None:
    """The log of an epoch whose steps take as long as `TRUTH` says."""
    steps = index.duckdb(world_size=RANKS).sql(
        "SELECT step, position % 4 AS rank, length, attention_cost, vision_patches, vision_cost"
        " FROM steps WHERE step IS NOT NULL ORDER BY position"
    )
    rows = steps.to_arrow_table().to_pylist()
    random = np.random.default_rng(1)
    for start in range(0, len(rows), RANKS):
        of_step = rows[start : start + RANKS]
        costs = [
            TRUTH["llm_linear"] * row["length"]
            + TRUTH["llm_attention"] * row["attention_cost"]
            + TRUTH["vit_attention"] * row["vision_cost"]
            + TRUTH["constant"]
            for row in of_step
        ]
        seconds = max(costs) * (1 + 0.05 * random.standard_normal())
        if of_step[0]["step"] % 97 == 5:
            seconds *= 5  # a checkpoint
        for row in of_step:
            row |= {"snapshot_id": index.id, "seed": 0, "global_batch": RANKS, "session": 1}
            row |= {"epoch": 0, "world_size": RANKS, "seconds": seconds, "samples": []}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, STEP_LOG), folder / part_name(1, 0, 0))


def example() -> tuple[str, str]:
    """The command and the script of the page."""
    page = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
    lines = [line[4:] for line in page.splitlines() if line.startswith("    ") or not line]
    first = next(at for at, line in enumerate(lines) if "FROM logged_steps" in line)
    start = lines.index("import numpy as np, polars as pl")
    stop = next(at for at, line in enumerate(lines) if line.startswith('print("--cost"'))
    return lines[first], "\n".join(lines[start : stop + 1])


def test_the_example_finds_the_true_weights(
    tmp_path: Path,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "runs", index)
    command, script = example()
    words = shlex.split(command.partition(" > ")[0])
    words = [{"packs": index.path, "runs/log": "runs"}.get(word, word) for word in words]
    assert main(words[1:]) == 0
    Path("steps.csv").write_text(capsys.readouterr().out)
    assert len(script.splitlines()) <= 20
    exec(compile(script, "docs/planning.md", "exec"), {})
    word, found = capsys.readouterr().out.split()
    assert word == "--cost"
    weights = {name: float(value) for name, value in (pair.split("=") for pair in found.split(","))}
    assert weights == pytest.approx({name: TRUTH[name] for name in weights}, rel=0.05)
    lengths = Path(index.path).parent / "lengths.parquet"
    fitted = plan_packs(lengths, tmp_path / "index", capacity=8192, cost=found)
    assert fitted.snapshot.options.cost_model.llm_linear == weights["llm_linear"]


Packs = dict[str, Any]


@given(
    st.sampled_from(SCHEDULES),
    st.integers(0, 300),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_every_pack_once(
    kind: str, count: int, chunk: int, micro_steps: int, key: int, equal: bool
) -> None:
    rng = np.random.default_rng(count)
    llm = np.full(count, 2.5) if equal else rng.random(count) * 1e15
    vit = np.zeros(count) if equal else rng.random(count) * 1e14
    options: Packs = {"global_batch": chunk * micro_steps, "micro_steps": micro_steps, "key": key}
    tokens = [rng.integers(0, 9, count)]
    order = schedule_packs(kind, llm, vit, shares=tokens, **options)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, schedule_packs(kind, llm, vit, shares=tokens, **options))


@given(st.integers(2, 7), st.integers(2, 6), st.integers(1, 5), st.integers(0, 9))
def test_a_step_has_a_micro_step_of_every_stratum(
    steps: int, micro_steps: int, chunk: int, key: int
) -> None:
    """With one cost alone the cells are its quantiles, and the strata are runs of them."""
    llm = draw_permutation(steps * micro_steps * chunk, key).astype(np.float64) + 1
    options: Packs = {"global_batch": micro_steps * chunk, "micro_steps": micro_steps, "key": key}
    order = schedule_packs("stratified", llm, np.zeros_like(llm), **options)
    places = (llm[order] - 1).astype(int).reshape(steps, micro_steps, chunk)
    cells = places // chunk
    assert (cells == cells[:, :, :1]).all()  # each micro-step is one run of the sorted costs
    assert (np.diff(places, axis=2) > 0).all()  # and sorted
    strata = np.sort(cells[:, :, 0] // steps, axis=1)
    assert (strata == np.arange(micro_steps)).all()


def test_what_fills_no_step_is_a_random_choice_at_the_end() -> None:
    llm = np.arange(1000.0) + 1
    ends = []
    for key in range(30):
        order = schedule_packs("stratified", llm, llm * 0, global_batch=64, micro_steps=8, key=key)
        ends.append(order[960:])
        assert (np.diff(llm[order[960:]]) > 0).all()
    counts = np.bincount(np.concatenate(ends), minlength=1000)
    assert counts.max() <= 7 and len(set(np.concatenate(ends).tolist())) > 600
    assert 450 < np.concatenate(ends).mean() < 550


def test_the_order_never_changes() -> None:
    """Snapshots are named by their options: the same must give the same order everywhere."""
    llm = (draw_permutation(200, 1) * 37 % 101 + 5) * 1e12
    vit = (draw_permutation(200, 2) % 40) * 1e12
    shares = [draw_permutation(200, 3) % 7, draw_permutation(200, 4) % 90]
    golden = {}
    for kind in SCHEDULES:
        options: Packs = {"global_batch": 24, "micro_steps": 4, "key": 7}
        golden[kind] = schedule_packs(kind, llm, vit, shares=shares, **options)[:8].tolist()
    assert golden == GOLDEN


GOLDEN = {
    "random": [185, 123, 170, 99, 191, 64, 160, 194],
    "stratified": [189, 4, 41, 39, 20, 193, 54, 163],
}
