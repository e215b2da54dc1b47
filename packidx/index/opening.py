"""Opening an index by its folder or URL, with ``@ID`` or at its newest snapshot, as HEAD has it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from packidx.errors import FormatError, NotFoundInIndex, OptionError
from packidx.format.index import is_snapshot_id
from packidx.format.schema import LENGTHS_FORMAT
from packidx.index.reader import Index
from packidx.io import storage, urls
from packidx.io.output_folder import read_json_object

# Folder, and behind a second "@" a snapshot.
_ON_HUB = re.compile(
    r"(hf://datasets/[^/@]+/[^/@]+(?:@(?:refs/(?:pr|convert)/)?[^/@]+)?(?:/[^@]*)?)(@?)(.*)"
)
_BAD_HEAD = "{0} has no HEAD of a snapshot ({1!r:.50}): run `packidx plan LENGTHS -o {0}` again"


def snapshot_ids(folder: str | Path, beginning: str = "") -> list[str]:
    """Ids of all complete snapshots of an index, or of those that begin so, sorted.

    Raises:
        OSError: a store cannot be asked.
    """
    names = storage.list_names(urls.join_path(str(folder), "snapshots"))
    idents = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return [name for name in idents if is_snapshot_id(name) and name.startswith(beginning)]


def read_head(index: str | Path) -> str | None:
    """The id that HEAD names, None if there is no HEAD.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = storage.read(urls.join_path(str(index), "HEAD"))
        return text.decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


def open_index(path: str | Path | Index, roots: Mapping[str, str] | None = None) -> Index:
    """Open the newest snapshot of an index, or ``path@ID`` (a unique beginning of the id serves).

    In ``hf://datasets/org/name@revision`` the first ``@`` names a revision of the repository.

    `roots` are as `Index` has them.

    Raises:
        OptionError: `path` is something else.
        NotFoundInIndex: no index, no such snapshot, or the beginning is not unique.
        FormatError: a manifest that is broken or of a newer version.
        OSError: the store cannot be asked.
    """
    given: object = path  # anything, if types are not checked
    if not isinstance(given, str | PathLike | Index):
        kind = type(given).__name__
        raise OptionError(f"index is a {kind}: give a path, or what open_index returned")
    if isinstance(path, Index):
        return Index(path.path, path.id, {**path.roots, **(roots or {})}) if roots else path
    whole, wanted = urls.local_path(str(path)), None
    of_hub = _ON_HUB.fullmatch(whole)
    folder, at, ident = of_hub.groups() if of_hub else whole.rpartition("@")
    # A URL may name a user, too: ftp://me@host/index.
    if not at or (urls.is_url(whole) and "/" in ident) or storage.exists(whole):
        folder = whole
    else:
        wanted = ident
    snapshots = urls.join_path(folder, "snapshots")
    # Of a store, where every look is a request, this is asked only where nothing else is there.
    if not urls.is_url(folder) and not storage.is_folder(snapshots):
        below = urls.join_path(folder, "index")  # of a folder that `packidx pack` wrote
        if not storage.is_folder(urls.join_path(below, "snapshots")):
            raise _no_index(folder)
        folder, snapshots = below, urls.join_path(below, "snapshots")
    if wanted is not None:
        known = snapshot_ids(folder, wanted) if wanted else []
        if not known and not storage.is_folder(snapshots):
            raise _no_index(folder)
        if len(known) != 1:
            what = f"{len(known) or 'no'} snapshot{'s' if known else ''}"
            raise NotFoundInIndex(f"{folder} has {what} {wanted!r}: see `packidx log {folder}`")
        return Index(folder, known[0], roots)
    head = read_head(folder)
    if head is None or not is_snapshot_id(head):
        if not storage.is_folder(snapshots):
            raise _no_index(folder)
        raise NotFoundInIndex(_BAD_HEAD.format(folder, head))
    try:
        return Index(folder, head, roots)
    except FormatError:
        if head in snapshot_ids(folder, head):
            raise
        raise NotFoundInIndex(_BAD_HEAD.format(folder, head)) from None


def _no_index(folder: str) -> NotFoundInIndex:
    with contextlib.suppress(OSError):
        if (
            read_json_object(urls.join_path(folder, "manifest.json")).get("format")
            == LENGTHS_FORMAT
        ):
            return NotFoundInIndex(
                f"{folder} is a lengths table and no pack index: make one of it with `packidx plan "
                f"{folder} -o INDEX`, and name that"
            )
    what = f"{folder} does not exist"
    if urls.is_url(folder):
        what = f"there is no pack index at {folder}"
    elif storage.exists(folder):
        what = f"{folder} is not a pack index: it has no HEAD and no snapshots"
    return NotFoundInIndex(f"{what}; name the folder or URL that `packidx plan` wrote (its -o)")
