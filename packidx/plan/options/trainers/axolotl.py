"""axolotl: the top level of its training files."""

from __future__ import annotations

from typing import Any

from packidx.plan.options.trainers.key import (
    BATCH,
    IN_ORDER,
    OF_EVALUATION,
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
    is_true,
    multiple,
    parallel,
    refused,
    same,
    switch,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

_DEFAULT_LENGTH = 512


def _in_order(where: str, value: Any, given: Given) -> Meaning:
    return Meaning(IN_ORDER.options, IN_ORDER.note) if is_true(where, value) else Meaning()


def _padded(where: str, value: Any, given: Given) -> Meaning:
    if not is_true(where, value):
        return Meaning()
    return Meaning({"pad_pack_to": given.get("sequence_len") or _DEFAULT_LENGTH})


def _micro_batch(where: str, value: Any, given: Given) -> Meaning:
    if whole(where, value) < 2:
        return Meaning()
    return Meaning(
        note="changes no plan: axolotl fills one pack of micro_batch_size x sequence_len tokens, "
        f"here it is {value} packs; collate(packs, attention='flash') puts them into one row"
    )


_KEYS = {
    "sample_packing": switch(),
    "sequence_len": capacity(_DEFAULT_LENGTH),
    "excess_length_strategy": words(
        {
            "drop": Word({"on_long": "drop"}),
            "truncate": Word({"on_long": "truncate"}),
            "raise": Word({"on_long": "error"}),
        },
        default="drop",
    ),
    "sample_packing_bin_size": same("max_samples"),
    "sample_packing_sequentially": Key(f"`true`: {IN_ORDER.says}", _in_order),
    "sample_packing_group_size": ignored(
        "a plan packs all samples at once; --window-samples does it piece by piece"
    ),
    "sample_packing_eff_est": ignored("a plan knows its packs"),
    "sample_packing_mp_start_method": WORKERS,
    "pad_to_sequence_len": Key("`--pad-pack-to` as many tokens", _padded),
    "pad_to_multiple_of": multiple(),
    "micro_batch_size": Key("packs of `sequence_len` tokens, so many at a time", _micro_batch),
    "gradient_accumulation_steps": BATCH,
    "multipack_real_batches": OF_READER,
    "batch_flattening": OF_READER,
    "sdpa_varlen": OF_READER,
    "curriculum_sampling": refused(
        "packs come in the order of a schedule, by seed and epoch; leave it out", False
    ),
    "group_by_length": OF_SCHEDULE,
    "min_sample_len": refused("name the short samples by --exclude, and leave it out", 0, 1, 2),
    "val_set_size": held_out(),
    "eval_sample_packing": OF_EVALUATION,
    "eval_sequence_len": OF_EVALUATION,
    "sequence_parallel_degree": parallel(),
    "context_parallel_size": parallel(),
    "pretraining_dataset": refused(
        "axolotl joins its texts and cuts them anywhere; give them as datasets, and "
        "`--on-long split` to packidx"
    ),
    "pretraining_sample_concatenation": refused("samples of a pack stay apart", False),
    "pretrain_multipack_attn": ignored("samples of a pack never see each other"),
    "pretrain_multipack_buffer_size": ignored("a plan packs all samples at once"),
    "streaming_multipack_buffer_size": ignored("a plan packs all samples at once"),
    "rl": refused("pairs and prompts of that training are not packed by this file's keys"),
}

AXOLOTL = Trainer(
    name="axolotl",
    title="axolotl",
    release="0.19",
    telling=frozenset(
        ("base_model", "sequence_len", "sample_packing", "micro_batch_size", "val_set_size")
    ),
    keys=_KEYS,
)
