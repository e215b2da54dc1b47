"""fsspec: the file system of a URL, requests tried again, and which errors may be gone then."""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from packidx.errors import MissingExtraError, SourceError
from packidx.io.urls import refuse_password

_ATTEMPTS = 3  # of a request; most stores' libraries repeat what the server refuses, too
_PAUSE = 0.2  # seconds before the second attempt, twice as long before the next
# botocore would repeat each of s3fs's five attempts, so that a dead server took minutes to fail.
_S3 = {"config_kwargs": {"retries": {"max_attempts": 0}}}
# The Hub's file system reads on by a block of 5 MB behind each range; a smaller one is not taken.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3, "hf": {"block_size": 1}}

# Keys of a store's entry that tell its content, the surest first; blob_id, xet_hash: the Hub's.
_VERSIONS = (
    *("ETag", "etag", "md5", "blob_id", "xet_hash", "version_id"),
    *("LastModified", "mtime", "created"),
)

# Errors that waiting does not mend.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_LASTING_KINDS = (NotImplementedError, ImportError, TypeError, ValueError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class BehindEnd(OSError):
    """A range that begins behind a file's last byte."""


T = TypeVar("T")


def file_version(info: dict[str, Any]) -> str:
    """Return what a store's entry of a file says of its content: another text when that changes."""
    for name in _VERSIONS:
        if info.get(name) is not None:
            return str(info[name]).strip('"')
    return str(info["size"])


def call_store(path: str, method: str, *args: Any, **options: Any) -> Any:
    """Return what a method of the URL's file system returns, called again after a passing error, or
    raise an OSError."""
    system, name = open_store(path)
    return retry_request(path, functools.partial(getattr(system, method), name, *args, **options))


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL, and what it calls the file.

    fsspec keeps one per process and makes it anew after a fork (see `_leave_parent`).

    Raises:
        SourceError: the scheme is unknown.
        MissingExtraError: the package for it is not installed.
    """
    refuse_password(url)
    scheme = url.partition("://")[0].lower()
    try:
        import fsspec

        system = fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ValueError as error:
        raise SourceError(f"{url}: {error}; name a file, or a URL such as s3://") from None
    except ImportError as error:
        own = "pip install fsspec" if error.name == "fsspec" else str(error)
        pip = "pip install 'packidx[s3]'" if scheme in ("s3", "s3a") else own
        raise MissingExtraError(f"{url} needs a package that is not here: {pip}") from None
    except Exception as error:  # of a store that cannot be reached by a URL alone
        text = f"{url}: {scheme} cannot be used ({_join_words(error)}); name a file, or s3://"
        raise SourceError(text) from None
    return system, system._strip_protocol(f"{scheme}://{url.partition('://')[2]}")


def _leave_parent() -> None:
    """Let a forked child start fsspec's thread anew, without which it would wait for ever.

    fsspec does so by itself from 2025.3.1 on; before, it leaves this call to its user.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()


os.register_at_fork(after_in_child=_leave_parent)


def retry_request(path: str, call: Callable[[], T]) -> T:
    """``call()``, tried again where the connection failed.

    Raises:
        OSError: with `path` as its file name, whatever the store's library raised.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except _LASTING as error:
            raise type(error)(error.errno or errno.ENOENT, _join_words(error), path) from None
        except _LASTING_KINDS as error:
            raise OSError(errno.EINVAL, _join_words(error), path) from None
        except Exception as error:
            if type(error).__name__ in _CREDENTIALS:
                raise PermissionError(errno.EACCES, "no credentials were found", path) from None
            if _is_behind_end(error):
                raise BehindEnd(errno.EINVAL, _join_words(error), path) from None
            number = getattr(error, "errno", None) or errno.EIO
            if attempt + 1 == _ATTEMPTS or number == errno.EINVAL:
                raise OSError(number, _join_words(error), path) from error
        time.sleep(_PAUSE * 2**attempt)
    raise AssertionError("unreachable")


def _is_behind_end(error: BaseException) -> bool:
    """True if a store answers 416: aiohttp's errors have it as status, azure-core's as status_code,
    gcsfs's as code; s3fs's have botocore's as their cause."""
    facts = {**vars(error.__cause__ or error), **vars(error)}
    codes = [facts.get(name) for name in ("status", "status_code", "code")]
    if isinstance(answer := facts.get("response"), dict):
        codes.append(answer.get("Error", {}).get("Code"))
    return not {"416", "InvalidRange"}.isdisjoint(map(str, codes))


def _join_words(error: BaseException) -> str:
    named = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(named.split()) or type(error).__name__
