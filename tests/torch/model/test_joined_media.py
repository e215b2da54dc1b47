"""A model makes of joined tensors what it makes of each sample's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from built_samples import RECORDS, processor_of
from tiny_vlms import CHANGES, tiny_vlm

from packidx.encode import ProcessorEncoder
from packidx.torch.sample.encoded import Encoded, normalise
from packidx.torch.sample.joining import join_media

ORDER = ("one image", "text", "images")
ISOLATED = "ernie4_5_vl_moe"
"""Its text model keeps samples apart."""


def _first_layers(config: Any) -> None:
    """The layers of the vision tower that are read, where there are two."""
    config.adapter_config.vision_feature_layer = [-1, -2]


def _merge_at_once(config: Any) -> None:
    config.insert_layer_id = config.vision_config.insert_layer_id = 0
    config.vision_config.patch_size = 14


NEEDED = {"molmo2": _first_layers, "minicpmv4_6": _merge_at_once}


def features(model: Any, media: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of all images, [features, dim]."""
    taken = inspect.signature(model.model.get_image_features).parameters
    made = model.model.get_image_features(**{key: media[key] for key in media if key in taken})
    made = getattr(made, "pooler_output", made)
    each = made if isinstance(made, list | tuple) else [made]
    return torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in each])


def check_logits(model: Any, samples: list[Encoded], media: Mapping[str, torch.Tensor]) -> None:
    text = torch.cat([torch.arange(sample.length) for sample in samples])
    three = torch.cat([sample.three_positions for sample in samples], dim=1)
    has_three = any(sample.mrope_positions is not None for sample in samples)
    keys = {key for sample in samples for key in sample.sequence}
    types = {key: torch.cat([one.per_token(key, 0) for one in samples])[None] for key in keys}
    joined = model(
        input_ids=torch.cat([sample.input_ids for sample in samples])[None],
        position_ids=torch.cat([text[None], three])[:, None] if has_three else text[None],
        use_cache=False,
        **types,
        **media,
    ).logits[0]
    start = 0
    for sample in samples:
        alone = model(
            input_ids=sample.input_ids[None],
            attention_mask=torch.ones_like(sample.input_ids)[None],
            use_cache=False,
            **{key: value[None] for key, value in sample.sequence.items()},
            **sample.media,
        ).logits[0]
        torch.testing.assert_close(
            joined[start : start + sample.length], alone, atol=2e-5, rtol=1e-4
        )
        start += sample.length


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [ISOLATED, "lfm2_vl", *NEEDED])
@torch.no_grad()
def test_joined_media_are_each_samples(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model_type in NEEDED:
        monkeypatch.setitem(CHANGES, model_type, NEEDED[model_type])
    processor, _ = processor_of(model_type, tmp_path)
    encode = ProcessorEncoder(processor)
    samples = [normalise(encode(RECORDS[name])) for name in ORDER]
    media = join_media([sample.media for sample in samples])
    model = tiny_vlm(model_type, processor)
    each = [features(model, sample.media) for sample in samples if sample.media]
    assert len(each) == 2 and not torch.equal(each[0][:4], each[1][:4])
    torch.testing.assert_close(features(model, media), torch.cat(each), atol=1e-5, rtol=1e-5)
    if model_type == ISOLATED:
        check_logits(model, samples, media)
    if model_type == "molmo2":  # as they are, indices point into the first sample's pixels
        own = [one.media["image_token_pooling"] for one in samples if one.media]
        wrong = features(model, {**media, "image_token_pooling": torch.cat(own)})
        assert (wrong - torch.cat(each)).abs().max() > 0.1
