"""Preference pairs are not written back with counts: a record has two sides, and one count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packidx.errors import OptionError
from packidx.precompute.api import precompute


def test_a_side_of_pairs_is_not_written_back(tmp_path: Path) -> None:
    pair = {"prompt": "Which?", "chosen": "This.", "rejected": "That."}
    (tmp_path / "a.jsonl").write_text(json.dumps(pair) + "\n")
    mix = tmp_path / "mix.json"
    mix.write_text(json.dumps({"a": {"file_name": "a.jsonl", "pair": "chosen"}}))
    with pytest.raises(OptionError, match="the mix says `pair` of a, and a record that is written"):
        precompute([str(mix)], tmp_path / "out", "processor")
    assert not (tmp_path / "out").exists()
