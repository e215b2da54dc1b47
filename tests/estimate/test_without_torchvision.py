"""Where transformers is installed and its processor cannot be loaded, for want of torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from packidx.encode import imports
from packidx.errors import MissingExtraError
from packidx.estimate import comparison, estimate_lengths
from packidx.processor.counts import NEEDS_TORCHVISION


def test_a_missing_torchvision_counts_nothing_twice(
    processors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(files: Any) -> Any:
        raise MissingExtraError(NEEDS_TORCHVISION)

    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    there = comparison.installed
    source = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    source.write_text(f"{json.dumps({'messages': turns})}\n" * 3)
    given: dict[str, Any] = {"processor": processors / "qwen2.5-vl", "workers": 1}
    with monkeypatch.context() as patch:
        patch.setattr("packidx.encode.proof._load", load)
        for module in (comparison, imports):
            patch.setattr(
                module, "installed", lambda name: None if name == "torchvision" else there(name)
            )
        first = estimate_lengths(str(source), tmp_path / "lengths", **given)
        assert first.compared == {"with": None, "reason": NEEDS_TORCHVISION}
        taken = estimate_lengths(str(source), tmp_path / "lengths", **given).reused
        assert taken is not None and taken.num_counted == 0
        patch.setattr("packidx.encode.proof.compare", None)  # what came of it is kept
        source.write_text(source.read_text() * 2)
        again = estimate_lengths(str(source), tmp_path / "lengths", **given)
        assert again.reused is not None and again.reused.reason is None
    now = estimate_lengths(str(source), tmp_path / "lengths", **given)
    assert now.compared is not None and now.compared["with"] == comparison.compared_with()
