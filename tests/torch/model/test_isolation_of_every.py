"""Samples that real processors build, packed: every image-text model that a CPU runs tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from isolation_outcomes import (
    HOLDS,
    REFUSED,
    isolation_of,
    isolations_of,
)
from tiny_vlms import CHANGES

TOLERANCE = 1e-4  # a leak makes more than 1e-2
FAST = "exaone4_5"

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),  # torch's own
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),  # transformers' own
]


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processors")


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash", "flex"])
def test_samples_stay_apart_in_one_of_them(attention: str, processors: Path) -> None:
    isolation = isolation_of(FAST, processors, attention)
    assert isolation.holds and isolation.worst < TOLERANCE, isolation.reason


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [each for each in HOLDS if each != FAST])
def test_samples_stay_apart(model_type: str, processors: Path) -> None:
    """Under flash, and sdpa or eager, whose masks are made of the same positions: by turns."""
    masked = ("sdpa", "eager")[HOLDS.index(model_type) % 2]
    for isolation in isolations_of(model_type, processors, (masked, "flash")):
        assert isolation.holds and isolation.worst < TOLERANCE, isolation.reason


@pytest.mark.parametrize("model_type", REFUSED)
def test_others_are_refused_with_a_reason(model_type: str, processors: Path) -> None:
    isolation = isolation_of(model_type, processors)
    assert not isolation.holds and REFUSED[model_type] in isolation.reason


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
def test_gemma4_that_sees_images_in_both_directions_is_refused(
    attention: str, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "gemma4", use_bidirectional_attention="vision")
    isolation = isolation_of("gemma4", processors, attention)
    assert not isolation.holds and "in both directions" in isolation.reason


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex"])
def test_llama4_without_its_scale_stays_apart(
    attention: str, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "llama4", attn_temperature_tuning=False)
    isolation = isolation_of("llama4", processors, attention)
    assert isolation.holds and isolation.worst < TOLERANCE, isolation.reason


def change(patch: pytest.MonkeyPatch, model_type: str, **values: object) -> None:
    """Other values in the text part of the type's tiny configuration."""
    usual = CHANGES[model_type]

    def changed(config: Any) -> None:
        usual(config)
        for name, value in values.items():
            setattr(config.text_config, name, value)

    patch.setitem(CHANGES, model_type, changed)
