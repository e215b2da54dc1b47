"""What holds traced texts, or is told of them: lengths, messages, structures."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partialmethod
from operator import methodcaller
from typing import Any, NoReturn

from packidx.processor.chat_template.tracing.trace import Untraceable, Values
from packidx.processor.chat_template.tracing.traced import LEAK, Traced


class Length:
    """How long a traced text is: to be compared, nothing else."""

    def __init__(self, text: Traced) -> None:
        self._text = text

    def _compare(self, name: str, other: object) -> Any:
        if type(other) is not int:
            raise Untraceable("a length is compared with no number")
        number = self._text._number()
        call = methodcaller(name, other)
        return self._text._trace.ask(
            (name, "length", number, other), lambda v: call(len(v[number]))
        )

    __eq__ = partialmethod(_compare, "__eq__")
    __ne__ = partialmethod(_compare, "__ne__")
    __lt__ = partialmethod(_compare, "__lt__")
    __le__ = partialmethod(_compare, "__le__")
    __gt__ = partialmethod(_compare, "__gt__")
    __ge__ = partialmethod(_compare, "__ge__")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> NoReturn:
        raise Untraceable("a length is written or used as a number")

    __repr__ = __format__ = __int__ = __index__ = __float__ = __hash__ = __str__  # type: ignore
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __str__
    __mod__ = __rmod__ = __floordiv__ = __truediv__ = __pow__ = __neg__ = __str__


class Incomplete(dict[str, Any]):
    """A message without the keys that the template has no name for: it must be asked by name."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Untraceable("a message as a whole")

    def __bool__(self) -> bool:
        return True  # it has a role

    __iter__ = __len__ = __repr__ = __eq__ = __ne__ = __or__ = __ror__ = _refuse
    keys = values = items = copy = _refuse


def holds_traced(value: Any) -> bool:
    """Whether a traced text is anywhere in `value`.

    Raises:
        Untraceable: where one was, and is no longer.
    """
    if isinstance(value, str):
        if isinstance(value, Traced):
            return True
        if LEAK in value:
            raise Untraceable("a text escaped")
        return False
    if isinstance(value, Incomplete):
        return True
    if isinstance(value, dict):
        return any(map(holds_traced, value.keys())) or any(map(holds_traced, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_traced, value))
    return isinstance(value, Length)


def untangle(value: Any) -> tuple[Hashable, Callable[[Values], Any], list[int]]:
    """A structure with traced texts in it: its key, how to fill it, and the values it needs."""
    if isinstance(value, Traced):
        number = value._number()
        return ("value", number), lambda v: v[number], [number]
    if type(value) is dict:
        if any(type(key) is not str for key in value):
            raise Untraceable("a key is no plain text")
        keys = tuple(value)
        inner, fill, parents = untangle(list(value.values()))
        return ("dict", keys, inner), lambda v: dict(zip(keys, fill(v), strict=True)), parents
    if type(value) in (list, tuple):
        kind = type(value)
        items = [untangle(item) for item in value]
        parents = [parent for _, _, needed in items for parent in needed]
        return (
            (kind.__name__, *(key for key, _, _ in items)),
            lambda v: kind(fill(v) for _, fill, _ in items),
            parents,
        )
    if value is not None and type(value) not in (str, int, float, bool):
        raise Untraceable(f"a {type(value).__name__}")
    return (type(value).__name__, repr(value)), lambda v: value, []
