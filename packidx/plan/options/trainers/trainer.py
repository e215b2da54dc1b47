"""Whose file it is, and the keys of it that concern packs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import Given, Key

_OF_PACKS = re.compile(r"pack|overlong|cutoff|trunc|excess|seq(uence)?_len")
_NONE = (None, "none", "null", "")


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer and its keys.

    Attributes:
        name: of ``--config-format``.
        title: what people call it.
        release: the one whose keys these are.
        telling: top-level keys, or ``key=word``, by which its files are known.
        keys: dotted name of a key → what becomes of it, in the order in which they are read.
        sections: top-level sections with keys; of those in `closed`, all keys are known.
    """

    name: str
    title: str
    release: str
    telling: frozenset[str]
    keys: Mapping[str, Key]
    sections: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def tells(self, file: Mapping[Any, Any]) -> list[str]:
        """The keys of `file` that only this trainer has."""
        pairs = {f"{key}={value}" for key, value in file.items() if isinstance(value, str)}
        return sorted(self.telling & ({str(key) for key in file} | pairs))

    def known_in(self, file: Mapping[Any, Any]) -> list[str]:
        """The keys of `file` that this trainer has, others may have them, too."""
        return [key for key in _flat(self, file) if key in self.keys]

    def read(
        self,
        path: str,
        file: Mapping[Any, Any],
        notes: list[str],
        refused: list[str] | None = None,
    ) -> dict[str, Any]:
        """Fields of `PlanOptions` that `file` stands for; what is to be known goes to `notes`.

        Args:
            refused: is given what would be an error, for those who go on without it; that the file
                turns packing off is none of it.

        Raises:
            OptionError: a key or value is unknown, or no plan can honour it.
        """
        given = _flat(self, file)
        for name in given:
            if name not in self.keys:
                with _kept(refused):
                    self._refuse_unknown(path, name)
        options: dict[str, Any] = {}
        said_by: dict[str, str] = {}
        for name, key in self.keys.items():
            value = given.get(name)
            is_absent = value is None or value in _NONE[1:]
            if is_absent and key.default is None:
                continue
            value = key.default if is_absent else value
            if value is False and key.turns_on and refused is not None:
                continue
            with _kept(refused):
                meaning = key.read(f"{path}: {name}", value, given)
                if is_absent and meaning.options:
                    notes.append(f"{path}: {name} is not given: {self.title}'s default, {value}")
                for option, asked in meaning.options.items():
                    if options.setdefault(option, asked) != asked:
                        raise OptionError(
                            f"{path}: {said_by[option]} and {name} contradict each other: keep one"
                        )
                    said_by.setdefault(option, name)
                if meaning.note is not None and not is_absent:
                    notes.append(f"{path}: {name} {meaning.note}")
        return options

    def _refuse_unknown(self, path: str, name: str) -> None:
        """Raise an OptionError if an unknown key may be about packs."""
        section, _, member = name.rpartition(".")
        if section in self.closed and section:
            siblings = [key.rpartition(".")[2] for key in self.keys if key.startswith(section)]
            raise OptionError(f"{path}: unknown key {name}: known are {', '.join(siblings)}")
        split = {key: key.rpartition(".") for key in self.keys}
        members = {of_it: key for key, (inside, _, of_it) in split.items() if inside == section}
        alike = [members[close] for close in get_close_matches(member, members, 1, 0.88)]
        if alike or _OF_PACKS.search(member):
            known = f"did you mean {alike[0]}?" if alike else "known are " + ", ".join(self.keys)
            raise OptionError(
                f"{path}: {name} is no key of {self.title} {self.release} that packidx knows, and "
                f"may be about packs: {known}"
            )


@contextmanager
def _kept(refused: list[str] | None) -> Iterator[None]:
    """Where an error is to be kept in `refused`, it is no error."""
    try:
        yield
    except OptionError as error:
        if refused is None:
            raise
        refused.append(str(error))


def _flat(trainer: Trainer, file: Mapping[Any, Any]) -> Given:
    """Dotted names of the top-level keys and of those in the trainer's sections."""
    flat: dict[str, Any] = {}
    for key, value in file.items():
        if key in trainer.sections and isinstance(value, dict):
            flat |= {f"{key}.{member}": of_member for member, of_member in value.items()}
        elif key != "packidx":
            flat[str(key)] = value
    return flat
