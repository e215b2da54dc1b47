"""Which tokens a sample is trained on: one rule, for the plan's count and the labels built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packidx.errors import OptionError

if TYPE_CHECKING:
    from packidx.records.conversation import Turn


_WORDS: dict[str, tuple[str, Any]] = {
    "all": ("turns", "all"),
    "last": ("turns", "last"),
    "thinking": ("thinking", True),
    "no-thinking": ("thinking", False),
    "tool-calls": ("tool_calls", True),
    "no-tool-calls": ("tool_calls", False),
    "eot": ("end_of_turn", True),
    "no-eot": ("end_of_turn", False),
    "newline": ("newline", True),
    "no-newline": ("newline", False),
}
"""A policy in words, as the command line takes it."""


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """The rule for what contributes to the loss; part of the processor's fingerprint.

    A trained turn is what the model would have to write after the generation prompt: its reasoning,
    content and tool calls with the template's words between them, and the token that ends it. The
    words around a medium never are. Where the template has ``{% generation %}`` blocks, they decide
    what a turn is instead, and the other fields only take something away.

    Raises:
        OptionError: a field has a value it cannot have.
    """

    roles: tuple[str, ...] = ("assistant",)
    """Turns that may be trained on; a tool's response never is."""
    end_of_turn: bool = True
    """The special token that ends a turn is trained on too. It goes with what stands before it: an
    untrained tool call ends without. False takes it off a ``{% generation %}`` block that ends with
    it (and the white space after it); True adds none to a block that leaves it out."""
    turns: str = "all"
    """``"all"``, or ``"last"`` for the last turn of `roles` alone. A record's own flag
    (`Turn.train`) overrides it, either way."""
    thinking: bool = True
    """Reasoning is trained on: ``<think>…</think>`` and the like, or a message's
    ``reasoning_content`` with the template's words around it."""
    tool_calls: bool = True
    """Tool calls are trained on: ``<tool_call>…</tool_call>``, or a message's ``tool_calls``."""
    newline: bool = False
    """White space that the template writes after the end-of-turn token is trained on too, as by
    templates whose ``{% generation %}`` blocks hold it."""

    def __post_init__(self) -> None:
        if self.turns not in ("all", "last"):
            raise OptionError(f"label policy: turns is {self.turns!r}, not 'all' or 'last'")
        if "tool" in self.roles:
            raise OptionError("label policy: a tool's response cannot be trained on")

    @classmethod
    def parse(cls, words: str) -> LabelPolicy:
        """A policy from words such as ``"last,no-thinking,no-eot"``; what is not named is default.

        Raises:
            OptionError: a word is unknown, or two of them contradict each other.
        """
        named: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for word in (part.strip() for part in words.split(",")):
            if not word:
                continue
            if word not in _WORDS:
                known = ", ".join(_WORDS)
                raise OptionError(f"label policy: unknown word {word!r}; it knows {known}")
            field, value = _WORDS[word]
            if fields.setdefault(field, value) != value:
                raise OptionError(
                    f"label policy: {named[field]!r} and {word!r} contradict each other: keep one"
                )
            named[field] = word
        return cls(**fields)

    def __str__(self) -> str:
        """The words that `parse` takes; ``"all"`` for the default."""
        changed = [
            word
            for word, (field, value) in _WORDS.items()
            if getattr(self, field) == value != getattr(DEFAULT_POLICY, field)
        ]
        return ",".join(changed) or "all"

    def describe(self) -> dict[str, Any]:
        """The policy as JSON, for `ProcessorFiles.fingerprint`.

        Fields added later are there only where they are not default: plans keep their fingerprint.
        """
        described: dict[str, Any] = {"roles": list(self.roles), "end_of_turn": self.end_of_turn}
        for field in ("turns", "thinking", "tool_calls", "newline"):
            if getattr(self, field) != getattr(DEFAULT_POLICY, field):
                described[field] = getattr(self, field)
        return described

    def trains(self, turns: Sequence[Turn]) -> list[bool]:
        """Per turn whether it is trained on."""
        mine = [number for number, turn in enumerate(turns) if turn.role in self.roles]
        chosen = set(mine[-1:] if self.turns == "last" else mine)
        return [
            number in chosen if turn.train is None else turn.train and turn.role in self.roles
            for number, turn in enumerate(turns)
        ]


DEFAULT_POLICY = LabelPolicy()
