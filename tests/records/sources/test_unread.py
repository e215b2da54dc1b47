"""Files of a folder that look like data and are not read: named, and never left out in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from packidx_cli.main import cli
from record_files import tar_of

from packidx import estimate_lengths

GOOD = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So."}]}'


def folder_with(folder: Path, *names: str) -> Path:
    folder.mkdir()
    (folder / "shard-000.tar").write_bytes(tar_of([("0.json", GOOD)]))
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"data")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("shard-001.tar.gz", "shard-001.tgz", "shard-001.tar.zst", "shard-001.tar.lz4"),
        *("a.jsonl.bz2", "a.json.xz", "a.csv.lz4", "a.parquet.gz", "a.txt.gz", "sub/a.arrow.zst"),
        *("a.zip", "a.7z", "a.rar", "a.tbz2", "a.txz", "a.JSONL", "A.TAR", "a.Zip", "a.tfrecord"),
    ],
)
def test_data_in_a_form_that_is_not_read_is_told(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path / "set", name)
    summary = estimate_lengths(f"mine={folder}", tmp_path / "out", workers=1)
    assert summary.num_samples == 1
    assert summary.not_read == [f"1 file of {folder} is in a form that packidx does not read"]
    assert summary.warnings == [
        f"1 file of {folder} looks like data and is not read: {name!r}; unpack it to a form that "
        "packidx reads, or move it out of the folder"
    ]


def test_many_such_files_are_counted_and_some_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "set", *(f"b/{number}.zip" for number in range(1200)))
    sources = [str(folder), str(folder_with(tmp_path / "other", "a.tgz"))]
    summary = estimate_lengths(sources, tmp_path / "out", workers=1)
    assert summary.not_read[0] == (
        f"1,200 files of {folder} are in a form that packidx does not read"
    )
    assert len(summary.not_read) == len(summary.warnings) == 2
    named = "'b/0.zip', 'b/1.zip', 'b/10.zip' and 1,197 more; unpack them"
    assert (
        f"1,200 files of {folder} look like data and are not read: {named}" in (summary.warnings[0])
    )
    again = estimate_lengths(sources, tmp_path / "out", workers=1)
    assert (again.existed, again.not_read) == (True, summary.not_read)


def test_what_lies_beside_data_on_purpose_is_not_told(tmp_path: Path) -> None:
    beside = ["README", "README.md", "LICENSE.txt", "a.jpg", "a.png", "a.mp4", "a.idx", "a.tar.idx"]
    beside += ["b.nii.gz", "b.svg.gz", ".hidden.tar.gz", ".cache/a.zip", "mix.yaml", "notes.pdf"]
    folder = folder_with(tmp_path / "set", *beside)
    summary = estimate_lengths(str(folder), tmp_path / "out", workers=1)
    assert (summary.num_samples, summary.not_read, summary.warnings) == (1, [], [])
    for name in ("info.json", "meta.json"):  # a configuration and a mix
        (folder / name).write_text('{\n"a": {"file_name": "a.tar"}\n}')
    told = f"2 files of {folder} hold one JSON object and no records: 'info.json', 'meta.json'"
    assert estimate_lengths(str(folder), tmp_path / "new", workers=1).not_read == [told]


def test_the_command_names_them(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "set", "shard-001.tar.gz")
    result = CliRunner().invoke(cli, ["estimate", str(folder), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0
    told = " ".join(result.stdout.split())
    assert f"not read 1 file of {folder} is in a form that" in told
    assert f"warning: 1 file of {folder} looks like data and is not read" in result.stderr
    assert "'shard-001.tar.gz'" in result.stderr
