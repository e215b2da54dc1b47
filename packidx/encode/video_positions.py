"""mRoPE of samples with videos, where releases of transformers do not agree on it.

Up to 5.0 the text after a video of Qwen2-VL or Qwen2.5-VL goes on after its last time, from 5.6 on
from the longer side of its grid; up to 5.11 Qwen2.5-VL's seconds are cut to whole numbers. A model
is to be trained on the positions that its own release would give it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from packidx.encode.imports import transformers_class
from packidx.processor.assemble import ProcessorFiles

if TYPE_CHECKING:
    import torch


def video_positions(
    sample: Mapping[str, torch.Tensor],
    files: ProcessorFiles,
    ids: Mapping[str, int],
    tokens_per_second: float,
) -> torch.Tensor:
    """Positions of one sample by the installed release's own `get_rope_index`.

    Args:
        sample: its ``input_ids`` ``[T]`` and the image and video processors' tensors.
        files: of a family with a ``rope_model``.
        ids: of the tokens that stand for images and videos, by kind.
        tokens_per_second: of Qwen2.5-VL's videos.

    Returns:
        int64 ``[3, T]``, starting at 0.
    """
    vision = files.vision
    assert vision is not None and vision.rope_model is not None and files.tokenizer is not None
    # `get_rope_index` reads the configuration alone: no weights are made.
    model = object.__new__(transformers_class(vision.rope_model))
    model.config = SimpleNamespace(
        image_token_id=ids["image"],
        video_token_id=ids["video"],
        vision_start_token_id=files.tokenizer.token_to_id("<|vision_start|>"),
        vision_config=SimpleNamespace(
            spatial_merge_size=vision.mrope_merge_size, tokens_per_second=tokens_per_second
        ),
    )
    input_ids = sample["input_ids"][None]
    types = input_ids.eq(ids["image"]).int() + 2 * input_ids.eq(ids["video"]).int()
    given: dict[str, Any] = {**sample, "input_ids": input_ids, "mm_token_type_ids": types}
    taken = inspect.signature(model.get_rope_index).parameters
    positions: torch.Tensor = model.get_rope_index(
        **{name: given[name] for name in taken if name in given}
    )[0]
    return positions[:, 0]
