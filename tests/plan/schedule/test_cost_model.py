"""The cost model: weights that equal real models' matrices, by whatever way they are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from packidx import open_index, plan_packs
from packidx.errors import FormatError, OptionError
from packidx.index.cost import WEIGHTS, pack_cost
from packidx.plan.schedule.cost_model import DEFAULT_PRESET, PRESETS, CostModel, parse

TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 160_000,
}


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
    cost = parse(preset)
    assert cost.llm_linear / 6 - output == pytest.approx(billions * 1e9, rel=0.015)


def test_every_preset_is_sound_and_the_default_is_one() -> None:
    assert DEFAULT_PRESET in PRESETS
    for name in PRESETS:
        cost = parse(name)
        assert (cost.vit_linear > 0) == (name != "text-8b")
        assert CostModel.from_json(json.loads(json.dumps(cost.to_json()))) == cost
    tower = 32 * 14 * 14 * 3 * 2 * 1280 / 32 + 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    window = 28 * 1280 * 64
    merger = (5120 * 5120 + 5120 * 3584) / 4
    assert parse("qwen2.5-vl-7b").vit_linear == 6 * (tower + merger) + 12 * window


FLAT_QWEN2_VL = {
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
    "vocab_size": 152064,
}
SPARSE_GEMMA3 = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}


@pytest.mark.parametrize(
    ("config", "preset"), [(FLAT_QWEN2_VL, "qwen2-vl-7b"), (SPARSE_GEMMA3, "gemma3-4b")]
)
def test_config_files_of_hub_checkpoints(config: dict[str, Any], preset: str) -> None:
    """Flat ones, and ones that leave out what the class assumes."""
    assert CostModel.from_config(config) == parse(preset)


def test_what_is_frozen_costs_less() -> None:
    whole, config = parse(DEFAULT_PRESET), PRESETS[DEFAULT_PRESET]
    vision = CostModel.from_config(config, ("vision",))
    assert vision.llm_linear == whole.llm_linear and vision.vit_attention * 3 == whole.vit_attention
    both = CostModel.from_config(config, ("vision", "projector"))
    assert both.vit_linear * 3 == whole.vit_linear
    projector = (5120 * 5120 + 5120 * 3584) / 4
    assert vision.vit_linear - both.vit_linear == pytest.approx(4 * projector)
    # Gradients pass through a frozen language model to what is trained in front of it.
    language = CostModel.from_config(config, ("language",))
    assert language.llm_linear * 3 == whole.llm_linear * 2
    assert language.llm_attention == whole.llm_attention
    # Behind a trained tower a frozen projector passes gradients on.
    passing = CostModel.from_config(config, ("projector",))
    assert whole.vit_linear - passing.vit_linear == pytest.approx(2 * projector)
    assert parse(f"{DEFAULT_PRESET},frozen=vision+projector") == both


def test_other_kinds_of_layers() -> None:
    text = TEXT | {"vocab_size": 1000}
    attention, mlp, head = 48 * (48 + 2 * 16 + 48), 3 * 48 * 80, 48 * 1000
    plain = CostModel.from_config(text)
    assert plain.llm_linear == 6 * (4 * (attention + mlp) + head)
    mistral = CostModel.from_config(text | {"model_type": "mistral", "sliding_window": 9})
    assert (mistral.llm_attention, mistral.llm_windowed) == (0, plain.llm_attention)
    later = text | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
    assert CostModel.from_config(later).llm_windowed * 4 == plain.llm_attention
    latent = text | {
        "kv_lora_rank": 10,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 7,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
    }
    projections = 48 * 6 * 12 + 48 * (10 + 4) + 10 * 6 * (8 + 6) + 6 * 6 * 48
    experts = 3 * 48 * 7 * (3 + 2) + 48 * 16
    deepseek = CostModel.from_config(latent)
    assert deepseek.llm_linear == 6 * (4 * projections + mlp + 3 * experts + head)
    assert deepseek.llm_attention == 6 * 4 * 6 * (12 + 6) / 2


counts = st.integers(0, 10**6)


@given(st.lists(st.tuples(counts, counts, counts, counts), max_size=5), st.integers(0, 50))
def test_the_cost_of_a_pack(rows: list[tuple[int, ...]], scale: int) -> None:
    table = np.array(rows, np.int64).reshape(-1, 4)
    names = ("length", "attention_cost", "vision_patches", "vision_cost")
    columns = dict(zip(names, table.T, strict=True))
    llm, vit = CostModel(3, scale, 0, 0, 5, 7).of(columns)
    assert llm.dtype == vit.dtype == np.float64
    assert llm.tolist() == [3 * row[0] + scale * row[1] for row in rows]
    assert vit.tolist() == [5 * row[2] + 7 * row[3] for row in rows]


def test_unknown_columns_count_nothing() -> None:
    llm, vit = CostModel(llm_linear=2).of({"length": np.array([3, 4]), "vision_cost": None})
    assert llm.tolist() == [6, 8] and vit.tolist() == [0, 0]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 300))
def test_windowed_layers_are_charged_enough_and_seldom_more(
    lengths: list[int], window: int
) -> None:
    """Against token by token: as many as it sees of its sample within the window."""
    columns = {
        "length": np.array([sum(lengths)]),
        "attention_cost": np.array([sum(one * one for one in lengths)]),
    }
    charged = float(CostModel(0, 0, 1, window).of(columns)[0][0])
    # The continuum of l²/2: token t of a sample sees min(t, window).
    seen = 2 * sum(
        one * one / 2 if one <= window else one * window - window * window / 2 for one in lengths
    )
    assert charged >= seen * (1 - 1e-12)
    if max(lengths) <= window or len(set(lengths)) == 1:
        assert charged == pytest.approx(seen)
    assert charged <= min(columns["attention_cost"][0], 2 * window * sum(lengths)) * (1 + 1e-12)


def test_weights_on_the_command_line() -> None:
    assert parse("llm_linear=2,vit_linear=1e3") == CostModel(llm_linear=2, vit_linear=1000)
    changed = parse("qwen3-vl-8b,vit_linear=0")
    assert changed.vit_linear == 0
    assert changed.llm_linear == parse("qwen3-vl-8b").llm_linear


@pytest.mark.parametrize("kind", ["folder", "config of another model", "no config"])
def test_a_name_is_a_name_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    words = (DEFAULT_PRESET, f"{DEFAULT_PRESET},vit_linear=0", "llm_linear=2")
    wanted = [parse(word) for word in words]
    config = json.dumps(PRESETS["text-8b"])
    for word in words:
        if kind == "folder":
            (tmp_path / word).mkdir()
        else:
            (tmp_path / word).write_text("no JSON" if kind == "no config" else config)
    monkeypatch.chdir(tmp_path)
    assert [parse(word) for word in words] == wanted
    pq.write_table(pa.table({"length": [5]}), "l.parquet")
    plan_packs("l.parquet", "i", capacity=8)
    plan_packs("l.parquet", "j", capacity=8, cost=DEFAULT_PRESET)
    models = [open_index(one).manifest["options"]["cost_model"] for one in ("i", "j")]
    assert models == [wanted[0].to_json()] * 2


def test_paths_of_configs_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("text-8b")
    frozen = parse("text-8b,vit_linear=3")
    for name in ("plain", DEFAULT_PRESET, "lr=1", "a,b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(PRESETS["text-8b"]))
        assert parse(str(folder)) == parse(f"{folder}/config.json") == model
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["text-8b"]))
    monkeypatch.chdir(tmp_path)
    for word in (f"./{DEFAULT_PRESET}", "plain", "config.json", "lr=1", "."):
        assert parse(word) == model
    assert parse("plain,vit_linear=3") == parse(f"./{DEFAULT_PRESET},vit_linear=3") == frozen


BAD = [
    ("x" * 300, "is no preset and no file"),
    ("qwen9", "'qwen9' is no preset and no file: give a preset .*qwen2.5-vl-7b"),
    ("llm_linear=x", "llm_linear is 'x'"),
    ("llm_linear=-1", "llm_linear is -1.0: it must be finite and at least 0"),
    ("llm_linear=nan", "llm_linear is nan"),
    ("llm_linear=inf", "llm_linear is inf"),
    ("llm_liner=1", "no weight 'llm_liner': there are llm_linear"),
    ("qwen3-vl-8b,llm_liner=1", "no weight 'llm_liner': there are llm_linear"),
    ("qwen3-vl-8b,frozen=vit", "frozen names 'vit': there are vision, language, projector"),
    ("text-8b,frozen=language", "nothing to train"),
    ("qwen3-vl-8b,frozen=vision+language+projector", "nothing to train"),
    ("frozen=vision", "frozen needs a model"),
    ("llm_linear=1,llm_linear=2", "gives a weight twice"),
    ("llm_linear=1,what", "'what', which is no weight"),
    ("vit_linear=1", "costs nothing in the language model"),
    ("llm_windowed=1", "give llm_window"),
]


@pytest.mark.parametrize(("word", "message"), BAD)
def test_bad_words(word: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(word)


def test_bad_config_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "cannot be read as a model's config.json"),
        ("[]", "holds no JSON object"),
        ('{"hidden_size": 8}', "text_config has num_hidden_layers None"),
        ('{"hidden_size": "8"}', "text_config has hidden_size '8'"),
        ('{"hidden_size": {}, "num_attention_heads": 1}', "text_config has hidden_size {}"),
        ('{"hidden_size": 8, "num_hidden_layers": 0}', "text_config has num_hidden_layers 0"),
        ('{"text_config": [1]}', "must be JSON objects"),
        (json.dumps(TEXT | {"layer_types": ["mamba"] * 4}), "'mamba' layers"),
        (json.dumps(TEXT | {"hidden_size": 8.5}), "hidden_size 8.5"),
    ):
        path.write_text(text)
        with pytest.raises(OptionError, match=message):
            parse(str(path))
    with pytest.raises(OptionError, match="gone.json cannot be read"):
        CostModel.from_config(tmp_path / "gone.json")


def test_weights_of_a_manifest_are_checked() -> None:
    good = dict.fromkeys(WEIGHTS, 1.0)
    columns = {"length": np.array([1])}
    pack_cost(good, columns)
    for bad in (good | {"more": 1.0}, good | {"llm_linear": "1"}, good | {"vit_linear": -1.0}, {}):
        with pytest.raises(FormatError, match="cost"):
            pack_cost(bad, columns)
