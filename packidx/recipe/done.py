"""What a run of a recipe has finished, noted beside what it wrote."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packidx.digests import canonical_json, digest, file_digest
from packidx.index.opening import read_head
from packidx.io import files, storage, urls
from packidx.plan.options.plan_options import PlanOptions
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
        report: whether a report was drawn.
        recipe: digest of the ``recipe.yaml`` that was written here; None where none was.
    """

    asked: str
    snapshot_id: str
    num_checks: int
    num_sampled: int
    report: bool
    recipe: str | None = None


def identity(fingerprint: str, options: PlanOptions, num_sampled: int) -> str:
    """Of everything that decides a plan of the lengths of `fingerprint`, and how it is checked."""
    asked: dict[str, Any] = dataclasses.asdict(options)
    read = {name: _content(asked[name]) for name in _FILES}
    told = {"lengths": fingerprint, "options": asked, "files": read, "sampled": num_sampled}
    return digest(canonical_json(told | {"software": software()}))


def _content(value: str | None) -> str | None:
    """The digest of the file that an option names; of one in a store none is known."""
    if value is None or not os.path.isfile(value):
        return None
    return file_digest(value)


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


def is_done(folder: str, index: str, note: Done | None, asked: str) -> bool:
    """Whether all that is asked was finished, and is what `index` has now; a report is asked for
    where one can be drawn."""
    if note is None or note.asked != asked or read_head(index) != note.snapshot_id:
        return False
    drawn = note.report and report_in(folder) is not None
    return drawn or why_no_report(folder) is not None


def report_in(folder: str) -> str | None:
    """The report that lies in `folder`, None where there is none."""
    path = urls.join(folder, REPORT)
    return path if storage.is_file(path) else None


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
