"""Media inside LMDB databases: ``path.lmdb::key``, as NeMo Automodel writes such references.

A database is opened once per process, read-only and without locks; a forked process opens its own.
Of one in an object store the copy in the local cache is opened.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from typing import Any

from packidx.errors import BadRecord, MissingExtraError, SourceError
from packidx.io import cache, storage, urls
from packidx.io.storage import unreadable

SEPARATOR = "::"

_REFERENCE = re.compile(r"(.*?\.l?mdb)::(.*)", re.DOTALL | re.IGNORECASE)
_DATA = "data.mdb"  # the file of a database that is a folder


_lock = threading.Lock()
_databases: dict[tuple[int, int], Any] = {}  # of this process, by device and file


def _after_fork() -> None:
    """In a forked process: an environment must not be used across a fork, nor opened twice."""
    global _lock
    _lock = threading.Lock()
    for database in _databases.values():
        database.close()  # this process's copy: without locks nothing of it is shared but the file
    _databases.clear()


os.register_at_fork(after_in_child=_after_fork)


def split_reference(ref: str) -> tuple[str, str] | None:
    """(path, key) of a reference into a database; None for any other reference."""
    if SEPARATOR not in ref:
        return None
    parts = _REFERENCE.fullmatch(ref)
    return None if parts is None else (parts[1], parts[2])


def data_file(path: str) -> str:
    """The file that a database's bytes are in: itself, or inside the folder that it is."""
    return urls.join(path, _DATA) if storage.is_folder(path) else path


def read_value(path: str, key: str, label: str) -> bytes:
    """A value of a database, by its key.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        SourceError: other code of this process has the database open.
        MissingExtraError: the package lmdb is not installed.
    """
    lmdb = _import_lmdb()
    if urls.is_url(path):
        return _remote_value(path, key, label)
    try:
        with _database(lmdb, path, label).begin(buffers=False) as transaction:
            value = transaction.get(key.encode())
    except lmdb.BadValsizeError:
        value = None  # an empty key, or one that is longer than any in a database
    except (lmdb.Error, OSError, UnicodeEncodeError) as error:
        if "already open in this process" in str(error):
            text = f"{path} was opened by other code of this process: close it there"
            raise SourceError(text) from None
        text = str(error).replace(data_file(path), "the database")
        raise BadRecord("broken_media", f"{label} cannot be read: {text}") from None
    if value is None:
        raise BadRecord("missing_media", f"{label}: the database has no such key")
    return bytes(value)


def _remote_value(url: str, key: str, label: str) -> bytes:
    try:
        file = _file_of(url)
        with cache.local(file, cache.remembered_stat(file).version) as copy:
            return read_value(copy, key, label)  # opened once, it stays readable
    except (FileNotFoundError, IsADirectoryError):
        raise BadRecord("missing_media", f"{label}: there is no such database") from None
    except OSError as error:
        raise unreadable(url, error) from error


@functools.lru_cache(maxsize=1 << 10)
def _file_of(url: str) -> str:
    return data_file(url)


def forget_databases() -> None:
    """Close this process's databases: they may have been exchanged since."""
    with _lock:
        for database in _databases.values():
            database.close()
        _databases.clear()
    _file_of.cache_clear()


def _database(lmdb: Any, path: str, label: str) -> Any:
    file = data_file(path)
    if "\0" in file or not os.path.isfile(file):
        raise BadRecord("missing_media", f"{label}: there is no such database")
    status = os.stat(file)
    identity = (status.st_dev, status.st_ino)
    with _lock:  # a process must not open a database twice, by whatever name
        database = _databases.get(identity)
        if database is None:
            options = {"subdir": False, "readonly": True, "lock": False, "create": False}
            database = lmdb.open(file, readahead=False, max_spare_txns=1, **options)
            _databases[identity] = database
        return database


def _import_lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise MissingExtraError(
            f'reading media from LMDB needs lmdb ({error}): run pip install "packidx[lmdb]"'
        ) from error
    return lmdb
