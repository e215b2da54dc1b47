"""TRL: the top level of its files (`trl sft --config FILE`)."""

from __future__ import annotations

from typing import Any

from packidx.plan.options.trainers.key import (
    BATCH,
    OF_EVALUATION,
    OF_READER,
    WORKERS,
    Given,
    Key,
    Meaning,
    Word,
    capacity,
    ignored,
    multiple,
    refused,
    switch,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

_OVERFLOW = "packs runs of samples; a plan packs all at once"
_SPLIT = Word({"on_long": "split"}, _OVERFLOW)
_MULTIPLE = multiple()


def _multiple(where: str, value: Any, given: Given) -> Meaning:
    return Meaning() if value == "auto" else _MULTIPLE.read(where, value, given)


_KEYS = {
    "packing": switch(),
    "max_length": capacity(1024),
    "packing_strategy": words(
        {
            "bfd": Word({"on_long": "truncate"}, _OVERFLOW),
            "bfd_split": _SPLIT,
            "bfd-requeue": _SPLIT,
            "wrapped": Word(
                refusal="it cuts samples wherever a pack ends; bfd_split cuts only those that are "
                "longer than a pack"
            ),
        },
        default="bfd",
    ),
    "truncation_mode": words(
        {
            "keep_start": Word(),
            "keep_end": Word(refusal="a plan cuts off the end: give keep_start"),
        }
    ),
    "pad_to_multiple_of": Key(f"{_MULTIPLE.says}; `auto`: nothing", _multiple),
    "padding_free": OF_READER,
    "eval_packing": OF_EVALUATION,
    "shuffle_dataset": ignored("the order is PackSampler's, by seed and epoch"),
    "dataset_num_proc": WORKERS,
    "completion_only_loss": ignored("what is trained, `packidx estimate --labels` says"),
    "assistant_only_loss": ignored("what is trained, `packidx estimate --labels` says"),
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": BATCH,
    "max_seq_length": refused("TRL has no such key any more: write max_length"),
}

TRL = Trainer(
    name="trl",
    title="TRL",
    release="1.16",
    telling=frozenset(
        (
            *("dataset_name", "truncation_mode", "eval_packing", "completion_only_loss"),
            *("assistant_only_loss", "dataset_text_field", "shuffle_dataset"),
            *(
                f"packing_strategy={word}"
                for word in ("bfd", "bfd_split", "bfd-requeue", "wrapped")
            ),
        )
    ),
    keys=_KEYS,
)
