"""LLaMA-Factory: the top level of its training files."""

from __future__ import annotations

from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import (
    BATCH,
    WORKERS,
    Given,
    Key,
    Meaning,
    Word,
    held_out,
    ignored,
    is_true,
    refused,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

_SHARES = "say the sources' weights by --mix NAME=WEIGHT, and leave it out"
_PAIRS = Word(refusal="this file's keys pack no samples of such training; leave --config out")


def _packing(where: str, value: Any, given: Given) -> Meaning:
    if is_true(where, value):
        return Meaning(note="alone lets samples see each other there; here they never do")
    if given.get("neat_packing") is True:
        return Meaning()
    raise OptionError(
        f"{where} is false: packing is off, so there is nothing to plan; turn it on, or give "
        "--capacity and leave --config out"
    )


def _neat(where: str, value: Any, given: Given) -> Meaning:
    is_true(where, value)
    return Meaning()


def _cutoff(where: str, value: Any, given: Given) -> Meaning:
    return Meaning(
        {"capacity": whole(where, value), "on_long": "truncate"},
        "shortens the turns of a long sample one by one there, and its end is cut off here "
        "(--on-long drop leaves it out); a pack may be full, where LLaMA-Factory keeps a token",
    )


_KEYS = {
    "packing": Key(
        "it or `neat_packing` must be `true`; samples never see each other", _packing, False, True
    ),
    "neat_packing": Key("`packing`, samples kept apart, as always here", _neat),
    "cutoff_len": Key(
        "`--capacity` and `--on-long truncate`: there the turns of a long sample are shortened "
        "one by one, here its end is cut off",
        _cutoff,
        default=2048,
    ),
    "stage": words(
        {
            "sft": Word(),
            "pt": Word(
                refusal="it joins texts and cuts them anywhere; plan with --on-long split, and "
                "leave --config out"
            ),
            **dict.fromkeys(("rm", "ppo", "dpo", "kto"), _PAIRS),
        }
    ),
    "preprocessing_batch_size": ignored(
        "LLaMA-Factory packs so many samples at a time, a plan all of them; --strategy window:N "
        "compares"
    ),
    "preprocessing_num_workers": WORKERS,
    "max_samples": refused("estimate fewer samples, or keep --max-packs N of the plan"),
    "interleave_probs": refused(_SHARES),
    "mix_strategy": refused(_SHARES, "concat"),
    "val_size": held_out(),
    "train_on_prompt": ignored(
        "what is trained, `packidx estimate --labels` says", bool, "a switch"
    ),
    "mask_history": ignored(
        "`packidx estimate --labels last` trains the same turn", bool, "a switch"
    ),
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": BATCH,
}

LLAMAFACTORY = Trainer(
    name="llamafactory",
    title="LLaMA-Factory",
    release="0.9.5",
    telling=frozenset(("cutoff_len", "neat_packing", "stage", "finetuning_type", "dataset_dir")),
    keys=_KEYS,
)
