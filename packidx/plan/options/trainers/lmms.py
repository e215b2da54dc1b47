"""LMMS Engine: `dataset_config:` of its training files."""

from __future__ import annotations

import re
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import (
    BATCH,
    OF_EVALUATION,
    OF_SCHEDULE,
    WORKERS,
    Given,
    Key,
    Meaning,
    capacity,
    ignored,
    is_true,
    packer,
    parallel,
    switch,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

_LENGTH = "dataset_config.packing_length"
_DEFAULT_LENGTH = 32000
_WINDOW = "fills each pack from a window of samples that moves on"
_RULES = words(
    {
        "first_fit": packer("keeps one pack open", "next-fit"),
        "best_fit": packer("keeps a few packs open", "first-fit"),
        "balanced": packer("keeps a few packs open and evens them out", "first-fit"),
    }
)


def _strategy(where: str, value: Any, given: Given) -> Meaning:
    window = re.fullmatch(r"window_([1-9]\d{0,9})", value) if isinstance(value, str) else None
    if window is None:
        return _RULES.read(where, value, given)
    note = packer(_WINDOW, f"window:{window[1]}").note
    return Meaning(note=f"is {value!r}: {note}")


def _overlong(where: str, value: Any, given: Given) -> Meaning:
    return Meaning({"on_long": "drop" if is_true(where, value) else "error"})


def _max_length(where: str, value: Any, given: Given) -> Meaning:
    limit, packing = whole(where, value), given.get(_LENGTH) or _DEFAULT_LENGTH
    if limit == packing:
        return Meaning()
    if limit < packing:
        raise OptionError(
            f"{where} is {limit}, below packing_length {packing}: a plan takes any sample that "
            "fits a pack; name longer ones by --exclude, and leave max_length out"
        )
    raise OptionError(
        f"{where} is {limit}, above packing_length {packing}: LMMS Engine gives longer samples "
        "packs that are too long, and no pack of a plan is above its capacity: make them equal"
    )


_KEYS = {
    "dataset_config.packing": switch(),
    "dataset_config.packing_strategy": Key(
        f"{_RULES.says}. `window_N`: {packer(_WINDOW, 'window:N').note}",
        _strategy,
    ),
    _LENGTH: capacity(_DEFAULT_LENGTH),
    "dataset_config.filter_overlong": Key(
        "`--on-long drop`; `false`: `--on-long error`, as no pack is above its capacity",
        _overlong,
        default=True,
    ),
    "dataset_config.max_length": Key(
        "refused unless it equals `packing_length`: a plan takes any sample that fits", _max_length
    ),
    "dataset_config.filter_overlong_workers": WORKERS,
    "dataset_config.packing_kwargs": ignored("it is about the rule of packing_strategy"),
    "dataset_config.shuffle": ignored("the order is PackSampler's, by seed and epoch"),
    "dataset_config.data_seed": ignored("--seed and PackSampler(seed=) are packidx's own"),
    "dataset_config.eval_dataset_path": OF_EVALUATION,
    "trainer_args.per_device_train_batch_size": BATCH,
    "trainer_args.gradient_accumulation_steps": BATCH,
    "trainer_args.group_by_length": OF_SCHEDULE,
    "trainer_args.sp_ulysses_degree": parallel(),
}

LMMS = Trainer(
    name="lmms",
    title="LMMS Engine",
    release="0.1.4",
    telling=frozenset({"dataset_config"}),
    keys=_KEYS,
    sections=("dataset_config", "trainer_args"),
)
