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
    spec = importlib.util.spec_from_file_location("models", REPO / "tools" / "models.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    spec.loader.exec_module(module)
    return module


models = load_example()
PAGE = (REPO / "docs" / "models.md").read_text(encoding="utf-8")
SAME_RELEASE = models.release_of(PAGE) == transformers.__version__


NAMES = [name for name in models.processor_classes() if name not in models.NOT_BUILT]
PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_exact_length_differs_and_the_page_says_what_is_so(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other conversations than the page's: 68, where it has 196."""
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    records = models.conversations(2, tmp_path / "images", 20, 8)
    results = list(models.outcomes(tmp_path, records, NAMES[part::PARTS]))
    assert {result.name: result.first for result in results if result.num_exact_different} == {}
    assert any(result.num_compared >= 20 for result in results)
    if SAME_RELEASE:
        page = models.verdicts(PAGE)
        said = {result.name: tuple(map(best_word, result.says.values())) for result in results}
        assert said == {name: tuple(map(best_word, page[name])) for name in said}


def first_word(verdict: str) -> str:
    """What is said of most records."""
    return verdict.split(" ")[0]


def best_word(verdict: str) -> str:
    """What is said of any: some classes refuse videos of few frames, or short sounds."""
    return "exact" if "exact" in verdict else first_word(verdict)


def test_the_page_has_as_many_exact_classes_as_is_promised() -> None:
    verdicts = models.verdicts(PAGE)
    assert len(verdicts) >= 60
    for kind, least in (("image", 50), ("video", 8), ("audio", 4)):
        at = models.KINDS.index(kind)
        assert sum(first_word(said[at]) == "exact" for said in verdicts.values()) >= least, kind
    assert "Records called exact that differ: 0." in PAGE


@pytest.mark.skipif(not SAME_RELEASE, reason="the page is about another release of transformers")
def test_the_page_has_every_class_once() -> None:
    made, classes = models.verdicts(PAGE), models.processor_classes()
    image_text = {name for name, types in classes.items() if not HEARING.keys() >= {*types}}
    assert image_text <= made.keys() | models.NOT_BUILT.keys() <= classes.keys()
    assert not made.keys() & models.NOT_BUILT.keys()
    rows = (line for line in PAGE.splitlines() if line.startswith("| `"))
    assert sum(1 for _ in rows) == len(made)
    assert "\n".join(models.isolation()) in PAGE
    assert all(f"`{model_type}`" in PAGE for name in made for model_type in classes[name])
