"""Where a media reference leads on this machine, and whether it may."""

from __future__ import annotations

import base64
import functools
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import BadRecord, SourceError
from packidx.io import storage, stores, urls
from packidx.io.storage import reading
from packidx.records.media.lmdb_store import IN_DATABASE, read_value

_SNAPSHOT = re.compile(r"(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/[^/]+(?:/|$)", re.DOTALL)
_WEB = ("http", "https", "ftp")  # of which media are downloaded first

_LONGEST = 4096  # PATH_MAX of Linux; keys in S3 have 1,024 bytes


@dataclass(frozen=True, slots=True)
class MediaRoot:
    """Where the media of a shard's records may lie: nothing else is read, links resolved."""

    folder: str
    """The folder, or the URL, that relative references start from."""
    stated: bool = False
    """Whether it was stated; else it is its shard's own folder."""
    elsewhere: tuple[str, ...] = ()
    """Folders and URLs below which references may lead, besides `folder`."""


ANYWHERE = MediaRoot(".", elsewhere=("/",))
"""Of records that the user hands over, and not a data set."""


def resolve(ref: str, root: MediaRoot) -> str | bytes:
    """Return where a media reference leads.

    Args:
        ref: a path, a URL of an object store, a ``file://`` URL, a ``data:`` URI, or
            ``path.lmdb::key``.

    Returns:
        A path on disk or a URL, not checked to exist, or the bytes of a ``data:`` URI or of a value
        of a database.

    Raises:
        BadRecord: ``media_outside_root``, ``media_remote``, ``missing_media`` or ``broken_media``.
        MissingExtraError: it is in a database, and lmdb is not installed.
    """
    if ref[:5].lower() == "data:":
        head, comma, body = ref.partition(",")
        try:
            if not comma:
                raise ValueError
            data = urllib.parse.unquote_to_bytes(body)
            return base64.b64decode(data, validate=True) if head[-7:].lower() == ";base64" else data
        except ValueError:  # of base64, or of text that no bytes stand for
            raise BadRecord("broken_media", "a data: URI, or its base64, is broken") from None
    path = urls.local_path(ref)
    in_database = IN_DATABASE.fullmatch(path) if "::" in path else None
    path, key = (path, None) if in_database is None else in_database.groups()
    if not path or "\0" in path or len(path) > _LONGEST:  # looked up, it would cost or raise
        raise BadRecord("missing_media", f"{shortened(ref)!r} is not a path")
    path = urls.join(root.folder, path)
    if not urls.is_url(path):
        is_folder = key is not None and os.path.isdir(path)
        file = os.path.join(path, "data.mdb") if is_folder else path
        folder, _, name = file.rpartition("/")
        if not folder or name in ("", ".", "..") or os.path.islink(file):
            real = os.path.realpath(file)
        else:
            real = f"{_real_folder(folder)}/{name}"
        places = (root.folder, *root.elsewhere)
        if any(is_inside(real, reach(place)) for place in places if not urls.is_url(place)):
            return file if key is None else read_value(file, key, repr(shortened(ref)))
        raise _elsewhere(ref, file, root)
    try:
        urls.refuse_password(path)
    except SourceError as error:
        raise BadRecord("media_remote", str(error)) from None
    url = urls.absolute(path)  # it has no links, so what ".." means is all there is to see
    if not any(_is_below(url, place) for place in (root.folder, *root.elsewhere)):
        raise _elsewhere(ref, url, root)
    if key is not None:
        text = f"{shortened(ref)!r} is in a database in a store: copy the database to a disk"
        raise BadRecord("media_remote", text)
    return url


def _elsewhere(ref: str, path: str, root: MediaRoot) -> BadRecord:
    """Return the error of a reference that leads elsewhere, with the option to type for it."""
    reason, option = "media_remote", "--remote-media"
    text = "is in an object store, which no record may choose"
    if ref.partition("://")[0].lower() in _WEB:
        text = "is not on this machine: download it first and refer to the file"
        return BadRecord(reason, f"{shortened(ref)!r} {text}")
    if not urls.is_url(ref):
        reason, text = "media_outside_root", "is not inside the media root"
        text += "" if root.stated else " (its shard's own folder)"
        option = "--media-root" if os.path.isabs(ref) and not root.stated else option
    place = os.path.dirname(path if urls.is_url(path) else os.path.realpath(path))
    cure = f"allow it with {option} {shortened(place)} if the data is trusted"
    return BadRecord(reason, f"{shortened(ref)!r} {text}: {cure}")


def is_inside(path: str, root: str) -> bool:
    """Return whether a real path is a folder or below it."""
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


@functools.lru_cache(maxsize=1 << 14)
def reach(folder: str) -> str:
    """The real folder that what belongs to `folder` lies in: itself, or the repository whose
    snapshot in the Hub's cache it is in, where files are links to the repository's blobs."""
    match = _SNAPSHOT.match(os.path.abspath(folder))
    return os.path.realpath(match[1] if match else folder)


_real_folder: Any = functools.lru_cache(maxsize=1 << 14)(os.path.realpath)


def refuse_outside(path: str, folder: str) -> None:
    """Raise a SourceError where a file that a data set names leads out of its folder by a link."""
    if not urls.is_url(path) and not is_inside(os.path.realpath(path), reach(folder)):
        raise SourceError(
            f"{path} leads out of {folder} by a link, to {os.path.realpath(path)}: if it is to be "
            "read, name it as a source yourself"
        )


def forget_paths() -> None:
    """Resolve links anew from now on."""
    reach.cache_clear()
    _real_folder.cache_clear()


def _is_below(url: str, above: str) -> bool:
    return urls.is_url(above) and f"{url}/".startswith(urls.absolute(above).rstrip("/") + "/")


def shortened(text: str, limit: int = 200) -> str:
    """`text`, cut where it is too long for an error's detail."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def check_folder(path: str | os.PathLike[str] | None) -> str | None:
    if path is None:
        return None
    folder = os.fspath(path)
    with reading(folder):
        is_folder = storage.is_folder(urls.local_path(folder))
    if not is_folder:
        raise SourceError(f"the media root {folder} is not a folder: check the path")
    return urls.local_path(folder)


def check_remote(given: Sequence[str]) -> tuple[str, ...]:
    """`remote_media`, checked; folders by their whole paths.

    Raises:
        SourceError: one is neither a folder nor a URL that can be read.
        MissingExtraError: the package for it is not installed.
    """
    places = [given] if isinstance(given, str) else [os.fspath(place) for place in given]
    for number, place in enumerate(places):
        if os.path.isdir(path := urls.local_path(place)):
            places[number] = os.path.abspath(path)
        else:
            stores.check_url(place)
    return tuple(places)
