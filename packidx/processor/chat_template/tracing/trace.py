"""What a template does with a record's texts and asks about them, written down.

While a template renders, `Traced` texts stand for a record's. Whatever the template *does* with one
(trims it, cuts it, joins it with other words) makes another value; whatever it *asks* (is it empty,
does it hold ``</think>``) is answered for the record's own text, and the answer is written down.
Jinja knows of the texts only through these, so a record with the same answers takes the same way
through the template, and ends up with the same words between its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Values = list[str]
Step = Callable[[Values], Any]
"""Makes a value from those before it: the record's texts, then what was made of them."""


class Untraceable(Exception):
    """The template does something with a text that cannot be followed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Where a ``{% generation %}`` block begins or ends, between the fragments of a text."""

    begins: bool


Fragment = str | int | Block
"""A template's own words, a value's number, or a border."""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing a template asked, and the values it took to ask it."""

    steps: tuple[Step, ...]
    key: Hashable
    ask: Step
    answer: Hashable


class Trace:
    """One rendering's values and questions; the record's texts are values 0 … n - 1."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.values: Values = list(texts)
        self.questions: list[Question] = []
        self.pending: list[Step] = []
        """Values made since the last question."""
        self.origins: list[frozenset[int]] = [frozenset((i,)) for i in range(len(texts))]
        """Per value the texts it was made of."""
        self.cut_only: list[bool] = [True] * len(texts)
        """Per value whether it is a stretch of one text, unchanged."""
        self._known: dict[Hashable, Any] = {}

    def derive(
        self, key: Hashable, step: Step, parents: Iterable[int], *, cut: bool = False
    ) -> int:
        """A value made of others; `key` says how, so that the same one is made once."""
        number: int | None = self._known.get(key)
        if number is None:
            value = step(self.values)
            if not isinstance(value, str):
                raise Untraceable(f"{key!r} is no text")
            number = self._known[key] = len(self.values)
            self.values.append(value)
            self.pending.append(step)
            parents = tuple(parents)
            self.origins.append(frozenset().union(*(self.origins[p] for p in parents)))
            self.cut_only.append(cut and all(self.cut_only[p] for p in parents))
        return number

    def ask(self, key: Hashable, step: Step) -> Any:
        """What the record's texts answer; asked and written down once."""
        key = ("?", key)
        if key not in self._known:
            answer = step(self.values)
            self.questions.append(Question(tuple(self.pending), key, step, answer))
            self.pending = []
            self._known[key] = answer
        return self._known[key]
