"""torch is installed and the processor cannot be loaded, as torchvision is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from packidx.encode.imports import NEEDS_TORCHVISION
from packidx.errors import MissingExtraError
from packidx.estimate import compare, estimate_lengths


def test_rows_are_counted_anew_once_torchvision_is_there(
    processors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: Any) -> Any:
        raise MissingExtraError(NEEDS_TORCHVISION)

    source = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    source.write_text(f"{json.dumps({'messages': turns})}\n" * 3)
    given: dict[str, Any] = {"processor": processors / "qwen2.5-vl", "workers": 1}
    with monkeypatch.context() as patch:
        patch.setattr(compare, "load_real", load)
        first = estimate_lengths(str(source), tmp_path / "lengths", **given)
        assert first.compared == {"with": None, "reason": NEEDS_TORCHVISION}
    now = estimate_lengths(str(source), tmp_path / "lengths", **given)
    assert now.compared is not None and now.compared["computed"] == ["text"]
