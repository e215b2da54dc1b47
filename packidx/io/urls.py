"""Facts that a path or URL gives by itself."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping

from packidx.errors import SourceError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"[^:/]+://[^/@:]*:(?!\d+/)[^@]*@")  # but host:9000/index@1f2e has none


def is_url(path: str) -> bool:
    """Return whether `path` is a URL of an object store; ``file://`` is none."""
    match = _URL.match(path)
    return match is not None and match[1].lower() != "file"


def refuse_password(path: str) -> None:
    """Raise a SourceError if `path` is a URL with a password in it."""
    if _PASSWORD.match(path):
        shown = path.partition("://")[0] + "://" + path.partition("@")[2]
        raise SourceError(
            f"the URL of {shown} has a password in it, which would be written into manifests: name "
            "the place alone, and give credentials where the store's own tools look for them"
        )


def local_path(path: str) -> str:
    """`path` without ``file://``, its escapes undone; any other path or URL as it is."""
    match = _URL.match(path)
    if match is None or match[1].lower() != "file":
        return path
    return urllib.parse.unquote(match[2].removeprefix("localhost"))


def join_path(folder: str, name: str) -> str:
    """`name` below `folder`, as `os.path.join`, of which either may be a URL."""
    if not is_url(folder):
        return name if is_url(name) else os.path.join(folder, name)
    if is_url(name) or os.path.isabs(name):
        return name
    return f"{folder.rstrip('/')}/{name}"


def to_absolute(path: str) -> str:
    """`path` with ``.`` and ``..`` taken out; of a file, from the root of this machine."""
    match = _URL.match(path)
    if match is None:
        return os.path.abspath(path)
    name = os.path.normpath("/" + match[2]).lstrip("/")  # ".." stops at the bucket
    return f"{match[1].lower()}://{name}"


def replace_root(uri: str, roots: Mapping[str, str]) -> str:
    """`uri` with its longest prefix in `roots` exchanged; any relative path begins with ``.``."""
    is_relative = not os.path.isabs(uri) and "://" not in uri
    for old in sorted(roots, key=len, reverse=True):
        prefix, new = old.rstrip("/"), roots[old].rstrip("/")
        is_below = uri in (prefix, old) or uri.startswith(f"{prefix}/")
        if is_below or (prefix == "." and is_relative):
            rest = (uri[len(prefix) :] if is_below else uri).lstrip("/")
            return f"{new}/{rest}" if rest else new or "/"
    return uri
