"""A key of a trainer's file: what becomes of it, in words for docs/trainer-files.md and in options.

A key that stands for options is translated; one that changes no plan says why; one that a plan
cannot honour is refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.values import of_type, typed

OF_NO_PLAN = "changes no plan"

Given = Mapping[str, Any]
"""What the file says: dotted name of a key → its value."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a key comes to.

    Attributes:
        options: fields of `PlanOptions` that it stands for.
        note: what a user has to know of it, to be read after the key's name.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a trainer's file.

    Attributes:
        says: what becomes of it, for the table in docs/trainer-files.md.
        read: ``read(where, value, given)``; raises OptionError where a plan cannot honour it.
        default: what the trainer takes where the key is missing, if that makes a difference.
        turns_on: whether it turns packing on.
    """

    says: str
    read: Callable[[str, Any, Given], Meaning]
    default: Any = None
    turns_on: bool = False


def same(name: str) -> Key:
    """The field `name` of `PlanOptions` under another name."""
    flag = f"`--{name.replace('_', '-')}`"
    return Key(flag, lambda where, value, given: Meaning({name: typed(where, name, value)}))


def whole(where: str, value: Any) -> int:
    number: int = of_type(where, value, int, "a whole number")
    return number


def is_true(where: str, value: Any) -> bool:
    answer: bool = of_type(where, value, bool, "true or false")
    return answer


def capacity(default: int | None = None, note: str | None = None) -> Key:
    def read(where: str, value: Any, given: Given) -> Meaning:
        tokens = whole(where, value)
        if tokens == 0:
            raise OptionError(
                f"{where} is 0, which turns packing off: say how many tokens a pack has"
            )
        return Meaning({"capacity": tokens}, note)

    return Key("`--capacity`", read, default)


def switch() -> Key:
    """What turns packing on; a file that has it off has nothing to plan."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        if not is_true(where, value):
            raise OptionError(
                f"{where} is false: packing is off, so there is nothing to plan; turn it on, or "
                "give --capacity and leave --config out"
            )
        return Meaning()

    return Key("must be `true`: else there is nothing to plan", read, False, turns_on=True)


def ignored(reason: str, kind: type | None = None, words: str = "") -> Key:
    def read(where: str, value: Any, given: Given) -> Meaning:
        if kind is not None:
            of_type(where, value, kind, words)
        return Meaning(note=f"{OF_NO_PLAN}: {reason}")

    return Key(f"{OF_NO_PLAN}: {reason}", read)


def refused(advice: str, *harmless: Any) -> Key:
    """A key that a plan cannot honour, unless its value is one of `harmless`."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        if value not in harmless:
            raise OptionError(f"{where} is {value!r:.80}, which no plan can honour: {advice}")
        return Meaning()

    may_be = f" (but for `{'`, `'.join(map(_yaml, harmless))}`)" if harmless else ""
    return Key(f"refused{may_be}: {advice}", read)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Word:
    """A word that a key may be.

    Attributes:
        options: fields of `PlanOptions` that it stands for.
        note: what is to be known of it; None where the options say all.
        refusal: what to do instead, where no plan can honour it.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    refusal: str | None = None

    @property
    def says(self) -> str:
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        flags = " ".join(f"`--{name.replace('_', '-')} {v}`" for name, v in self.options.items())
        return "; ".join(part for part in (flags, self.note) if part) or "as it is"


def words(choices: Mapping[str, Word], default: str | None = None) -> Key:
    """A key that is one of a few words."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        if not isinstance(value, str) or value not in choices:
            raise OptionError(f"{where} is {value!r}: choose one of {', '.join(choices)}")
        word = choices[value]
        if word.refusal is not None:
            raise OptionError(f"{where} is {value!r}, which no plan can honour: {word.refusal}")
        return Meaning(word.options, word.note and f"is {value!r}: {word.note}")

    says = ". ".join(f"`{name}`: {word.says}" for name, word in choices.items())
    return Key(says, read, default)


def packer(rule: str, compared: str | None) -> Word:
    """A rule to pack by, in whose place a plan takes its own."""
    compare = "" if compared is None else f"; `--strategy {compared}` comes nearest, to compare"
    return Word(note=f"{rule}; a plan looks for the fewest packs, composed otherwise{compare}")


IN_ORDER = Word(
    {"strategy": "next-fit"},
    "samples fill one pack after another in the data's order; the order within a pack and of the "
    "packs is the plan's own",
)


def held_out() -> Key:
    """A share of the samples that is kept for evaluation."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        if type(value) not in (int, float):
            raise OptionError(f"{where} is {value!r}: it must be a number")
        if value == 0:
            return Meaning()
        if not 0 < value < 1:
            raise OptionError(
                f"{where} is {value!r}, a number of samples, which no plan can honour: give a "
                "share below 1"
            )
        note = "draws other samples: here a hash of each sample's key decides, for good"
        return Meaning({"holdout": float(value)}, note)

    return Key("`--holdout`, if it is below 1; drawn by a hash of the samples' keys", read)


def multiple() -> Key:
    """A number of tokens to whose multiple every pack is padded."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        return Meaning({"pad_pack_to": whole(where, value)})

    return Key("`--pad-pack-to`", read)


def parallel() -> Key:
    """Ranks among which a sequence is divided."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        ranks = whole(where, value)
        if ranks < 2:
            return Meaning()
        return Meaning(
            note=f"{OF_NO_PLAN}: where each sample must divide among the ranks, give --align "
            f"{2 * ranks}"
        )

    return Key(f"{OF_NO_PLAN}: `--align` makes samples divisible (2 x the ranks)", read)


BATCH = ignored("with the number of ranks it gives --global-batch, which steers the schedule alone")
WORKERS = ignored("it is about processes; --workers is packidx's own")
OF_READER = ignored("the reader decides, collate(packs, attention=…)")
OF_EVALUATION = ignored("it is about evaluation; plan that by itself, from its own lengths")
OF_SCHEDULE = ignored("--schedule sees to micro-steps of equal cost")
