"""Media inside LMDB databases: ``path.lmdb::key``, as NeMo Automodel writes such references.

A database is opened once per process, read-only and without locks; a forked process opens its own.
"""

from __future__ import annotations

import os
import re
from typing import Any

from packidx.errors import BadRecord, MissingExtraError, SourceError
from packidx.io.files import refuse_open_files

IN_DATABASE = re.compile(r"(.*?\.l?mdb)::(.*)", re.DOTALL | re.IGNORECASE)
"""References into a database: its path, and a key."""

_databases: dict[tuple[int, int], Any] = {}  # of this process, by device and file


def read_value(file: str, key: str, label: str) -> bytes:
    """A value of a database, by its key.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        SourceError: other code of this process has the database open.
        MissingExtraError: the package lmdb is not installed.
    """
    try:
        import lmdb
    except ImportError as error:
        raise MissingExtraError(
            f'reading media from LMDB needs lmdb ({error}): run pip install "packidx[lmdb]"'
        ) from error
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
            text = f"{file} was opened by other code of this process: close it there"
            raise SourceError(text) from None
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
