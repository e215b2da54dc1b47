"""What a model's `get_rope_index` takes of a sample, and whether it saw the sample's media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packidx.encode.imports import import_torch
from packidx.errors import MismatchError

if TYPE_CHECKING:
    import torch

_SECONDS = ("video_second_per_grid", "second_per_grid_ts")
_MERGED = 4  # patches per side that at most become one token


def arguments(
    taken: Mapping[str, Any], config: Any, processor: Any, sample: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """What `get_rope_index` takes of the sample, as the model's own forward hands it over."""
    torch = import_torch()
    input_ids = torch.as_tensor(sample["input_ids"]).reshape(1, -1)
    given: dict[str, Any] = {**sample, "input_ids": input_ids}
    given["attention_mask"] = torch.ones_like(input_ids)
    if "mm_token_type_ids" in taken:
        types = sample.get("mm_token_type_ids")
        types = _types(input_ids, config, processor) if types is None else types
        given["mm_token_type_ids"] = torch.as_tensor(types).reshape(1, -1)
    seconds = next((sample[key] for key in _SECONDS if key in sample), None)
    if seconds is not None:
        given["second_per_grids"] = given["second_per_grid_ts"] = torch.as_tensor(seconds)
    if "audio_seqlens" in taken:
        heard = sample.get("feature_attention_mask")
        given["audio_seqlens"] = None if heard is None else torch.as_tensor(heard).sum(-1)
        given["use_audio_in_video"] = _sounds_inside(input_ids[0].tolist(), config)
    return {name: given[name] for name in taken if given.get(name) is not None}


def check_sides(name: str, rows: torch.Tensor, sample: Mapping[str, torch.Tensor]) -> None:
    """Some models find media by the markers around them, and without those see none, in silence.

    Args:
        name: of the model's class.
        rows: the positions that it made, ``[rows, T]``.

    Raises:
        MismatchError: all rows are alike, and there is a medium of several rows and columns.
    """
    grids = [sample[key] for key in ("image_grid_thw", "video_grid_thw") if key in sample]
    largest = max((int(grid[:, 1:].amin(-1).max()) for grid in grids if len(grid)), default=0)
    if largest > _MERGED and bool((rows == rows[:1]).all()):
        raise MismatchError(
            f"{name} gives this sample's media positions of one dimension: it does not find them;"
            " let the chat template write the markers around them that the checkpoint's own does"
        )


def _types(input_ids: torch.Tensor, config: Any, processor: Any) -> Any:
    """1 on an image's tokens, 2 on a video's, else 0."""
    if hasattr(processor, "create_mm_token_type_ids"):
        return processor.create_mm_token_type_ids(input_ids.tolist())
    return input_ids.eq(config.image_token_id).int() + 2 * input_ids.eq(config.video_token_id).int()


def _sounds_inside(ids: Sequence[int], config: Any) -> bool:
    """Whether a video's tokens begin with those of its sound."""
    pair = (config.vision_start_token_id, config.audio_start_token_id)
    return pair in zip(ids, ids[1:], strict=False)
