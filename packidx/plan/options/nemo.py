"""NeMo Automodel's section ``packed_sequence:``, as options of a plan.

A key that stands for options is translated; one that changes no plan says why; one that a plan
cannot honour is refused, with what to do instead. All keys of the section are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.values import of_type, typed

OF_NO_PLAN = "changes no plan"
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

Given = Mapping[str, Any]
"""What the section says."""


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
        says: what becomes of it, for people.
        read: ``read(where, value, given)``; raises OptionError where a plan cannot honour it.
    """

    says: str
    read: Callable[[str, Any, Given], Meaning]


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


def capacity(note: str | None = None) -> Key:
    def read(where: str, value: Any, given: Given) -> Meaning:
        tokens = whole(where, value)
        if tokens == 0:
            raise OptionError(
                f"{where} is 0, which turns packing off: say how many tokens a pack has"
            )
        return Meaning({"capacity": tokens}, note)

    return Key("`--capacity`", read)


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


def words(choices: Mapping[str, Word]) -> Key:
    """A key that is one of a few words."""

    def read(where: str, value: Any, given: Given) -> Meaning:
        if not isinstance(value, str) or value not in choices:
            raise OptionError(f"{where} is {value!r}: choose one of {', '.join(choices)}")
        word = choices[value]
        if word.refusal is not None:
            raise OptionError(f"{where} is {value!r}, which no plan can honour: {word.refusal}")
        return Meaning(word.options, word.note and f"is {value!r}: {word.note}")

    says = ". ".join(f"`{name}`: {word.says}" for name, word in choices.items())
    return Key(says, read)


def packer(rule: str, compared: str | None) -> Word:
    """A rule to pack by, in whose place a plan takes its own."""
    compare = "" if compared is None else f"; `--strategy {compared}` comes nearest, to compare"
    return Word(note=f"{rule}; a plan looks for the fewest packs, composed otherwise{compare}")


def _drop_long(where: str, value: Any, given: Given) -> Meaning:
    # Without it NeMo keeps what looks too long, as its lengths are guesses, and drops it later if
    # it is. A counted length is the truth: what is not to be dropped cannot be planned.
    return Meaning({"on_long": "drop" if is_true(where, value) else "error"})


def _balance(where: str, value: Any, given: Given) -> Meaning:
    # NeMo deals visual tokens to the packs, so that ranks wait less for each other. Here the
    # schedule sees to that: the packs of a micro-step cost the same, vision tower included.
    return Meaning({"schedule": "stratified" if is_true(where, value) else "random"})


def _max_length(where: str, value: Any, given: Given) -> Meaning:
    limit, size = whole(where, value), given.get("pack_size")
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
KEYS = {
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
    "attn_implementation": ignored("the reader decides, collate(packs, attention=…)"),
    "pretokenize": ignored(
        "`packidx estimate` has counted the tokens before", bool, "true or false"
    ),
    "num_proc": ignored("it is about processes; --workers is packidx's own"),
    "enabled": Key("must be `true`: else there is nothing to plan", _enabled),
    "post_tokenize_hook_fn": Key(
        "refused: give it to `packidx estimate` as `--transform` or `--encode`", _hook
    ),
}


def read_section(path: str, section: Given, notes: list[str]) -> dict[str, Any]:
    """Fields of `PlanOptions` that the section stands for; what is to be known goes to `notes`.

    Raises:
        OptionError: a key or value is unknown, or no plan can honour it.
    """
    for name in section:
        if name not in KEYS:
            raise OptionError(f"{path}: unknown key {SECTION}.{name}: known are {', '.join(KEYS)}")
    options: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, key in KEYS.items():
        value = section.get(name)
        if value is None or value in ("none", "null", ""):
            continue
        at = f"{path}: {SECTION}.{name}"
        meaning = key.read(at, value, section)
        for option, asked in meaning.options.items():
            if options.setdefault(option, asked) != asked:
                raise OptionError(
                    f"{path}: {said_by[option]} and {SECTION}.{name} contradict each other: "
                    "keep one"
                )
            said_by.setdefault(option, f"{SECTION}.{name}")
        if meaning.note is not None:
            notes.append(f"{at} {meaning.note}")
    return options
