"""A folder of output takes the place that was named, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packidx.errors import OptionError
from packidx.io.output_folder import replacing
from packidx.io.own_files import Kind

KIND = Kind("export", "manifest.json", "packidx-export", lambda stated: stated["files"])


def test_an_empty_path_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To `os.path.realpath` it is, to `os.path.lexists` it is nothing: so nobody would check."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("kept")
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(OptionError, match="the path of the export is empty"):  # noqa: SIM117
        with replacing("", KIND, "0" * 64) as output:
            Path(output.table, "new").write_text("new")
    assert (tmp_path / "mine" / "kept").read_text() == "kept"
    assert os.listdir(tmp_path) == ["mine"]
