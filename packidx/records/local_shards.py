"""Files in object stores, read from their copies in the local cache as if they were here.

Errors say the URL, not the copy's path, which means nothing to anybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, urls
from packidx.io.storage import unreadable


@contextlib.contextmanager
def local_shard(path: str) -> Iterator[str]:
    """A file of this machine with the content of `path`, kept for as long as the block.

    Raises:
        SourceError: it cannot be read.
    """
    if not urls.is_url(path):
        yield path
        return
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(cache.local(path))
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            yield copy
        except SourceError as error:
            raise SourceError(str(error).replace(copy, path)) from error
        except BadRecord as error:
            raise BadRecord(error.reason, error.detail.replace(copy, path)) from error
