"""JSON objects as frozen dataclasses, which are written again as they were read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonObject:
    """A JSON object with known members; what was decoded is written again as it stood.

    Attributes:
        more: members that this version does not know.
        names: all members as they stood, in order; empty of an object that was not read.
    """

    CLOSED: ClassVar[bool] = False

    more: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def check(self) -> None:
        """Raise an `Unfit` unless the members fit each other; asked of whatever is decoded."""

    def to_json(self) -> dict[str, Any]:
        """The object for `json`. A member with its default is left out, unless it was read or is
        always `written`."""
        kind: Any = type(self)
        defaults: dict[str, Any] = _defaults(kind)
        members = {}
        for name in dict.fromkeys((*self.names, *defaults, *self.more)):
            if name in self.more:
                members[name] = self.more[name]
            elif name in self.names or getattr(self, name) != defaults[name]:
                members[name] = _json(getattr(self, name))
        return members


def written(default: Any) -> Any:
    """A field with a default, which is written even so."""
    return field(default=default, metadata={"written": True})


def _json(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def members_of(kind: Any) -> list[dataclasses.Field[Any]]:
    """The fields that stand for a member each."""
    return [member for member in dataclasses.fields(kind) if member.name not in ("more", "names")]


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Each member's value that is not written; `MISSING` where all are."""
    return {
        member.name: MISSING if "written" in member.metadata else default_of(member)
        for member in members_of(kind)
    }


def default_of(member: dataclasses.Field[Any]) -> Any:
    """What an object that lacks the member has; `MISSING` where none may."""
    made = member.default_factory
    return member.default if made is MISSING else made()
