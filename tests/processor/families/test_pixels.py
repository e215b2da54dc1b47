"""The encoder's pixels are the real processor's, for families whose images become tiles or rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import family_talks
import pytest

from packidx.encode.loading import files_of, load_processor

pytestmark = pytest.mark.slow

MAKE: dict[str, Callable[[Path], Any]] = {
    "llava": tiles.llava,
    "llava_next": lambda tmp: tiles.llava_next(tmp, 4),
    "llava_onevision": lambda tmp: tiles.llava_onevision(tmp, 84),
    "gemma3": lambda tmp: tiles.gemma3(tmp, 224),
    "pixtral": tiles.pixtral,
    "mistral3": lambda tmp: tiles.pixtral(tmp, 1540, 2),
    "idefics3": lambda tmp: tiles.idefics3(tmp, 56),
    "smolvlm": lambda tmp: tiles.smolvlm(tmp, 128),
}


@pytest.mark.parametrize("name", list(MAKE))
def test_encoder(name: str, tmp_path: Path) -> None:
    processor, folder = MAKE[name](tmp_path), tmp_path / name
    files = tiles.saved(processor, folder)
    assert files_of(processor).fingerprint() == load_processor(folder).fingerprint()
    assert files.vision is not None
    rng = random.Random(name)
    frames = [4, 9] if name == "llava_onevision" else []
    talks = [family_talks.conversation(rng, [(97, 333), (40, 60)], frames) for _ in range(20)]
    assert sum(len(talk.media) > 1 for talk in talks) > 5
    names = files.vision.model_inputs
    assert family_talks.encoder_differences(folder, processor, talks, names, lists=True) == 0
