"""mRoPE positions of any model's sample, by the model's own `get_rope_index`."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.arrays import Int64s
from packidx.encode.imports import allow_cuda_torchvision, import_torch, transformers_class
from packidx.errors import MismatchError, OptionError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.families.base import FamilyMedia

if TYPE_CHECKING:
    import torch

_ROWS = 3  # time, height, width


def model_positions(
    processor: Any, folder: str, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Positions of one sample as its model makes them.

    The model is found by the ``config.json`` in `folder`. Without that file the modules beside the
    processor's class tell whether positions have one dimension.

    Args:
        processor: the real one.
        folder: of the checkpoint.
        sample: what the processor built: ``input_ids`` int64 ``[T]``, grids, and the like;
            ``mm_token_type_ids`` ``[T]`` if it makes them.

    Returns:
        int64 ``[3, T]``, or None if the model's positions have one dimension.

    Raises:
        OptionError: the model is not known, or its positions hang on a file that is not there.
        MismatchError: the model makes no positions of this sample.
    """
    name = type(processor).__name__
    config = _checkpoint_config(folder)
    if config is None:
        modules = [kind.__module__ for kind in type(processor).__mro__]
        own = [module for module in modules if module.startswith("transformers.models.")]
        if not own or any(map(_rope_classes, own)):
            raise OptionError(
                f"the positions of {name}'s samples may have several rows, which hang on the "
                "model's configuration: give a folder with the checkpoint's config.json"
            )
        return None
    classes = _rope_classes(type(config).__module__)
    for each in _list_configs(config):
        for kind in classes:
            if kind.config_class is type(each):
                return rope_index(kind, each, processor, sample)
    if classes or "mrope_section" in json.dumps(config.to_dict(), default=str):
        raise OptionError(
            f"{name}: the positions of {config.model_type} have several rows, and nothing in this"
            " release of transformers makes them: pass your own encode(record) callable"
        )
    return None


def rope_index(
    model_class: Any, config: Any, processor: Any, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Return `model_class.get_rope_index` of one sample, int64 ``[3, T]``.

    It reads the configuration alone: no weights are made.

    Raises:
        MismatchError: it fails, does not find the media, or its positions are not whole numbers.
        OptionError: its positions have more rows, or fewer.
    """
    name, model = model_class.__name__, object.__new__(_without_weights(model_class))
    model.config = config
    taken = inspect.signature(model.get_rope_index).parameters
    given = _make_arguments(taken, config, processor, sample)
    try:
        rows = model.get_rope_index(**given)[0]
    except Exception as error:  # foreign code: whatever it raises, there are no positions
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise MismatchError(
            f"{name} makes no positions of this sample ({reason}): its grids and tokens do not fit"
            " each other, or not the model"
        ) from error
    rows = rows[:, 0]
    if len(rows) != _ROWS:
        raise OptionError(
            f"{name} has {len(rows)} rows of positions for each token, and packs hold {_ROWS}: pass"
            " your own encode(record) callable, or train it without packing"
        )
    grids = [sample[key] for key in ("image_grid_thw", "video_grid_thw") if key in sample]
    largest = max((int(grid[:, 1:].amin(-1).max()) for grid in grids if len(grid)), default=0)
    if largest > _MERGED and bool((rows == rows[:1]).all()):
        # Some models find media by the markers around them, and without those see none, in silence.
        raise MismatchError(
            f"{name} gives this sample's media positions of one dimension: it does not find them;"
            " let the chat template write the markers around them that the checkpoint's own does"
        )
    positions: torch.Tensor = rows.long()
    if not bool((positions == rows).all()):
        raise MismatchError(
            f"{name} gives this sample's video positions between whole numbers, which no pack can"
            " hold: sample its frames at a rate that gives whole ones"
        )
    return positions


# -- the model -------------------------------------------------------------------------------------


@lru_cache
def _rope_classes(name: str) -> tuple[Any, ...]:
    """Return the classes beside a module of transformers that make positions from images: not a
    model's speaker, whose configuration has no vision. Raise an OptionError if all may be that."""
    package = name.rpartition(".")[0]
    try:
        module = import_module(f"{package}.modeling_{package.rsplit('.', 1)[1]}")
    except ModuleNotFoundError:
        return ()
    kinds = [kind for kind in vars(module).values() if hasattr(kind, "get_rope_index")]
    classes = tuple(
        kind
        for kind in kinds
        if getattr(kind, "config_class", None) and hasattr(kind.config_class(), "vision_config")
    )
    if kinds and not classes:
        raise OptionError(
            f"{package} makes positions of several rows, and none of its classes that do so has a"
            " vision_config: pass your own encode(record) callable"
        )
    return classes


@lru_cache
def _checkpoint_config(folder: str) -> Any:
    """The model's configuration, or None if its file is not in `folder`."""
    path = Path(folder, "config.json")
    values: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    model_type = values.get("model_type")
    if model_type is None:
        return None
    allow_cuda_torchvision()
    configs = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    try:
        return configs[model_type].from_pretrained(folder)
    except Exception as error:  # foreign code checks what stands in the file
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise OptionError(
            f"transformers {transformers_class('__version__')} reads no configuration of model type"
            f" {model_type!r} in {path} ({reason}), so its positions are not known: put the"
            " checkpoint's there, use another release, or pass your own encode(record) callable"
        ) from error


def _list_configs(config: Any) -> list[Any]:
    """`config` and those inside it."""
    inside = [each for each in vars(config).values() if hasattr(each, "to_dict")]
    return [config, *(deeper for each in inside for deeper in _list_configs(each))]


@lru_cache
def _without_weights(model_class: Any) -> Any:
    """Return the class with the attribute that its vision tower would have."""
    size = property(lambda model: model.config.vision_config.spatial_merge_size)
    return type(model_class.__name__, (model_class,), {"spatial_merge_size": size})


_SECONDS = ("video_second_per_grid", "second_per_grid_ts")
_MERGED = 4  # patches per side that at most become one token


def _make_arguments(
    taken: Mapping[str, Any], config: Any, processor: Any, sample: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return what `get_rope_index` takes of the sample, as the model's own forward hands it
    over."""
    torch = import_torch()
    input_ids = torch.as_tensor(sample["input_ids"]).reshape(1, -1)
    given: dict[str, Any] = {**sample, "input_ids": input_ids}
    given["attention_mask"] = torch.ones_like(input_ids)
    if "mm_token_type_ids" in taken:
        types: Any = sample.get("mm_token_type_ids")
        if types is None and hasattr(processor, "create_mm_token_type_ids"):
            types = processor.create_mm_token_type_ids(input_ids.tolist())
        elif types is None:  # 1 on an image's tokens, 2 on a video's, else 0
            types = input_ids.eq(config.image_token_id).int()
            types += 2 * input_ids.eq(config.video_token_id).int()
        given["mm_token_type_ids"] = torch.as_tensor(types).reshape(1, -1)
    seconds = next((sample[key] for key in _SECONDS if key in sample), None)
    if seconds is not None:
        given["second_per_grids"] = given["second_per_grid_ts"] = torch.as_tensor(seconds)
    if "audio_seqlens" in taken:
        heard = sample.get("feature_attention_mask")
        given["audio_seqlens"] = None if heard is None else torch.as_tensor(heard).sum(-1)
        ids: list[int] = input_ids[0].tolist()
        start = config.vision_start_token_id, config.audio_start_token_id
        given["use_audio_in_video"] = start in zip(ids, ids[1:], strict=False)
    return {name: given[name] for name in taken if given.get(name) is not None}


def mrope_positions(
    length: int,
    starts: Sequence[Sequence[int]],
    grids: Sequence[Sequence[int]],
    merge_size: int,
) -> Int64s:
    """Position ids of one sample, as `get_rope_index` of Qwen2-VL, 2.5-VL, 3-VL and GLM-V has them.

    Text counts on in all three rows alike. A medium's token at time k, row i, column j of its
    merged grid is at (start + k, start + i, start + j), and the text after it goes on from the
    grid's longer side (Qwen2-VL, arXiv:2409.12191, section 2.1). Where text stands between a
    video's frames (Qwen3-VL), each frame is a medium by itself.

    Args:
        length: tokens of the sample, media expanded.
        starts: of each medium the first token of each run of its feature tokens: one for all, or
            one for each frame.
        grids: (t, h, w) of each medium in patches before merging.
        merge_size: patches per side that make one token.

    Returns:
        int64 ``[3, length]``, starting at 0.
    """
    positions = np.empty((3, length), np.int64)
    token = position = 0
    for firsts, (times, rows, columns) in zip(starts, grids, strict=True):
        frames = [times] if len(firsts) == 1 else [1] * times
        for start, num_frames in zip(firsts, frames, strict=True):
            shape = num_frames, rows // merge_size, columns // merge_size
            text = start - token
            positions[:, token:start] = np.arange(position, position + text)
            position += text
            token = start + math.prod(shape)
            positions[:, start:token] = np.indices(shape).reshape(3, -1) + position
            position += max(shape[1:])
    positions[:, token:] = np.arange(position, position + length - token)
    return positions


def video_positions(
    sample: Mapping[str, torch.Tensor],
    files: ProcessorFiles,
    vision: FamilyMedia,
    tokens_per_second: float,
) -> torch.Tensor:
    """Positions of one sample by the installed release's own `get_rope_index`.

    Releases do not agree on it. Up to 5.0 the text after a video of Qwen2-VL or Qwen2.5-VL goes on
    after its last time, from 5.6 on from the longer side of its grid; up to 5.11 Qwen2.5-VL's
    seconds are cut to whole numbers. A model is to be trained on what its own release gives it.
    """
    assert vision.rope_model is not None and files.tokenizer is not None
    # A whole number, as configurations have it: 5.11 puts no others where positions are.
    is_whole = float(tokens_per_second).is_integer()
    per_second = int(tokens_per_second) if is_whole else tokens_per_second
    config = SimpleNamespace(
        image_token_id=files.media_token_ids["image"],
        video_token_id=files.media_token_ids["video"],
        vision_start_token_id=files.tokenizer.token_to_id("<|vision_start|>"),
        vision_config=SimpleNamespace(
            spatial_merge_size=vision.merge_size, tokens_per_second=per_second
        ),
    )
    return rope_index(transformers_class(vision.rope_model), config, None, sample)
