"""Options that a sentence names, said so that they can be typed."""

from __future__ import annotations

import functools
import re

import click

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_NAMED = re.compile(r"\b(plan\w*|estimate|export|verify|packidx \w+)\b[^.:;]*$|`[a-z][^`]*$")
_FIRST = ("plan", "estimate", "verify")  # of commands that have an option of that name


def for_command(text: str, group: click.Group, name: str) -> str:
    """`text`, in which an option that command `name` lacks has the name of one before it that has
    it. What a sentence says of another command, or of another program, stays as it is."""
    if name not in group.list_commands(click.Context(group)) or not _OPTION.search(text):
        return text
    own = _options(group, name)

    def named(match: re.Match[str]) -> str:
        option = match[0]
        if option in own or _NAMED.search(text[: match.start()]):
            return option
        others = (*_FIRST, *group.list_commands(click.Context(group)))
        has_it = next((other for other in others if option in _options(group, other)), None)
        return option if has_it is None else f"packidx {has_it} {option}"

    return _OPTION.sub(named, text)


@functools.lru_cache
def _options(group: click.Group, name: str) -> set[str]:
    command = group.get_command(click.Context(group), name)
    return {text for each in command.params for text in each.opts} if command else set()
