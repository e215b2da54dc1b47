"""What commands print for people: names, and what is said of them."""

from __future__ import annotations

import re


def facts_of(printed: str) -> dict[str, str]:
    """Name -> what is said of it, its lines joined; the last one of a name holds."""
    facts: dict[str, str] = {}
    name = ""
    for line in printed.splitlines():
        if found := re.fullmatch(r"(\S+(?: \S+)*)  +(\S.*)", line):
            name = found[1]
            facts[name] = found[2]
        elif name and line.startswith("   "):
            facts[name] += f" {line.strip()}"
        else:
            name = ""
    return facts
