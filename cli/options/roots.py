"""`--root OLD=NEW`, the same for every command that reads data."""

from __future__ import annotations

from packidx.errors import OptionError


def parse_roots(values: tuple[str, ...]) -> dict[str, str]:
    """`{old: new}` out of ``OLD=NEW`` options.

    Raises:
        OptionError: a value without ``=``.
    """
    roots = {}
    for value in values:
        old, equals, new = value.partition("=")
        if not (old and equals and new):
            raise OptionError(f"--root {value}: write OLD=NEW, a path prefix and what replaces it")
        roots[old] = new
    return roots
