"""The tokens that a sample is trained on: one rule, for the plan's count and the labels built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packidx.errors import OptionError

if TYPE_CHECKING:
    from packidx.records.conversation import Turn

ROLE = "assistant"
"""The role whose messages may be trained on."""
_WORDS = ("all", "last", "no-eot")


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """The rule for what contributes to the loss; part of the processor's fingerprint.

    A trained turn is what the model would have to write after the generation prompt: its reasoning,
    content and tool calls with the template's words between them, and the token that ends it. The
    words around a medium never are. Where the template has ``{% generation %}`` blocks, they decide
    what a turn is instead.

    Raises:
        OptionError: `turns` is another word.
    """

    end_of_turn: bool = True
    """The special token that ends a turn is trained on too. False takes it off a
    ``{% generation %}`` block that ends with it (and the white space after it); True adds none to a
    block that leaves it out."""
    turns: str = "all"
    """``"all"``, or ``"last"`` for the assistant's last turn alone. A record's own flag
    (`Turn.train`) overrides it, either way."""

    def __post_init__(self) -> None:
        if self.turns not in ("all", "last"):
            raise OptionError(f"label policy: turns is {self.turns!r}, not 'all' or 'last'")

    @classmethod
    def parse(cls, words: str) -> LabelPolicy:
        """Return the policy of words such as ``"last,no-eot"``; what is not named is default.

        Raises:
            OptionError: a word is unknown, or two of them contradict each other.
        """
        named = [word for part in words.split(",") if (word := part.strip())]
        for word in named:
            if word not in _WORDS:
                raise OptionError(
                    f"label policy: unknown word {word!r}; it knows {', '.join(_WORDS)}. Mark other"
                    " messages in the data (`train`: true or false)"
                )
        if {"all", "last"} <= {*named}:
            raise OptionError("label policy: 'all' and 'last' contradict each other: keep one")
        return cls("no-eot" not in named, "last" if "last" in named else "all")

    def __str__(self) -> str:
        """The words that `parse` takes; ``"all"`` for the default."""
        words = {"last": self.turns == "last", "no-eot": not self.end_of_turn}
        return ",".join(word for word, is_named in words.items() if is_named) or "all"

    def describe(self) -> dict[str, Any]:
        """Return the policy as JSON, for `ProcessorFiles.fingerprint`."""
        described: dict[str, Any] = {"roles": [ROLE], "end_of_turn": self.end_of_turn}
        return described | ({} if self.turns == "all" else {"turns": self.turns})

    def trains(self, turns: Sequence[Turn]) -> list[bool]:
        """Return for each turn whether it is trained on."""
        mine = [number for number, turn in enumerate(turns) if turn.role == ROLE]
        chosen = set(mine[-1:] if self.turns == "last" else mine)
        return [
            number in chosen if turn.train is None else turn.train and turn.role == ROLE
            for number, turn in enumerate(turns)
        ]


DEFAULT_POLICY = LabelPolicy()
