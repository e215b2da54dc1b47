"""Misspelt keyword arguments: the error names the one that may have been meant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from packidx.errors import KeywordError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C")


def known_keywords(
    also: Callable[[], Iterable[str]] = tuple,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function refuse keywords that it does not know by a `KeywordError`, which is a
    TypeError, too.

    Args:
        also: keywords beside those of the signature, as its ``**`` takes them; asked for only when
            a keyword is not in the signature.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        code = function.__code__
        number = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[code.co_posonlyargcount : number]
        own = frozenset(names) - {"self"}

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if not own.issuperset(kwargs):
                _check(function.__qualname__, [*names, *also()], kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def known_fields(kind: type[_C]) -> type[_C]:
    """The same for a dataclass, whose fields are its keywords."""
    made = kind.__init__
    kind.__init__ = known_keywords()(made)  # type: ignore[method-assign]
    return kind


def _check(name: str, known: Iterable[str], given: Iterable[str]) -> None:
    listed = sorted(set(known) - {"self"})
    for word in given:
        if word in listed:
            continue
        from difflib import get_close_matches

        name = name.removesuffix(".__init__")
        near = get_close_matches(word, listed, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(listed)}"
        raise KeywordError(f"{name}() has no argument {word!r}: {hint}")
