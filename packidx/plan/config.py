"""Options of a plan from a YAML or JSON file: NeMo's packing keys, and ours.

    packed_sequence:            # as NeMo Automodel's recipes for vision-language models have it
      pack_size: 8192
      packing_ratio: 0.9
      drop_long_samples: true
    packidx:                    # the fields of `PlanOptions`, with - or _
      align: 16
      mix: {photos: 2}

A whole recipe may be given: its other sections are the trainer's business. A key that is not known
is an error, so that a misspelt option never plans something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from packidx.errors import OptionError
from packidx.format.terms import MAX_CAPACITY
from packidx.io.unique_keys import load_json, load_yaml
from packidx.plan.options import OPTIONS, PlanOptions, of_type, typed

OWN, NEMO = "packidx", "packed_sequence"
_MAX_BYTES = 1 << 20
_SHIFTED = (
    "counts in NeMo after the labels are shifted, one token less per sample: `shift: true` under "
    "packidx: plans that"
)
_FORMATS = {"neat": "indexed", "thd": "thd"}
_NOTES = {
    "pack_size": _SHIFTED,
    "packed_sequence_size": _SHIFTED,
    "collate_max_length": "changes no plan: collate pads to the longest pack; pad_pack_to sets the "
    "plan's sizes",
    "attn_implementation": "changes no plan: the reader decides, collate(packs, attention=…)",
    "pretokenize": "changes no plan: `packidx estimate` has counted the tokens before",
    "num_proc": "changes no plan: it is about processes; --workers is packidx's own",
    "packing_strategy": "names a rule of NeMo's; a plan looks for the fewest packs, composed "
    "otherwise; `--strategy knapsack` or `next-fit` comes nearest, to compare",
}
"""Key of NeMo's section -> what is to be known of it."""

KEYS = (
    *("pack_size", "packed_sequence_size", "packing_ratio", "drop_long_samples", "max_packs"),
    *("balance_media_tokens", "max_length", "packing_format", "packing_strategy"),
    *("pad_to_multiple_of", "split_across_pack", "prepacked", "collate_max_length"),
    *("attn_implementation", "pretokenize", "num_proc", "enabled", "post_tokenize_hook_fn"),
)
"""All keys of NeMo's section."""


def read_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """The options that the file `path` asks for.

    Returns:
        fields of `PlanOptions`, checked, any of which may be missing, capacity too; and sentences:
        what is to be known of some of them.

    Raises:
        OptionError: it cannot be read, has a key or value that is not understood, says one thing
            twice, or asks for what no plan can honour; the message names file and key.
    """
    file = load_config(path)
    _check_sections(path, file)
    notes: list[str] = []
    theirs = _nemo(path, _section(path, file, NEMO), notes)
    own = _own(path, _section(path, file, OWN))
    for name in theirs.keys() & own.keys():
        raise OptionError(f"{path}: {OWN}.{name} and {NEMO} say the same thing: give one of them")
    options = {**theirs, **own}
    _check(path, options)
    return options, notes


def _check(path: str, options: Mapping[str, Any]) -> None:
    try:
        PlanOptions(**{"capacity": MAX_CAPACITY, **options})
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None


def load_config(path: str) -> dict[str, Any]:
    """Return what a file of YAML or JSON says.

    Raises:
        OptionError: it cannot be read, is neither, or says no more than a value.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise OptionError(f"{path} is over {_MAX_BYTES >> 20} MiB: it is no configuration")
        value = load_json(data) if path.endswith(".json") else load_yaml(data)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}; check the path") from None
    except ValueError as error:
        form = "JSON" if path.endswith(".json") else "YAML"
        raise OptionError(f"{path} is not valid {form}: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{path} has no sections: write packed_sequence: or packidx: and options")
    return value


def _check_sections(path: str, recipe: Mapping[Any, Any]) -> None:
    for name in recipe:
        if name in KEYS:
            raise OptionError(f"{path}: {name} stands alone: it belongs under {NEMO}:")
        if name != "seed" and str(name).replace("-", "_") in OPTIONS:  # a recipe has its own seed
            raise OptionError(f"{path}: {name} stands alone: it belongs under {OWN}:")
    if not recipe.keys() & {NEMO, OWN}:
        raise OptionError(
            f"{path} has neither a section {NEMO}: nor {OWN}:, so it says nothing of a plan: add "
            "one of them"
        )


def _section(path: str, recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = recipe.get(name)
    if value is None or value == "none":
        return {}
    if not isinstance(value, dict):
        raise OptionError(f"{path}: {name} is {value!r}: write its keys under it, each on a line")
    return value


def _own(path: str, section: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in section.items():
        name = str(key).replace("-", "_")
        if name not in OPTIONS:
            raise OptionError(
                f"{path}: unknown key packidx.{key}: known are {', '.join(OPTIONS)}; data and "
                "output are arguments of the command"
            )
        if name in options:
            raise OptionError(f"{path}: packidx.{name} is given twice, with - and _: keep one")
        if value is not None:
            options[name] = typed(f"{path}: packidx.{key}", name, value)
    return options


def _nemo(path: str, section: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fields of `PlanOptions` that NeMo Automodel's section stands for; what is to be known goes to
    `notes`.

    Raises:
        OptionError: a key or value is unknown, or no plan can honour it.
    """
    for name in section:
        if name not in KEYS:
            raise OptionError(f"{path}: unknown key {NEMO}.{name}: known are {', '.join(KEYS)}")
    options: dict[str, Any] = {}
    for name in KEYS:
        value = section.get(name)
        if value is None or value in ("none", "null", ""):
            continue
        at = f"{path}: {NEMO}.{name}"
        for option, asked in _meaning(at, name, value, section).items():
            if options.setdefault(option, asked) != asked:
                raise OptionError(f"{at} contradicts another key of {option}: keep one")
        if name in _NOTES:
            notes.append(f"{at} {_NOTES[name]}")
        if name == "packing_format":
            attention = f"collate(packs, attention={_FORMATS[value]!r})"
            notes.append(f"{at} changes no plan: the reader decides, {attention}")
    return options


def _meaning(at: str, name: str, value: Any, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a key comes to, as fields of `PlanOptions`."""

    def whole() -> int:
        number: int = of_type(at, value, int, "a whole number")
        return number

    def truth() -> bool:
        answer: bool = of_type(at, value, bool, "true or false")
        return answer

    if name in ("pack_size", "packed_sequence_size"):
        if whole() == 0:
            raise OptionError(f"{at} is 0, which turns packing off: say how many tokens a pack has")
        return {"capacity": value}
    if name == "packing_ratio":
        ratio = Fraction(str(typed(at, "margin", value)))
        if not 0 < ratio <= 1:
            raise OptionError(f"{at} is {value}: it must be above 0 and at most 1")
        return {"margin": float(1 - ratio)}
    if name == "max_packs":
        return {"max_packs": whole()}
    if name == "pad_to_multiple_of":
        return {"align": whole()}
    if name == "drop_long_samples":
        # Without it NeMo keeps what looks too long, as its lengths are guesses. A counted length is
        # the truth: what is not to be dropped cannot be planned.
        return {"on_long": "drop" if truth() else "error"}
    if name == "balance_media_tokens":
        return {"schedule": "stratified" if truth() else "random"}
    if name == "max_length":
        size = section.get("pack_size")
        if type(size) is int and whole() < size:
            raise OptionError(
                f"{at} is {value}, below pack_size {size}: a plan takes any sample that fits a "
                "pack; name longer ones by exclude under packidx:, and leave max_length out"
            )
    elif name in ("packing_format", "packing_strategy") and value not in _FORMATS:
        raise OptionError(f"{at} is {value!r}: choose neat or thd")
    elif name == "enabled" and not truth():
        raise OptionError(f"{at} is false: packing is off, so there is nothing to plan")
    elif name in ("split_across_pack", "prepacked") and value is not False:
        raise OptionError(
            f"{at} is {value!r:.80}, which no plan can honour: plan the samples as they are before "
            "they are packed; `on-long: split` under packidx: cuts those that fit no pack"
        )
    elif name == "post_tokenize_hook_fn":
        raise OptionError(
            f"{at} is {value!r}, which changes tokens after they were counted: give it to "
            "`packidx estimate` as --transform or --encode, and leave it out here"
        )
    return {}
