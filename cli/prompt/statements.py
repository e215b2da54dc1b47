"""Where one query ends and the next begins."""

from __future__ import annotations

import re

# What a semicolon may stand in without ending a query; comments in comments are counted apart.
_PARTS = re.compile(
    r"""
    (?<!\w)[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)  # a text with escapes
    | '[^']*' | "[^"]*"                 # a text, a name; '' in it is one more
    | \$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$
    | --[^\n]*
    | /\* | ;
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN = re.compile(r"""['"]|\$(?:[A-Za-z_]\w*)?\$""")
_COMMENT = re.compile(r"/\*|\*/")
_BLANK = re.compile(r"(?:\s+|--[^\n]*|;)+")


def statements(text: str, is_all: bool = False) -> tuple[list[str], str]:
    """Queries and commands that are complete, and what follows the last of them.

    A query ends in a semicolon outside of texts, names and comments; a command begins with a dot
    and ends with its line.

    Args:
        is_all: nothing follows `text`: what it ends in is complete, too.
    """
    listed = []
    rest = _begun(text)
    while rest:
        if rest.startswith("."):
            line, newline, rest = rest.partition("\n")
            listed.append(line.strip())
        else:
            end = _end(rest)
            if end is None:
                break
            listed.append(rest[:end].strip())
            rest = rest[end:]
        rest = _begun(rest)
    if rest and is_all:
        listed.append(rest.strip())
        rest = ""
    return listed, rest


def _begun(text: str) -> str:
    """`text` from where something is asked: behind comments, and ends of nothing."""
    at = 0
    while at < len(text):
        blank = _BLANK.match(text, at)
        if blank is not None:
            at = blank.end()
            continue
        closed = _closed(text, at + 2) if text.startswith("/*", at) else None
        if closed is None:
            break
        at = closed
    return text[at:]


def _end(text: str) -> int | None:
    """Where the first query of `text` ends, behind its semicolon."""
    at = 0
    while part := _PARTS.search(text, at):
        if _OPEN.search(text, at, part.start()):
            return None  # a text that nothing closes
        at = part.end()
        if part[0] == ";":
            return at
        if part[0] == "/*":
            closed = _closed(text, at)
            if closed is None:
                return None
            at = closed
    return None


def _closed(text: str, at: int) -> int | None:
    """Where a comment ends, in which `at` is."""
    depth = 1
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return None
