"""Files of a folder that look like data and are not read: named, and never left out in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
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
        *("a.jsonl.lz4", "a.csv.lz4", "a.parquet.gz", "a.txt.gz", "sub/a.arrow.zst"),
        *("a.zip", "a.7z", "a.rar", "a.tbz2", "a.txz", "a.JSONL", "A.TAR", "a.Zip", "a.tfrecord"),
    ],
)
def test_data_in_a_form_that_is_not_read_is_told(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path / "set", name)
    summary = estimate_lengths(f"mine={folder}", tmp_path / "out", workers=1)
    assert summary.num_samples == 1
    assert summary.warnings == [
        f"1 file(s) of {folder} not read, in a form that packidx does not read (unpack them, or "
        f"move them out of the folder): {name!r}"
    ]


def test_many_such_files_are_counted_and_some_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "set", *(f"b/{number}.zip" for number in range(1200)))
    sources = [str(folder), str(folder_with(tmp_path / "other", "a.tgz"))]
    summary = estimate_lengths(sources, tmp_path / "out", workers=1)
    assert len(summary.warnings) == 2
    assert f"1,200 file(s) of {folder} not read, in a form" in summary.warnings[0]
    assert "'b/0.zip', 'b/1.zip', 'b/10.zip' and 1,197 more" in summary.warnings[0]
    again = estimate_lengths(sources, tmp_path / "out", workers=1)
    assert (again.existed, again.warnings) == (True, summary.warnings)


def test_what_lies_beside_data_on_purpose_is_passed_over(tmp_path: Path) -> None:
    beside = ["README", "README.md", "LICENSE.txt", "a.jpg", "a.png", "a.mp4", "a.idx", "a.tar.idx"]
    beside += [".hidden.tar.gz", ".cache/a.zip", "mix.yaml", "notes.pdf"]
    folder = folder_with(tmp_path / "set", *beside)
    for name in ("info.json", "meta.json"):  # a configuration and a mix
        (folder / name).write_text('{\n"a": {"file_name": "a.tar"}\n}')
    summary = estimate_lengths(str(folder), tmp_path / "out", workers=1)
    assert (summary.num_samples, summary.warnings) == (1, [])
