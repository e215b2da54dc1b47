"""Whose file it is, by its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.axolotl import AXOLOTL
from packidx.plan.options.trainers.llamafactory import LLAMAFACTORY
from packidx.plan.options.trainers.lmms import LMMS
from packidx.plan.options.trainers.loongforge import LOONGFORGE
from packidx.plan.options.trainers.nemo import NEMO
from packidx.plan.options.trainers.swift import SWIFT
from packidx.plan.options.trainers.trainer import Trainer
from packidx.plan.options.trainers.trl import TRL

TRAINERS = {
    trainer.name: trainer for trainer in (NEMO, LMMS, LOONGFORGE, AXOLOTL, LLAMAFACTORY, SWIFT, TRL)
}


def recognise(path: str, file: Mapping[Any, Any], named: str | None) -> Trainer | None:
    """The trainer whose file this is; None where no key is another trainer's.

    Args:
        named: the one that the user names.

    Raises:
        OptionError: it may be several trainers', or has no key of the named one.
    """
    if named is not None:
        if named not in TRAINERS:
            raise OptionError(f"config-format {named!r}: choose one of {', '.join(TRAINERS)}")
        if not TRAINERS[named].known_in(file):
            raise OptionError(f"{path} has no key of {TRAINERS[named].title} about packs")
        return TRAINERS[named]
    for keys_of in (Trainer.tells, Trainer.known_in):
        told = {name: keys for name, each in TRAINERS.items() if (keys := keys_of(each, file))}
        if len(told) == 1:
            return TRAINERS[next(iter(told))]
        if told:
            raise OptionError(
                f"{path} may be of {_in_words(told)}: say whose it is, --config-format "
                + "|".join(told)
            )
    return None


def _in_words(told: Mapping[str, Sequence[str]]) -> str:
    whose = [f"{TRAINERS[name].title} ({', '.join(keys[:3])})" for name, keys in told.items()]
    return f"{', '.join(whose[:-1])} or {whose[-1]}"
