"""NeMo Automodel: the section `packed_sequence:` of its recipes."""

from __future__ import annotations

from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import (
    OF_READER,
    WORKERS,
    Given,
    Key,
    Meaning,
    capacity,
    ignored,
    is_true,
    packer,
    refused,
    same,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

SECTION = "packed_sequence"

RECIPE_SECTIONS = frozenset(
    (
        *("autopipeline", "benchmark", "checkpoint", "ci", "clip_grad_norm", "comet", "compile"),
        *("dataloader", "dataset", "dist_env", "distributed", "domain_mixture", "fp8"),
        *("embedding_row_repair", "freeze_config", "launcher", "loss_fn", "lr_scheduler", "mfu"),
        *("mlflow", "model", "mtp", "optimizer", "parallelizer", "peft", "prewarm", "processor"),
        *("profiling", "qat", "quantization", "recipe", "rng", "seed", "slurm", "step_scheduler"),
        *("te_fp8", "teacher_distributed", "teacher_model", "tokenizer", "training", "wandb"),
        *("validation_dataloader", "validation_dataloaders", "validation_dataset"),
    )
)
"""What recipes have beside `packed_sequence`: the trainer's business."""


def _drop_long(where: str, value: Any, given: Given) -> Meaning:
    # Without it NeMo keeps what looks too long, as its lengths are guesses, and drops it later if
    # it is. A counted length is the truth: what is not to be dropped cannot be planned.
    return Meaning({"on_long": "drop" if is_true(where, value) else "error"})


def _balance(where: str, value: Any, given: Given) -> Meaning:
    # NeMo deals visual tokens to the packs, so that ranks wait less for each other. Here the
    # schedule sees to that: the packs of a micro-step cost the same, vision tower included.
    return Meaning({"schedule": "stratified" if is_true(where, value) else "random"})


def _max_length(where: str, value: Any, given: Given) -> Meaning:
    limit, size = whole(where, value), given.get(f"{SECTION}.pack_size")
    if type(size) is int and limit < size:
        raise OptionError(
            f"{where} is {limit}, below pack_size {size}: a plan takes any sample that fits a "
            "pack; name longer ones by exclude under packidx:, and leave max_length out"
        )
    return Meaning(note="changes no plan: what is longer than a pack is never packed")


def _packing_format(where: str, value: Any, given: Given) -> Meaning:
    if value not in ("neat", "thd"):
        raise OptionError(f"{where} is {value!r}: choose neat or thd")
    attention = {"neat": "indexed", "thd": "thd"}[value]
    return Meaning(
        note=f"changes no plan: the reader decides, collate(packs, attention={attention!r}); for "
        "context parallelism set align: 2 x cp_size under packidx:"
    )


def _enabled(where: str, value: Any, given: Given) -> Meaning:
    if not is_true(where, value):
        raise OptionError(f"{where} is false: packing is off, so there is nothing to plan")
    return Meaning()


def _hook(where: str, value: Any, given: Given) -> Meaning:
    raise OptionError(
        f"{where} is {value!r}, which changes tokens after they were counted: give it to `packidx "
        "estimate` as --transform or --encode, and leave it out here"
    )


_SHIFTED = (
    "counts in NeMo after the labels are shifted, one token less per sample: `shift: true` under "
    "packidx: plans that"
)
_KEYS = {
    "pack_size": capacity(note=_SHIFTED),
    "packed_sequence_size": capacity(note=_SHIFTED),
    "packing_ratio": same("packing_ratio"),
    "drop_long_samples": Key("`--on-long drop`; `false`: `--on-long error`", _drop_long),
    "max_packs": same("max_packs"),
    "balance_media_tokens": Key(
        "`--schedule stratified`, whose micro-steps cost the same, vision tower included; "
        "`false`: `--schedule random`",
        _balance,
    ),
    "max_length": Key("refused below `pack_size`: a plan takes any sample that fits", _max_length),
    "packing_format": Key(
        "the reader decides: `collate(packs, attention='indexed')` for `neat`, `'thd'` for `thd`",
        _packing_format,
    ),
    "packing_strategy": words(
        {
            "neat": packer("asks for a knapsack, and for collate(…, 'indexed')", "knapsack"),
            "thd": packer("asks for one open pack, and for collate(…, 'thd')", "next-fit"),
        }
    ),
    "pad_to_multiple_of": same("align"),
    "split_across_pack": refused(
        "it cuts samples wherever a pack ends; `on-long: split` under packidx: cuts only those "
        "that are longer than a pack",
        False,
    ),
    "prepacked": refused("plan the samples as they are before they are packed", False),
    "collate_max_length": ignored(
        "collate pads to the longest pack; pad_pack_to sets the plan's sizes",
        int,
        "a whole number",
    ),
    "attn_implementation": OF_READER,
    "pretokenize": ignored(
        "`packidx estimate` has counted the tokens before", bool, "true or false"
    ),
    "num_proc": WORKERS,
    "enabled": Key("must be `true`: else there is nothing to plan", _enabled, turns_on=True),
    "post_tokenize_hook_fn": Key(
        "refused: give it to `packidx estimate` as `--transform` or `--encode`", _hook
    ),
}

NEMO = Trainer(
    name="nemo",
    title="NeMo Automodel",
    release="0.7",
    telling=frozenset({SECTION}),
    keys={f"{SECTION}.{name}": key for name, key in _KEYS.items()},
    sections=(SECTION,),
    closed=(SECTION,),
)
