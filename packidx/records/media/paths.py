"""Paths of media references on this machine, and the folders that they may lead into."""

from __future__ import annotations

import base64
import functools
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packidx.errors import BadRecord, MissingExtraError, SourceError
from packidx.io import storage, stores, urls
from packidx.io.files import refuse_open_files
from packidx.io.storage import raise_unreadable

_SNAPSHOT = re.compile(r"(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/[^/]+(?:/|$)", re.DOTALL)
_WEB = ("http", "https", "ftp")  # of which media are downloaded first

_IN_DATABASE = re.compile(r"(.*?\.l?mdb)::(.*)", re.DOTALL | re.IGNORECASE)
"""References into an LMDB database, as NeMo Automodel writes them: its path, and a key."""
_databases: dict[tuple[int, int], Any] = {}  # of this process, by device and file
_LONGEST = 4096  # PATH_MAX of Linux; keys in S3 have 1,024 bytes


@dataclass(frozen=True, slots=True)
class MediaRoot:
    """The folder in which media of a shard's records may lie; links are resolved first."""

    folder: str
    """The folder, or the URL, that relative references start from."""
    stated: bool = False
    """True if it was stated; else it is its shard's own folder."""
    elsewhere: tuple[str, ...] = ()
    """Folders and URLs below which references may lead, besides `folder`."""


ANYWHERE = MediaRoot(".", elsewhere=("/",))
"""Of records that the user hands over, and not a data set."""


def resolve_reference(ref: str, root: MediaRoot) -> str | bytes:
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
    in_database = _IN_DATABASE.fullmatch(path) if "::" in path else None
    path, key = (path, None) if in_database is None else in_database.groups()
    if not path or "\0" in path or len(path) > _LONGEST:  # looked up, it would cost or raise
        raise BadRecord("missing_media", f"{clip_text(ref)!r} is not a path")
    path = urls.join_path(root.folder, path)
    if not urls.is_url(path):
        is_folder = key is not None and os.path.isdir(path)
        file = os.path.join(path, "data.mdb") if is_folder else path
        folder, _, name = file.rpartition("/")
        if not folder or name in ("", ".", "..") or os.path.islink(file):
            real = os.path.realpath(file)
        else:
            real = f"{_real_folder(folder)}/{name}"
        places = (root.folder, *root.elsewhere)
        if any(is_inside(real, find_reach(place)) for place in places if not urls.is_url(place)):
            return file if key is None else _value_in(file, key, repr(clip_text(ref)))
        raise _outside_error(ref, file, root)
    try:
        urls.refuse_password(path)
    except SourceError as error:
        raise BadRecord("media_remote", str(error)) from None
    url = urls.to_absolute(path)  # it has no links, so what ".." means is all there is to see
    allowed = (urls.to_absolute(p) for p in (root.folder, *root.elsewhere) if urls.is_url(p))
    if not any(f"{url}/".startswith(place.rstrip("/") + "/") for place in allowed):
        raise _outside_error(ref, url, root)
    if key is not None:
        raise BadRecord("media_remote", f"{clip_text(ref)!r} is in a store: copy the database")
    return url


def _outside_error(ref: str, path: str, root: MediaRoot) -> BadRecord:
    """Return the error of a reference that leads elsewhere, with the option to type for it."""
    if ref.partition("://")[0].lower() in _WEB:
        text = "is not on this machine: download it first and refer to the file"
        return BadRecord("media_remote", f"{clip_text(ref)!r} {text}")
    reason, text = "media_remote", "is in an object store, which no record may choose"
    if not urls.is_url(ref):
        text = "is not inside the media root" + " (its shard's own folder)" * (not root.stated)
        reason = "media_outside_root"
    is_root = os.path.isabs(ref) and not root.stated and not urls.is_url(ref)
    option = "--media-root" if is_root else "--remote-media"
    place = clip_text(os.path.dirname(path if urls.is_url(path) else os.path.realpath(path)))
    cure = f"allow it with {option} {place} if the data is trusted"
    return BadRecord(reason, f"{clip_text(ref)!r} {text}: {cure}")


def is_inside(path: str, root: str) -> bool:
    """Return whether a real path is a folder or below it."""
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


@functools.lru_cache(maxsize=1 << 14)
def find_reach(folder: str) -> str:
    """The real folder that what belongs to `folder` lies in: itself, or the repository whose
    snapshot in the Hub's cache it is in, where files are links to the repository's blobs."""
    match = _SNAPSHOT.match(os.path.abspath(folder))
    return os.path.realpath(match[1] if match else folder)


_real_folder: Any = functools.lru_cache(maxsize=1 << 14)(os.path.realpath)


def refuse_outside(path: str, folder: str) -> None:
    """Raise a SourceError where a file that a data set names leads out of its folder by a link."""
    if not urls.is_url(path) and not is_inside(os.path.realpath(path), find_reach(folder)):
        text = f"{path} leads out of {folder} by a link, to {os.path.realpath(path)}"
        raise SourceError(f"{text}: name that as a source")


def forget_paths() -> None:
    """Resolve links anew from now on."""
    find_reach.cache_clear()
    _real_folder.cache_clear()


def clip_text(text: str, limit: int = 200) -> str:
    """`text`, cut where it is too long for an error's detail."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def check_places(
    media_root: str | os.PathLike[str] | None, remote_media: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the options ``media_root`` and ``remote_media``, checked; folders by whole paths.
    Raise a SourceError if one is neither a folder nor a URL that can be read."""
    root = None if media_root is None else urls.local_path(os.fspath(media_root))
    if root is not None:
        with raise_unreadable(root):
            if not storage.is_folder(root):
                raise SourceError(f"the media root {root} is not a folder: check the path")
    given = [remote_media] if isinstance(remote_media, str) else map(os.fspath, remote_media)
    places = []
    for place in given:
        is_folder = os.path.isdir(path := urls.local_path(place))
        if not is_folder:
            if not urls.is_url(place) or not urls.to_absolute(place).partition("://")[2]:
                raise SourceError(f"{place} is no folder and no URL of a store: write s3://BUCKET")
            stores.open_store(place)
        places.append(os.path.abspath(path) if is_folder else place)
    return root, tuple(places)


# -- LMDB: a database is opened once per process; a forked process opens its own ------------------


def _value_in(file: str, key: str, label: str) -> bytes:
    """A value of a database, by its key; ``missing_media`` or ``broken_media`` if it has none."""
    try:
        import lmdb
    except ImportError as error:
        text = f"reading media from LMDB needs lmdb ({error})"
        raise MissingExtraError(f'{text}: run pip install "packidx[lmdb]"') from error
    if "\0" in file or not os.path.isfile(file):
        raise BadRecord("missing_media", f"{label}: there is no such database")
    try:
        status = os.stat(file)
        identity = (status.st_dev, status.st_ino)  # a process must not open a database twice
        if identity not in _databases:
            options = {"subdir": False, "readonly": True, "lock": False, "create": False}
            _databases[identity] = lmdb.open(file, readahead=False, max_spare_txns=1, **options)
        with _databases[identity].begin(buffers=False) as transaction:
            value = transaction.get(key.encode())
    except (lmdb.BadValsizeError, UnicodeEncodeError):
        value = None  # an empty key, or one that is longer than any in a database
    except (lmdb.Error, OSError) as error:
        if "already open in this process" in str(error):
            raise SourceError(f"{file} is open in this process already: close it") from None
        refuse_open_files(error)
        text = str(error).replace(file, "the database")
        raise BadRecord("broken_media", f"{label} cannot be read: {text}") from None
    if value is None:
        raise BadRecord("missing_media", f"{label}: the database has no such key")
    return bytes(value)


def forget_databases() -> None:
    """Close this process's databases: they may have been exchanged since."""
    while _databases:
        _databases.popitem()[1].close()


os.register_at_fork(after_in_child=forget_databases)  # an environment must not cross a fork
