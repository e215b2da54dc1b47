"""The text that stands for a record's while a template renders: see `tracing.trace`.

What is not handled here must never be answered wrongly: it raises `Untraceable`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter, methodcaller
from typing import Any, NoReturn

from packidx.processor.chat_template.limits import limited_method
from packidx.processor.chat_template.tracing.trace import Block, Fragment, Step, Trace, Untraceable

LEAK = "\ue0b0"
"""What a traced text is for code that does not know of tracing; in a plain text, it is a leak that
must not pass."""


class Traced(str):
    """A text that is being traced: fragments of a template's words and of the record's texts."""

    __slots__ = ("_known", "_sum", "_trace")
    _known: tuple[Fragment, ...] | None
    _sum: tuple[str, ...]
    """Texts that this one is the sum of, while its fragments have not been asked for."""
    _trace: Trace

    def __new__(
        cls, trace: Trace, fragments: tuple[Fragment, ...] | None, summed: tuple[str, ...] = ()
    ) -> Traced:
        self = super().__new__(cls, LEAK)
        self._trace = trace
        self._known = fragments
        self._sum = summed
        return self

    @property
    def _fragments(self) -> tuple[Fragment, ...]:
        """Put together once: a template that adds to a text in a loop must not cost its square."""
        if self._known is None:
            fragments: list[Fragment] = []
            left: list[str] = [self]
            while left:
                text = left.pop()
                if isinstance(text, Traced) and text._known is None:
                    left += reversed(text._sum)
                else:
                    fragments += fragments_of(text)
            self._known, self._sum = _merged(fragments), ()
        return self._known

    # -- output ------------------------------------------------------------------------------------

    def __add__(self, other: str) -> str:
        return Traced(self._trace, None, (self, _addend(other)))

    def __radd__(self, other: str) -> str:
        return Traced(self._trace, None, (_addend(other), self))

    # -- questions ---------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        fragments = [fragment for fragment in self._fragments if not isinstance(fragment, Block)]
        if any(isinstance(fragment, str) for fragment in fragments):
            return True
        return any(self._is_some(fragment) for fragment in fragments if isinstance(fragment, int))

    def _is_some(self, number: int) -> bool:
        return bool(self._trace.ask(("some", number), lambda v: v[number] != ""))

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if isinstance(other, Traced):
            mine, its = sorted((self._number(), other._number()))
            return self._trace.ask(("same", mine, its), lambda v: v[mine] == v[its])
        if not isinstance(other, str):
            return False
        return self._ask("__eq__", _plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, other: object) -> bool:
        return bool(self._ask("__contains__", _plain(other)))

    def __getitem__(self, at: Any) -> str:
        number = self._number()
        if isinstance(at, slice):
            key = _hashable(("slice", number, at.start, at.stop, at.step))
            cut = at.step in (None, 1)
            return self._value(key, lambda v: v[number][at], cut=cut)
        if isinstance(at, str):
            raise TypeError("string indices must be integers")
        if type(at) is not int:
            raise Untraceable("an index that is no plain number")
        if not self._trace.ask(
            ("has", number, at), lambda v: -len(v[number]) <= at < len(v[number])
        ):
            raise IndexError("string index out of range")
        return self._value(("at", number, at), lambda v: v[number][at], cut=True)

    def _ask(self, name: str, *args: Any) -> Any:
        number = self._number()
        call = methodcaller(name, *args)
        return self._trace.ask(_hashable((name, number, args)), lambda v: call(v[number]))

    def _number(self) -> int:
        """This text as one value."""
        if len(self._fragments) == 1 and isinstance(self._fragments[0], int):
            return self._fragments[0]
        fragments = tuple(item for item in self._fragments if not isinstance(item, Block))
        parents = [fragment for fragment in fragments if isinstance(fragment, int)]
        return self._trace.derive(
            ("join", fragments),
            lambda v: "".join(item if isinstance(item, str) else v[item] for item in fragments),
            parents,
        )

    # -- derived texts -----------------------------------------------------------------------------

    def _value(self, key: Hashable, step: Step, *, cut: bool) -> Traced:
        made = self._trace.derive(key, step, (self._number(),), cut=cut)
        return Traced(self._trace, (made,))

    def _made(self, name: str, *args: Any) -> Traced:
        """What a method of str makes of this text."""
        number = self._number()
        call = limited_method(name, *args)
        key = _hashable((name, number, args))
        return self._value(key, lambda v: call(v[number]), cut=name in _CUTS)

    def _parts(self, name: str, *args: Any) -> list[Traced]:
        """What a method of str cuts this text into; into how many is a question."""
        number = self._number()
        call = methodcaller(name, *args)
        key = _hashable((name, number, args))
        count = self._trace.ask(("count", key), lambda v: len(call(v[number])))

        def part(i: int) -> Traced:
            step: Step = lambda v: call(v[number])[i]  # noqa: E731
            return self._value(("part", key, i), step, cut=True)

        return [part(i) for i in range(count)]

    def _strip(self, name: str, chars: str | None = None) -> str:
        """``strip``, ``lstrip`` or ``rstrip``; of several fragments only the outer ones change."""
        chars = None if chars is None else _plain(chars)
        if len(self._fragments) == 1:
            return self._made(name, chars)
        if any(isinstance(fragment, Block) for fragment in self._fragments):
            raise Untraceable("a generation block is trimmed")
        fragments = list(self._fragments)
        for side, end in (("lstrip", 0), ("rstrip", -1)):
            while fragments and name in ("strip", side):
                fragment = fragments[end]
                if isinstance(fragment, str):
                    left: str = getattr(fragment, side)(chars)
                    some, fragments[end] = left != "", left
                else:
                    assert isinstance(fragment, int)
                    made = Traced(self._trace, (fragment,))._made(side, chars)._number()
                    some, fragments[end] = self._is_some(made), made
                if some:
                    break
                fragments.pop(end)
        return join_fragments(self._trace, fragments)


def join_fragments(trace: Trace, fragments: Iterable[Fragment]) -> str:
    """Fragments as one text: traced if any of it is.

    Raises:
        Untraceable: a traced text was taken for a plain one.
    """
    merged = _merged(fragments)
    if all(isinstance(fragment, str) for fragment in merged):
        return "".join(fragment for fragment in merged if isinstance(fragment, str))
    return Traced(trace, merged)


def _merged(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """Fragments without empty ones, and with plain ones that stand side by side as one."""
    merged: list[Fragment] = []
    plain: list[str] = []  # joined once: there may be one per image
    for fragment in fragments:
        if isinstance(fragment, str):
            plain.append(_without_leak(fragment))
            continue
        merged += ("".join(plain),) if any(plain) else ()
        merged.append(fragment)
        plain.clear()
    merged += ("".join(plain),) if any(plain) else ()
    return tuple(merged)


def _without_leak(text: str) -> str:
    if LEAK in text:
        raise Untraceable("a text escaped")
    return text


def _addend(text: str) -> str:
    """What is added to a traced text: a traced one, or plain words."""
    if not isinstance(text, str):
        raise TypeError(f'can only concatenate str (not "{type(text).__name__}") to str')
    return text if isinstance(text, Traced) else _without_leak(text)


def fragments_of(text: str) -> tuple[Fragment, ...]:
    """The fragments of a text, traced or not."""
    return text._fragments if isinstance(text, Traced) else (text,)


def _plain(value: Any) -> str:
    if isinstance(value, Traced):
        raise Untraceable("two texts are compared")
    if not isinstance(value, str):
        raise TypeError(f"must be str, not {type(value).__name__}")
    return _without_leak(value)


def _hashable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        hash(key)
    except TypeError as error:
        raise Untraceable(str(error)) from error
    return key


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A method's arguments, of which none may be traced."""
    for arg in args:
        for item in arg if type(arg) is tuple else (arg,):
            if type(item) not in (str, int, bool, type(None)) or (item and LEAK in str(item)):
                raise Untraceable("a method's arguments")
    if kwargs:
        raise Untraceable("a method's named arguments")
    return args


_CUTS = ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
_STRIPS = ("strip", "lstrip", "rstrip")
_MADE = (
    *("upper", "lower", "title", "capitalize", "swapcase", "casefold", "replace", "zfill"),
    *("removeprefix", "removesuffix", "ljust", "rjust", "center", "expandtabs"),
)
_PARTS = ("split", "rsplit", "splitlines", "partition", "rpartition")
_ASKED = (
    *("startswith", "endswith", "find", "rfind", "count", "isspace", "isdigit", "isalpha"),
    *("isalnum", "isupper", "islower", "istitle", "isnumeric", "isdecimal", "isascii"),
)


def _forward(name: str, how: str) -> Callable[..., Any]:
    get = attrgetter(how)

    def method(self: Traced, *args: Any, **kwargs: Any) -> Any:
        return get(self)(name, *_arguments(args, kwargs))

    method.__name__ = name
    return method


def _refuse(name: str) -> Callable[..., Any]:
    def method(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        raise Untraceable(f"str.{name}")

    method.__name__ = name
    return method


def _equip() -> None:
    """Give `Traced` every method of str: followed, asked or refused."""
    ways = {"_strip": _STRIPS, "_made": _MADE, "_parts": _PARTS, "_ask": _ASKED}
    for how, names in ways.items():
        for name in names:
            setattr(Traced, name, _forward(name, how))
    harmless = {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__doc__"}
    harmless |= {"__delattr__", "__init_subclass__", "__subclasshook__", "__dir__", "__sizeof__"}
    for name in dir(str):
        if name not in vars(Traced) and name not in harmless:
            setattr(Traced, name, _refuse(name))
    for name in ("__hash__", "__rmul__", "__rmod__"):
        setattr(Traced, name, _refuse(name))


_equip()
