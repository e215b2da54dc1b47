"""A folder of output takes the place that was named, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packidx.errors import OptionError
from packidx.io.output_folder import OutputFolder, replacing
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


@pytest.fixture
def output(tmp_path: Path) -> OutputFolder:
    folder = OutputFolder(str(tmp_path / ".out.new"))
    Path(folder.table).mkdir(parents=True)
    Path(folder.table, "a.bin").write_bytes(b"one")
    return folder


def test_what_is_finished_stays_for_the_same_job_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    for identity, known in (("1", None), ("1", {"rows": 3}), ("2", None)):
        with (
            pytest.raises(KeyboardInterrupt),
            replacing(path, KIND, identity) as output,
        ):
            assert output.finished("a") == known
            assert os.listdir(output.table) == ([] if known is None else ["a.bin"])
            Path(output.table, "a.bin").write_bytes(b"one")
            output.finish("a", {"rows": 3})
            raise KeyboardInterrupt


def test_what_is_no_part_of_the_output_is_removed(output: OutputFolder) -> None:
    Path(output.table, "folder", "inner").mkdir(parents=True)
    Path(output.table, ".half").touch()
    output.keep(["a.bin"])
    assert os.listdir(output.table) == ["a.bin"]
    output.keep(())
    assert os.listdir(output.table) == []


def test_of_two_runs_one_makes_the_output(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with replacing(path, KIND, "1" * 64) as first:
        Path(first.table, "a").touch()
        with (
            pytest.raises(OptionError, match=f"another run is making the export at {path}"),
            replacing(path, KIND, "1" * 64),
        ):
            pass
    assert os.listdir(path) == ["a"]
    assert os.listdir(tmp_path) == ["out"]
