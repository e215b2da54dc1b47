"""JSON as `JsonObject`: every type, range and form is checked, unknown members are kept.

A class is its own schema: a field's type says what the member of that name must be, and a field
without default must be there. Modules of such classes do not postpone their annotations: to compile
these again took most of the time in which an index was opened.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)


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


LARGEST = (1 << 63) - 1

Decoder = Callable[[Any], Any]


class Unfit(ValueError):
    """What is wrong with a value, and where in its manifest it stands.

    Args:
        before, after: what is said before and behind the place.
        place: such as ``files[3].rows``.
    """

    def __init__(self, before: str, after: str = "", place: str = "") -> None:
        super().__init__(before, after, place)
        self.before, self.after, self.place = before, after, place

    def __str__(self) -> str:
        return f"{self.before}{self.place.lstrip('.')}{self.after}"

    def within(self, part: str) -> Unfit:
        """The same, seen from one level further out."""
        return Unfit(self.before, self.after, part + self.place)


def unfit(value: Any, what: str) -> Unfit:
    """`value` is not what it must be."""
    return Unfit("has ", f" = {value!r:.40}, {what}")


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`."""

    low: float
    high: float = LARGEST

    def fault(self, value: float) -> str | None:
        if self.low <= value <= self.high:
            return None
        upper = "" if self.high in (LARGEST, math.inf) else f" to {self.high}"
        return f"no number from {self.low}{upper}"


@dataclass(frozen=True, slots=True)
class Form:
    """Text that is all of it what `matches` takes; `what` says it in words."""

    matches: Callable[[str], Any]
    what: str

    def fault(self, value: str) -> str | None:
        return None if self.matches(value) else self.what


K = TypeVar("K", bound=JsonObject)


def decoded(kind: type[K], value: Any) -> K:
    """`value`, as `json` has it, as an object of `kind`.

    Raises:
        Unfit: it is none.
    """
    wanted: Any = kind
    made: K = decoder(wanted)(value)
    return made


@functools.cache
def decoder(kind: Any) -> Decoder:
    """What makes an object of `kind`: a dataclass, or a type such as its fields have."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Annotated:
        return _checked(decoder(arguments[0]), arguments[1:])
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        base = decoder(next(kind for kind in arguments if kind is not type(None)))
        return lambda value: None if value is None else base(value)
    if origin is tuple:
        if arguments[-1] is ...:
            return _list(decoder(arguments[0]))
        return _pair([decoder(kind) for kind in arguments])
    if origin is Mapping:
        return _mapping(decoder(arguments[1]))
    return _object(kind)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise unfit(value, "no int")
    if not -LARGEST - 1 <= value <= LARGEST:
        raise unfit(value, "beyond 64 bits")
    return value


def _number(value: Any) -> float:
    """An int stays one, so that it is written as it was."""
    if type(value) is int:
        return _integer(value)
    if type(value) is not float or not math.isfinite(value):
        raise unfit(value, "no float")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise unfit(value, "no str")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise unfit(value, "no bool")
    return value


_PLAIN: dict[Any, Decoder] = {int: _integer, float: _number, str: _text, bool: _truth}


def _checked(base: Decoder, checks: tuple[Any, ...]) -> Decoder:
    faults = [check.fault for check in checks]

    def decode(value: Any) -> Any:
        made = base(value)
        for fault_of in faults:
            if (fault := fault_of(made)) is not None:
                raise unfit(value, fault)
        return made

    return decode


def _one_of(words: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise unfit(value, f"none of {', '.join(words)}")
        return value

    return decode


def _or_null(base: Decoder) -> Decoder:
    return lambda value: None if value is None else base(value)


def _list(base: Decoder) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise unfit(value, "no list")
        items: list[Any] = []
        for item in value:
            try:
                items.append(base(item))
            except Unfit as error:
                raise error.within(f"[{len(items)}]") from None
        return tuple(items)

    return decode


def _pair(bases: list[Decoder]) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(bases):
            raise unfit(value, f"no list of {len(bases)}")
        return tuple(base(item) for base, item in zip(bases, value, strict=True))

    return decode


def _mapping(base: Decoder) -> Decoder:
    def decode(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise unfit(value, "no dict")
        members = {}
        for name, member in value.items():
            try:
                members[name] = base(member)
            except Unfit as error:
                raise error.within(f".{name!r:.40}") from None
        return members

    return decode


def _object(kind: type[JsonObject]) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    known = [
        (member.name, decoder(hints[member.name]), default_of(member) is MISSING)
        for member in members_of(kind)
    ]
    names = {name for name, *_ in known}
    has_check = kind.check is not JsonObject.check

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise unfit(value, "no dict")
        members: dict[str, Any] = {}
        for name, base, is_needed in known:
            if name in value:
                try:
                    members[name] = base(value[name])
                except Unfit as error:
                    raise error.within(f".{name}") from None
            elif is_needed:
                raise Unfit("lacks ", place=f".{name}")
        if len(members) < len(value):
            more = {name: member for name, member in value.items() if name not in names}
            if kind.CLOSED:
                raise Unfit("has ", f" with the unknown member {next(iter(more))!r:.40}")
            members["more"] = more
        made = kind(names=tuple(value), **members)
        if has_check:
            made.check()
        return made

    return decode
