"""Options of a plan from a recipe of NeMo Automodel: its section ``packed_sequence:``.

    packed_sequence:
      pack_size: 8192
      packing_ratio: 0.9
      drop_long_samples: true

A whole recipe may be given: its other sections are the trainer's business. A key that is not known
is an error, so that a misspelt option never plans something else.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from packidx.errors import OptionError
from packidx.format.terms import MAX_CAPACITY
from packidx.io.option_files import options_of, read_members, read_options, read_section
from packidx.plan.options import PlanOptions

NEMO = "packed_sequence"
_SHIFTED = "counts tokens after the labels are shifted in NeMo, one fewer per sample than here"
_UNUSED = ("collate_max_length", "attn_implementation", "packing_format", "pretokenize", "num_proc")
_NOTES = {
    "pack_size": _SHIFTED,
    "packed_sequence_size": _SHIFTED,
    **dict.fromkeys(_UNUSED, "changes no plan"),
    "packing_strategy": "names a rule of NeMo's; `--strategy knapsack` or `next-fit` comes nearest",
}
"""Key of the section -> what is to be known of it."""


class PackedSequence(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of release 0.7."""

    pack_size: int | None = None
    packed_sequence_size: int | None = None
    packing_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    drop_long_samples: bool | None = None
    max_packs: int | None = None
    balance_media_tokens: bool | None = None
    max_length: int | None = None
    packing_format: Literal["neat", "thd"] | None = None
    packing_strategy: Literal["neat", "thd"] | None = None
    pad_to_multiple_of: int | None = None
    split_across_pack: bool = False
    prepacked: bool = False
    collate_max_length: Any = None
    attn_implementation: Any = None
    pretokenize: Any = None
    num_proc: Any = None
    enabled: bool = True
    post_tokenize_hook_fn: Any = None


def read_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """The options that the file `path` asks for.

    Returns:
        fields of `PlanOptions`, checked, any of which may be missing, capacity too; and sentences:
        what is to be known of some of them.

    Raises:
        OptionError: it cannot be read, has a key or value that is not understood, says one thing
            twice, or asks for what no plan can honour; the message names file and key.
    """
    what = f"recipe of NeMo Automodel: write {NEMO}: and its keys"
    recipe = options_of(read_options(path, what), path, what)
    if NEMO not in recipe:
        raise OptionError(f"{path} has no section {NEMO}:, so it says nothing of a plan")
    where = f"{path}: {NEMO}"
    given = {} if recipe[NEMO] == "none" else read_members(where, recipe[NEMO])
    given = {name: value for name, value in given.items() if value not in ("none", "null", "")}
    asked = read_section(where, given, PackedSequence)
    for name, (honoured, advice) in _REFUSED.items():
        if (value := getattr(asked, name)) != honoured:
            raise OptionError(f"{where}.{name} is {value!r}: {advice}")
    options = _to_plan_options(where, asked)
    try:
        PlanOptions(**{"capacity": MAX_CAPACITY, **options})
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    notes = [f"{where}.{name} {said}" for name, said in _NOTES.items() if name in given]
    return options, notes


_KEEP = (
    "plan the samples as they are before they are packed; --on-long split cuts those that fit none"
)
_REFUSED: dict[str, tuple[Any, str]] = {
    "enabled": (True, "packing is off, so there is nothing to plan"),
    "split_across_pack": (False, f"no plan can honour it: {_KEEP}"),
    "prepacked": (False, f"no plan can honour it: {_KEEP}"),
    "max_packs": (None, "a plan keeps all packs: leave it out and give the trainer max_steps"),
    "post_tokenize_hook_fn": (
        None,
        "it changes tokens after they were counted: give it to `packidx estimate` as --transform or"
        " --encode, and leave it out here",
    ),
}
"""Key -> the value that a plan can honour, and what to do about another one."""


def _to_plan_options(where: str, asked: PackedSequence) -> dict[str, Any]:
    """Return the fields of `PlanOptions` that a section comes to."""
    sizes = {asked.pack_size, asked.packed_sequence_size} - {None}
    if len(sizes) > 1:
        raise OptionError(f"{where}.packed_sequence_size contradicts pack_size: keep one")
    size, ratio = next(iter(sizes), None), asked.packing_ratio
    if size is not None and asked.max_length is not None and asked.max_length < size:
        raise OptionError(
            f"{where}.max_length is {asked.max_length}, below pack_size {size}: a plan takes any "
            "sample that fits a pack; name longer ones by --exclude, and leave max_length out"
        )
    options = {
        "capacity": size,
        "margin": None if ratio is None else float(1 - Fraction(str(ratio))),
        "align": asked.pad_to_multiple_of,
        # Without it NeMo keeps what looks too long, as its lengths are guesses. A counted length is
        # the truth: what is not to be dropped cannot be planned.
        "on_long": {True: "drop", False: "error", None: None}[asked.drop_long_samples],
        "schedule": {True: "stratified", False: "random", None: None}[asked.balance_media_tokens],
    }
    return {name: value for name, value in options.items() if value is not None}
