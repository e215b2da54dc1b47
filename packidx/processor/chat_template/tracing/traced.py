"""The text that stands for a record's while a template renders: see `tracing.trace`.

What is not handled here must never be answered wrongly: it raises `Untraceable`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter, methodcaller
from typing import Any, NoReturn

from packidx.processor.chat_template.limits import limited_method
from packidx.processor.chat_template.tracing.trace import Block, Piece, Step, Trace, Untraceable

LEAK = "\ue0b0"
"""What a traced text is for code that does not know of tracing; in a plain text, it is a leak that
must not pass."""


class Traced(str):
    """A text that is being traced: pieces of a template's words and of the record's texts."""

    __slots__ = ("_known", "_sum", "_trace")
    _known: tuple[Piece, ...] | None
    _sum: tuple[str, ...]
    """Texts that this one is the sum of, while its pieces have not been asked for."""
    _trace: Trace

    def __new__(
        cls, trace: Trace, pieces: tuple[Piece, ...] | None, summed: tuple[str, ...] = ()
    ) -> Traced:
        self = super().__new__(cls, LEAK)
        self._trace = trace
        self._known = pieces
        self._sum = summed
        return self

    @property
    def _pieces(self) -> tuple[Piece, ...]:
        """Put together once: a template that adds to a text in a loop must not cost its square."""
        if self._known is None:
            pieces: list[Piece] = []
            left: list[str] = [self]
            while left:
                text = left.pop()
                if isinstance(text, Traced) and text._known is None:
                    left += reversed(text._sum)
                else:
                    pieces += pieces_of(text)
            self._known, self._sum = _merged(pieces), ()
        return self._known

    # -- output ------------------------------------------------------------------------------------

    def __add__(self, other: str) -> str:
        return Traced(self._trace, None, (self, _addend(other)))

    def __radd__(self, other: str) -> str:
        return Traced(self._trace, None, (_addend(other), self))

    # -- questions ---------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        pieces = [piece for piece in self._pieces if not isinstance(piece, Block)]
        if any(isinstance(piece, str) for piece in pieces):
            return True
        return any(self._is_some(piece) for piece in pieces if isinstance(piece, int))

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
        if len(self._pieces) == 1 and isinstance(self._pieces[0], int):
            return self._pieces[0]
        pieces = tuple(piece for piece in self._pieces if not isinstance(piece, Block))
        parents = [piece for piece in pieces if isinstance(piece, int)]
        return self._trace.derive(
            ("join", pieces),
            lambda v: "".join(piece if isinstance(piece, str) else v[piece] for piece in pieces),
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
        """``strip``, ``lstrip`` or ``rstrip``; of several pieces only the outer ones change."""
        chars = None if chars is None else _plain(chars)
        if len(self._pieces) == 1:
            return self._made(name, chars)
        if any(isinstance(piece, Block) for piece in self._pieces):
            raise Untraceable("a generation block is trimmed")
        pieces = list(self._pieces)
        for side, place in (("lstrip", 0), ("rstrip", -1)):
            while pieces and name in ("strip", side):
                piece = pieces[place]
                if isinstance(piece, str):
                    left: str = getattr(piece, side)(chars)
                    some, pieces[place] = left != "", left
                else:
                    assert isinstance(piece, int)
                    made = Traced(self._trace, (piece,))._made(side, chars)._number()
                    some, pieces[place] = self._is_some(made), made
                if some:
                    break
                pieces.pop(place)
        return join_pieces(self._trace, pieces)


def join_pieces(trace: Trace, pieces: Iterable[Piece]) -> str:
    """Pieces as one text: traced if any of it is.

    Raises:
        Untraceable: a traced text was taken for a plain one.
    """
    merged = _merged(pieces)
    if all(isinstance(piece, str) for piece in merged):
        return "".join(piece for piece in merged if isinstance(piece, str))
    return Traced(trace, merged)


def _merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces without empty ones, and with plain ones that stand side by side as one."""
    merged: list[Piece] = []
    plain: list[str] = []  # joined once: there may be one per image
    for piece in pieces:
        if isinstance(piece, str):
            plain.append(_without_leak(piece))
            continue
        merged += ("".join(plain),) if any(plain) else ()
        merged.append(piece)
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


def pieces_of(text: str) -> tuple[Piece, ...]:
    """The pieces of a text, traced or not."""
    return text._pieces if isinstance(text, Traced) else (text,)


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
