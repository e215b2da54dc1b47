"""Which errors may be gone at the next attempt."""

from __future__ import annotations

import errno

# What reads records brings Pillow: it is imported when a record is read, so that `import
# packidx.torch` costs little more than torch.

# Errors of a file or of its reader that waiting does not mend.
_LASTING = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS}
    | {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EBADF, errno.ENODEV, errno.ENXIO}
)


def is_transient(error: BaseException) -> bool:
    """Whether an input or output error is behind `error` that may be gone at the next attempt.

    A missing or forbidden file is none, nor is what Pillow raises as OSError without a number: an
    image that cannot be decoded.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, TimeoutError | ConnectionError):
            return True
        if isinstance(current, OSError) and current.errno not in (None, *_LASTING):
            return True
        current = current.__cause__ or current.__context__
    return False
