"""Positions of any model's sample are those that its own forward gives its text model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from built_samples import PER_TOKEN, RECORDS, built, built_video, image, processor_of, said
from clips import write_clip
from tiny_vlms import MROPE, tiny_config, tiny_vlm
from transformers import Qwen2Config
from transformers.models.glm46v import modeling_glm46v

from packidx.encode import positions
from packidx.encode.positions import model_positions
from packidx.errors import MismatchError, OptionError

FAST = ("cosmos3_edge", "glm46v", "qwen3_omni_moe_thinker")
SLOW = (*sorted({*MROPE} - {*FAST}), "minicpmv4_7", "qwen4_exp")
OF_THREE_ROWS = (*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
WITH_VIDEOS = (
    *("cosmos3_edge", "glm46v", "glm4v", "qwen2_5_vl", "qwen3_vl", "qwen3_omni_moe_thinker"),
    *("qwen2_5_omni_thinker", "ernie4_5_vl_moe", "minicpmv4_7"),
)
PLAIN = ("llava", "internvl", "aria", "dots3_note")


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processors")


def own_positions(model: Any, sample: dict[str, Any]) -> torch.Tensor:
    """What reaches the text model's rotary embedding, [rows, T]."""
    rows = [sample[key][None] if key in PER_TOKEN else sample[key] for key in sample]
    inputs: dict[str, Any] = dict(zip(sample, rows, strict=True))
    if model.config.model_type.endswith("_thinker"):
        inputs.pop("mm_token_type_ids", None)  # they do not take it
    seen: list[torch.Tensor] = []
    text = model.config.get_text_config()

    def note(module: Any, args: Any, kwargs: Any) -> None:
        if getattr(module, "config", None) is text:
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            seen.append(given[-1])

    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module in model.modules()
        if type(module).__name__.endswith("RotaryEmbedding")
    ]
    with torch.no_grad():
        model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"]), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert seen
    return seen[0][:, 0]


@pytest.mark.parametrize("model_type", OF_THREE_ROWS)
def test_positions_equal_the_model(model_type: str, processors: Path, tmp_path: Path) -> None:
    processor, folder = processor_of(model_type, processors)
    model = tiny_vlm(model_type, processor)
    model.config.save_pretrained(tmp_path)
    for name, record in RECORDS.items():
        sample = built(processor, folder, record)
        own = own_positions(model, sample)
        assert own.shape[0] == 3
        if name != "text":
            assert not torch.equal(own[1], own[2])
        made = model_positions(processor, str(tmp_path), sample)
        assert made is not None and made.dtype == torch.int64
        assert torch.equal(made, own.long()), name


@pytest.mark.parametrize("model_type", PLAIN)
def test_models_of_plain_positions_have_none(model_type: str, processors: Path) -> None:
    processor, folder = processor_of(model_type, processors)
    assert model_positions(processor, "-", built(processor, folder, RECORDS["one image"])) is None


def test_four_rows_are_refused(processors: Path, tmp_path: Path) -> None:
    processor, folder = processor_of("hunyuan_vl", processors)
    sample = built(processor, folder, RECORDS["one image"])
    tiny_config("hunyuan_vl", processor).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="has 4 rows of positions for each token, and packs"):
        model_positions(processor, str(tmp_path), sample)


@pytest.fixture
def glm(processors: Path, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """GLM-4.6V and a sample of its; its model's configuration lies in `tmp_path`."""
    processor, folder = processor_of("glm46v", processors)
    tiny_config("glm46v", processor).save_pretrained(tmp_path)
    return processor, built(processor, folder, RECORDS["one image"])


def test_rows_that_nothing_makes_are_refused(
    glm: tuple[Any, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup that finds no class must not end in positions of one dimension."""
    processor, sample = glm
    monkeypatch.setattr(modeling_glm46v.Glm46VModel, "config_class", Qwen2Config)
    positions._rope_classes.cache_clear()
    for given in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(OptionError, match="glm46v makes positions of several rows, and none"):
            model_positions(processor, given, sample)


def test_what_does_not_fit_the_model_is_refused(
    glm: tuple[Any, dict[str, Any]], tmp_path: Path
) -> None:
    processor, sample = glm
    for unknown in (SimpleNamespace(), processor):
        with pytest.raises(OptionError, match="several rows, which hang on .* config.json"):
            model_positions(unknown, str(tmp_path / "none"), sample)
    larger = {**sample, "image_grid_thw": sample["image_grid_thw"] + 2}
    with pytest.raises(MismatchError, match="Glm46VModel makes no positions of this sample"):
        model_positions(processor, str(tmp_path), larger)
    folder = tmp_path / "of another model"
    folder.mkdir()
    for config, message in (
        ('{"model_type": "our_own"}', "no configuration of model type 'our_own'"),
        ('{"model_type": "glm46v", "text_config": 3}', "no configuration of model type 'glm46v'"),
    ):
        (folder / "config.json").write_text(config)
        with pytest.raises(OptionError, match=message):
            model_positions(processor, str(folder), sample)


@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "qwen3_omni_moe_thinker"])
def test_seconds_of_videos_are_the_configurations(
    model_type: str, processors: Path, tmp_path: Path
) -> None:
    processor, _ = processor_of(model_type, processors)
    grid = torch.tensor([[2, 4, 4]])
    vision_start = getattr(processor, "vision_bos_token", "<|vision_start|>")
    video, start = processor.video_token_id, processor.tokenizer.encode(vision_start)[0]
    ids = [1, start, *[video] * 8, 2, 3]
    sample = {
        "input_ids": torch.tensor(ids),
        "mm_token_type_ids": 2 * torch.tensor(ids).eq(video).long(),
        "video_grid_thw": grid,
        "video_second_per_grid": torch.tensor([2.0]),
    }
    config = tiny_config(model_type, processor)
    vision = config if hasattr(config, "position_id_per_seconds") else config.vision_config
    name = next(name for name in vars(vision) if "_per_second" in name)
    setattr(vision, name, 3)
    config.save_pretrained(tmp_path)
    made = model_positions(processor, str(tmp_path), sample)
    assert made is not None
    assert made[0, 2:10].tolist() == [2] * 4 + [8] * 4  # two seconds on, three positions each
    if model_type.startswith("qwen3"):
        sample["video_second_per_grid"] = torch.tensor([0.5])
        with pytest.raises(MismatchError, match="positions between whole numbers"):
            model_positions(processor, str(tmp_path), sample)


def test_media_that_the_model_does_not_find_are_told(processors: Path, tmp_path: Path) -> None:
    """Qwen-Omni finds them by their markers; a template without these would train it in 1-D."""
    processor, folder = processor_of("qwen3_omni_moe_thinker", processors)
    tiny_config("qwen3_omni_moe_thinker", processor).save_pretrained(tmp_path)
    sample = built(processor, folder, said("See ", image(200, 200)))
    marked = model_positions(processor, str(tmp_path), sample)
    assert marked is not None and not torch.equal(marked[1], marked[2])
    start = processor.tokenizer.convert_tokens_to_ids("<vision_bos>")
    sample["input_ids"][sample["input_ids"] == start] = 5
    with pytest.raises(MismatchError, match="positions of one dimension: it does not find them"):
        model_positions(processor, str(tmp_path), sample)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*__array:DeprecationWarning")  # GLM's, Ernie's and MiniCPM's
@pytest.mark.parametrize("model_type", WITH_VIDEOS)
def test_positions_of_videos_equal_the_model(
    model_type: str, processors: Path, tmp_path: Path
) -> None:
    processor, folder = processor_of(model_type, processors)
    clip = write_clip(tmp_path / "a.mp4", frames=9, size=(96, 64))
    sample = built_video(processor, folder, clip)
    model = tiny_vlm(model_type, processor)
    model.config.save_pretrained(tmp_path)
    own = own_positions(model, sample)
    assert not torch.equal(own[1], own[2])
    made = model_positions(processor, str(tmp_path), sample)
    assert made is not None and torch.equal(made, own.long())
