"""ms-swift: the top level of its files (`swift sft --config FILE`)."""

from __future__ import annotations

from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import (
    BATCH,
    IN_ORDER,
    OF_READER,
    OF_SCHEDULE,
    WORKERS,
    Given,
    Key,
    Meaning,
    Word,
    capacity,
    held_out,
    ignored,
    packer,
    parallel,
    refused,
    switch,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer


def _max_length(where: str, value: Any, given: Given) -> Meaning:
    limit, packing = whole(where, value), given.get("packing_length")
    if packing is not None and limit != packing:
        raise OptionError(
            f"{where} is {limit} and packing_length {packing}: a plan has one length, of packs, "
            "and takes any sample that fits; make them equal, and name samples to leave out by "
            "--exclude"
        )
    return Meaning({"capacity": limit})


_KEYS = {
    "packing": switch(),
    "packing_length": capacity(),
    "max_length": Key("`--capacity`; refused unless it equals `packing_length`", _max_length),
    "truncation_strategy": words(
        {
            "delete": Word({"on_long": "drop"}),
            "right": Word({"on_long": "truncate"}),
            "left": Word(refusal="a plan cuts off the end: give right or delete"),
            "split": Word({"on_long": "split"}),
        },
        default="delete",
    ),
    "packing_strategy": words(
        {
            "binpack": packer("packs runs of 1,000 samples", "window:1000"),
            "sequential": IN_ORDER,
        }
    ),
    "packing_num_proc": WORKERS,
    "dataset_num_proc": WORKERS,
    "padding_free": OF_READER,
    "attn_impl": OF_READER,
    "group_by_length": OF_SCHEDULE,
    "lazy_tokenize": ignored("`packidx estimate` counts, the reader tokenizes"),
    "loss_scale": ignored("what is trained, `packidx estimate --labels` says"),
    "interleave_prob": refused("say the sources' weights by --mix NAME=WEIGHT, and leave it out"),
    "split_dataset_ratio": held_out(),
    "sequence_parallel_size": parallel(),
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": BATCH,
}

SWIFT = Trainer(
    name="swift",
    title="ms-swift",
    release="4.6",
    telling=frozenset(
        (
            *("packing_length", "packing_num_proc", "truncation_strategy", "attn_impl"),
            *("tuner_type", "train_type", "split_dataset_ratio", "lazy_tokenize", "loss_scale"),
            *("packing_strategy=binpack", "packing_strategy=sequential"),
        )
    ),
    keys=_KEYS,
)
