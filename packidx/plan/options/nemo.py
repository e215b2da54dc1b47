"""The section `packed_sequence:` of NeMo Automodel's recipes, in terms of `PlanOptions`.

The keys are those that its recipes for vision-language models take in release 0.7. One that
changes no plan is valid, and a note says why; one that a plan cannot honour is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.values import of_type, typed

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

Meaning = tuple[dict[str, Any], str | None]
"""Fields of `PlanOptions` that a key stands for; why it changes no plan, where it changes none."""


def translate(path: str, section: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fields of `PlanOptions` that `section` stands for; what changes no plan goes to `notes`.

    Raises:
        OptionError: a key or value is unknown, or no plan can honour it.
    """
    options: dict[str, Any] = {}
    for key, value in section.items():
        if key not in TRANSLATIONS:
            raise OptionError(
                f"{path}: unknown key packed_sequence.{key}: known are {', '.join(TRANSLATIONS)}"
            )
        if value is None or value == "none":  # both are the default in NeMo's recipes
            continue
        where = f"{path}: packed_sequence.{key}"
        fields, note = TRANSLATIONS[key](where, value, section)
        options |= fields
        if note is not None:
            notes.append(f"{where} {note}")
    return options


def _same(name: str) -> Translation:
    return lambda where, value, section: ({name: typed(where, name, value)}, None)


def _ignored(kind: type, words: str, reason: str) -> Translation:
    def check(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
        of_type(where, value, kind, words)
        return {}, f"changes no plan: {reason}"

    return check


def _pack_size(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    size = of_type(where, value, int, "a whole number")
    if size == 0:
        raise OptionError(f"{where} is 0, which turns packing off: say how many tokens a pack has")
    return {"capacity": size}, None


def _drop_long(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    # Without it NeMo keeps what looks too long, as its lengths are guesses, and drops it later if
    # it is. A counted length is the truth: what is not to be dropped cannot be planned.
    return {"on_long": "drop" if of_type(where, value, bool, "true or false") else "error"}, None


def _balance(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    # NeMo deals visual tokens to the packs, so that ranks wait less for each other. Here the
    # schedule sees to that: the packs of a micro-step cost the same, vision tower included.
    is_wanted = of_type(where, value, bool, "true or false")
    return {"schedule": "stratified" if is_wanted else "random"}, None


def _max_length(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    limit, size = of_type(where, value, int, "a whole number"), section.get("pack_size")
    if type(size) is int and limit < size:
        raise OptionError(
            f"{where} is {limit}, below pack_size {size}: a plan takes any sample that fits a "
            "pack; name longer ones by exclude under packidx:, and leave max_length out"
        )
    return {}, "changes no plan: what is longer than a pack is never packed"


def _packing_format(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    if value not in ("neat", "thd"):
        raise OptionError(f"{where} is {value!r}: choose neat or thd")
    attention = {"neat": "indexed", "thd": "thd"}[value]
    return {}, (
        f"changes no plan: the reader decides, collate(packs, attention={attention!r}); for "
        "context parallelism set align: 2 x cp_size under packidx:"
    )


def _enabled(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    if not of_type(where, value, bool, "true or false"):
        raise OptionError(f"{where} is false: packing is off, so there is nothing to plan")
    return {}, None


def _hook(where: str, value: Any, section: Mapping[str, Any]) -> Meaning:
    raise OptionError(
        f"{where} is {value!r}, which changes tokens after they were counted: give it to `packidx "
        "estimate` as --transform or --encode, and leave it out here"
    )


Translation = Callable[[str, Any, Mapping[str, Any]], Meaning]
"""``f(where, value, section)``; raises OptionError where the key cannot be met."""

TRANSLATIONS: dict[str, Translation] = {
    "pack_size": _pack_size,
    "packing_ratio": _same("packing_ratio"),
    "drop_long_samples": _drop_long,
    "max_packs": _same("max_packs"),
    "balance_media_tokens": _balance,
    "max_length": _max_length,
    "packing_format": _packing_format,
    "collate_max_length": _ignored(
        int, "a whole number", "collate pads to the longest pack; pad_pack_to sets the plan's sizes"
    ),
    "attn_implementation": _ignored(
        str, "a word", "collate(packs, attention=…) decides how samples are kept apart"
    ),
    "pretokenize": _ignored(
        bool, "true or false", "`packidx estimate` has counted the tokens before"
    ),
    "enabled": _enabled,
    "post_tokenize_hook_fn": _hook,
}
