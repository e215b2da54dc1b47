"""Where a media reference leads on this machine, and whether it may."""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
import urllib.parse

from packidx import storage
from packidx.errors import BadRecord, SourceError
from packidx.records.lmdb_store import SEPARATOR, data_file, split_reference

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_STORES = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "obs", "cos", "tos")
    + ("hf", "hdfs", "webhdfs", "memory")
)
"""Schemes of stores that a record may name; of any other place, only what its root states."""


def resolve(ref: str, root: str, *, confined: bool) -> str | bytes:
    """Where a media reference leads.

    Args:
        ref: a path, a URL of an object store, a ``file://`` URL, a ``data:`` URI, or
            ``path.lmdb::key``, of which the path is resolved and the key kept.
        root: the folder, or the URL, that relative paths start from.
        confined: a media root was stated, and nothing outside it (symbolic links followed) is read.
            Otherwise absolute paths and URLs are allowed; a relative path stays below `root`
            always.

    Returns:
        A path on disk or a URL, not checked to exist, or the bytes of a ``data:`` URI.

    Raises:
        BadRecord: ``media_outside_root``, ``media_remote``, ``missing_media`` or ``broken_media``.
    """
    scheme = _SCHEME.match(ref)
    if scheme is not None:
        if scheme[1].lower() == "data":
            return data_uri(ref)
        if scheme[2]:
            ref = _place_of(ref, scheme[1].lower(), root)
    if not ref or "\0" in ref:
        raise BadRecord("missing_media", f"{shortened(ref)!r} is no path")
    if (entry := split_reference(ref)) is not None:
        return SEPARATOR.join((_database(entry[0], root, confined), entry[1]))
    return _placed(ref, root, confined)


def _database(path: str, root: str, confined: bool) -> str:
    place = _placed(path, root, confined)
    if storage.is_url(place):
        return place
    if confined and not _is_inside(real_folder(data_file(place)), real_folder(root)):
        raise BadRecord("media_outside_root", f"{shortened(path)!r} is not inside the media root")
    return place


def _placed(ref: str, root: str, confined: bool) -> str:
    path = storage.join(root, ref)
    if storage.is_url(path):  # it has no links, so what ".." means is all there is to see
        path = storage.absolute(path)
        free = not confined and storage.is_url(ref)
        inside = free or path.startswith(absolute_folder(root).rstrip("/") + "/")
    elif confined:
        inside = _is_inside(_real_path(path), real_folder(root))
    else:
        inside = os.path.isabs(ref) or _is_inside(os.path.abspath(path), absolute_folder(root))
    if not inside:
        own = "" if confined else " (its shard's own folder; --media-root states another)"
        text = f"{shortened(ref)!r} is not inside the media root{own}"
        raise BadRecord("media_outside_root", text)
    return path


def data_uri(ref: str) -> bytes:
    """The bytes of a ``data:`` URI.

    Raises:
        BadRecord: ``broken_media``.
    """
    head, comma, body = ref.partition(",")
    if not comma:
        raise BadRecord("broken_media", "a data: URI without a comma")
    if not head.lower().endswith(";base64"):
        return urllib.parse.unquote_to_bytes(body)
    try:
        return base64.b64decode(urllib.parse.unquote_to_bytes(body), validate=True)
    except (binascii.Error, ValueError):
        raise BadRecord("broken_media", "a data: URI whose base64 is broken") from None


def _place_of(ref: str, scheme: str, root: str) -> str:
    """The path of a ``file://`` URL; a store's URL as it is."""
    if scheme != "file":
        if scheme in _STORES or root.startswith(f"{scheme}://"):
            return _without_password(ref)
        text = f"{shortened(ref)!r} is not on this machine: download it first and refer to the file"
        raise BadRecord("media_remote", text)
    url = urllib.parse.urlsplit(ref)
    if url.netloc not in ("", "localhost"):
        raise BadRecord(
            "media_remote", f"{shortened(ref)!r} names another machine: download it first"
        )
    return urllib.parse.unquote(url.path)


def _without_password(ref: str) -> str:
    try:
        storage.refuse_password(ref)
    except SourceError as error:
        raise BadRecord("media_remote", str(error)) from None
    return ref


@functools.lru_cache(maxsize=1 << 14)
def real_folder(path: str) -> str:
    """`os.path.realpath` of a folder (or a database), remembered."""
    return os.path.realpath(path)


@functools.lru_cache(maxsize=1 << 14)
def absolute_folder(folder: str) -> str:
    return storage.absolute(folder)


def _real_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    if not folder or name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    return f"{real_folder(folder)}/{name}"


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


def shortened(text: str, limit: int = 200) -> str:
    """`text`, cut where it is too long for an error's detail."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
