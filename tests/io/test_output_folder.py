"""A folder of output takes the place that was named, and no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
    folder = OutputFolder(str(tmp_path / ".out.new-0"), "1" * 64)
    Path(folder.table).mkdir(parents=True)
    Path(folder.notes).mkdir()
    Path(folder.table, "a.bin").write_bytes(b"one")
    folder.finish("a", {"rows": 3}, [os.path.join(folder.table, "a.bin")])
    return folder


def rows(facts: dict[str, Any]) -> int:
    return int(facts["rows"])


def test_a_finished_part_is_taken_over_by_the_same_job_alone(output: OutputFolder) -> None:
    assert output.finished("a", rows) == 3
    assert output.facts("a") == {"rows": 3}
    assert output.num_finished() == 1
    assert output.finished("b", rows) is None
    assert OutputFolder(output.path, "2" * 64).finished("a", rows) is None


def test_a_part_whose_file_is_another_is_done_again(output: OutputFolder) -> None:
    path = Path(output.table, "a.bin")
    stat = path.stat()
    path.rename(path.with_name("moved"))
    assert output.finished("a", rows) is None
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # another file of the same size and age
    assert output.finished("a", rows) is None
    path.with_name("moved").rename(path)
    assert output.finished("a", rows) == 3


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"files": [], "facts": {}}'])
def test_a_damaged_note_is_none(output: OutputFolder, text: str) -> None:
    Path(output.notes, "a.json").write_text(text)
    assert output.finished("a", rows) is None


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
