"""Files of a folder that look like data in a form that is not read: told, so that none is missed.

A folder has much that is no data (media, a README, indexes of tars, descriptions): that is passed
over. What is packed or compressed, or is a table of another kind, may be half of a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence

from packidx.records.containers.registry import SUFFIXES
from packidx.records.containers.tar.container import COMPRESSED
from packidx.records.sources.energon import NotRead, some

_ARCHIVES = (*COMPRESSED, ".tbz", ".zip", ".7z", ".rar")
_CODECS = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".br", ".sz", ".snappy", ".z")
_TABLES = (".tfrecord", ".tfrecords", ".mds", ".avro", ".orc", ".feather", ".msgpack", ".xlsx")
_DATA = (*_ARCHIVES, *_CODECS, *_TABLES, *SUFFIXES)
_MEDIA = (".nii.gz", ".svg.gz")
"""Media that are compressed as a rule."""


def looks_like_data(name: str) -> bool:
    """Whether a file that is not read may hold records, by its name.

    Args:
        name: of a file, without its folder; no ending of it is one that is read.
    """
    lower = name.lower()  # .JSONL and .TAR are not read either
    return lower.endswith(_DATA) and not lower.endswith(_MEDIA)


def about(folder: str, names: Sequence[str]) -> NotRead:
    """What is said of such files.

    Args:
        folder: the source, as given.
        names: paths below it; at least one.
    """
    several = len(names) > 1
    files = f"{len(names):,} file{'s' if several else ''} of {folder}"
    is_, them = ("are", "them") if several else ("is", "it")
    return NotRead(
        (f"{files} {is_} in a form that packidx does not read",),
        (
            f"{files} look{'' if several else 's'} like data and {is_} not read: {some(names)}; "
            f"unpack {them} to a form that packidx reads, or move {them} out of the folder",
        ),
    )
