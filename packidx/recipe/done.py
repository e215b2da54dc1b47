"""What a run of a recipe has finished, noted beside what it wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packidx.digests import canonical_json, digest, file_digest
from packidx.errors import PackidxError
from packidx.index.opening import open_index, read_head
from packidx.io import files, storage, urls
from packidx.io.copies import are_whole
from packidx.plan.options import PlanOptions
from packidx.software import installed, software

NOTE = "pack.json"
REPORT = "report.html"
_FILES = ("exclude", "cost")
"""Options whose value may be a file."""


@dataclass(frozen=True)
class Done:
    """What was finished.

    Attributes:
        asked: of what was asked: lengths, options, software, and samples to encode.
        snapshot_id: of the plan that it came to.
        num_checks: what was looked at of that plan, nothing of which was wrong.
        num_sampled: samples that were encoded for real, each as long as planned.
        report: digest of the report that was drawn; None where none was.
        recipe: digest of the ``recipe.yaml`` that was written here; None where none was.
    """

    asked: str
    snapshot_id: str
    num_checks: int
    num_sampled: int
    report: str | None
    recipe: str | None = None


def identity(fingerprint: str, options: PlanOptions, num_sampled: int) -> str:
    """Of everything that decides a plan of the lengths of `fingerprint`, and how it is checked."""
    asked: dict[str, Any] = dataclasses.asdict(options)
    read = {name: _content(asked[name]) for name in _FILES}
    told = {"lengths": fingerprint, "options": asked, "files": read, "sampled": num_sampled}
    return digest(canonical_json(told | {"software": software()}))


def _content(value: str | None) -> str | None:
    """What tells the content of the file, or of the config.json in the folder, that an option names
    or begins with; None where it names none."""
    for path in () if value is None else (value, value.partition(",")[0]):
        if storage.is_folder(path):
            path = urls.join(path, "config.json")
        if storage.is_file(path):
            return storage.stat(path).version if urls.is_url(path) else file_digest(path)
    return None


def noted(folder: str) -> Done | None:
    """The note in `folder`, None where there is none that can be understood."""
    try:
        value = json.loads(storage.read(urls.join(folder, NOTE)))
    except (OSError, ValueError):
        return None
    names = {member.name: member.type for member in dataclasses.fields(Done)}
    if not isinstance(value, Mapping) or value.keys() != names.keys():
        return None
    return Done(**value)


def is_done(folder: str, index: str, note: Done, asked: str) -> bool:
    """Whether all that is asked was finished, and is there as it was then; a report is asked for
    where one can be drawn."""
    if note.asked != asked or read_head(index) != note.snapshot_id:
        return False
    try:
        snapshot = open_index(f"{index}@{note.snapshot_id}")
    except (PackidxError, OSError):
        return False
    if not are_whole([file.within(snapshot.location) for file in snapshot.snapshot.files]):
        return False
    if note.report is None:
        return why_no_report(folder) is not None
    return digest_of(urls.join(folder, REPORT)) == note.report


def digest_of(path: str) -> str | None:
    """Of a small file here or in a store; None where there is none."""
    return digest(storage.read(path)) if storage.is_file(path) else None


def why_no_report(folder: str) -> str | None:
    """Why none is drawn into `folder`, in words; None where one is."""
    if urls.is_url(folder):
        return "it is drawn into folders of this machine, by packidx report"
    if installed("vl-convert-python") is None:
        return 'run pip install "packidx[report]"'
    return None


def note_done(folder: str, done: Done) -> None:
    """Write the note."""
    put(urls.join(folder, NOTE), json.dumps(dataclasses.asdict(done), indent=1).encode())


def put(path: str, data: bytes) -> None:
    """A whole file, here or in a store."""
    if urls.is_url(path):
        storage.write(path, data)
    else:
        files.write_atomic(path, data)
