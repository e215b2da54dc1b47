"""Where an export may be written: what is not an export's is never replaced with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_packs import make_index, record

from packidx.errors import OptionError
from packidx.export.outputs import check_export
from packidx.index import Index
from packidx.io.own_files import Kind

KIND = Kind("export", "about", "packidx-export")


@pytest.fixture
def index(tmp_path: Path) -> Index:
    (tmp_path / "plan").mkdir()
    return make_index(tmp_path / "plan", {"a": [record(0, [5])]}, capacity=64)


def test_places_that_are_no_folder_for_it(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = f"{index.path}/snapshots/new"
    for output, says in (
        (str(tmp_path / "file"), "is not a folder"),
        (inside, "is in the index"),
        (index.path, "is itself what is exported"),
        (str(tmp_path), "which is exported"),
    ):
        with pytest.raises(OptionError, match=says):
            check_export(output, index, KIND)
    check_export(str(tmp_path / "new"), index, KIND)
