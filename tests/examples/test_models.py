"""docs/models.md is true: every class that can be made offline, and what packidx says of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import transformers
from every_processor import HEARING

REPO = Path(__file__).parents[2]


def load_example() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("models", REPO / "examples" / "models.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    spec.loader.exec_module(module)
    return module


models = load_example()
PAGE = (REPO / "docs" / "models.md").read_text(encoding="utf-8")
SAME_RELEASE = models.release_of(PAGE) == transformers.__version__


@pytest.mark.slow
def test_no_exact_length_differs_and_the_page_is_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    results = list(models.outcomes(tmp_path))
    assert {result.name: result.first for result in results if result.num_exact_different} == {}
    assert len(results) >= 60
    for kind, least in (("image", 50), ("video", 8), ("audio", 4)):
        # Some refuse a record of their own: a video of one frame, a sound of few samples.
        exact = [result for result in results if result.says[kind].startswith("exact")]
        assert len(exact) >= least, kind
        assert all(result.num_compared >= models.NUM_RECORDS for result in exact)
    if SAME_RELEASE:
        assert models.verdicts(models.page(results)) == models.verdicts(PAGE)


@pytest.mark.skipif(not SAME_RELEASE, reason="the page is about another release of transformers")
def test_the_page_has_every_class_once() -> None:
    made, classes = models.verdicts(PAGE), models.processor_classes()
    image_text = {name for name, types in classes.items() if not HEARING.keys() >= {*types}}
    assert image_text <= made.keys() | models.NOT_BUILT.keys() <= classes.keys()
    assert not made.keys() & models.NOT_BUILT.keys()
    rows = (line for line in PAGE.splitlines() if line.startswith("| `"))
    assert sum(1 for _ in rows) == len(made)
    assert all(f"`{model_type}`" in PAGE for name in made for model_type in classes[name])
