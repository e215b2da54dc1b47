"""The one list of a plan's options. All that lists them is made from it; it imports no library."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, get_args, get_type_hints

from packidx.errors import OptionError
from packidx.format.terms import MAX_CAPACITY, SCHEDULE_NAMES, GroupBy, OnLong
from packidx.io.files import parse_size

DECIMALS = 9
"""Of a number that is computed and not stated by the user."""

_NUMBER = re.compile(r"-?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?|\d+/\d+)", re.ASCII)
_MAX_DIGITS = 40  # and two of an exponent: longer ones are slow to compute with, and slips


def read_number(text: str) -> Fraction | None:
    """The number that `text` states, such as 2, 0.5, 1e-3 or 1/3, exactly; None if it is none."""
    text = text.strip()
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def number_text(number: Fraction) -> str:
    """`number`, 0 or more, as its shortest exact decimal, else as p/q; `read_number` takes both."""
    for digits in range(DECIMALS + 1):
        scaled = number * 10**digits
        if scaled.denominator == 1:
            integer, decimals = divmod(scaled.numerator, 10**digits)
            return f"{integer}.{decimals:0{digits}d}" if digits else f"{integer}"
    return str(number)


def round_number(number: Fraction) -> Fraction:
    """The nearest number with `DECIMALS` decimals, half to even."""
    return Fraction(round(number * 10**DECIMALS), 10**DECIMALS)


def parse_share(text: str) -> Fraction:
    """The share that is to be held out, exactly as it is written: ``'0.01'`` is 1/100.

    Raises:
        OptionError: it is not a number, below 0, or leaves nothing to train on.
    """
    share = read_number(text)
    if share is None or not 0 <= share < 1:
        raise OptionError(
            f"holdout is {text!r:.40}: give a share of the samples, from 0 to below 1"
        )
    return share


@dataclass(frozen=True, slots=True)
class Option:
    """An option in words, and how it is treated.

    Attributes:
        help: for the command line, in a sentence.
        metavar: what the help calls the value.
        choices: the words that a value may be; empty where others are possible.
        minimum: of a number of things, which is never above `MAX_CAPACITY`.
        shown_default: where the default itself does not say it; empty where it needs no telling.
        is_stored: the manifest has it; others change no plan, or stand there as what they came to.
    """

    help: str
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    shown_default: str | None = None
    is_stored: bool = True


def option_metadata(help: str, metavar: str = "N", **treatment: Any) -> dict[str, Option]:
    """Metadata of a field that has no default; arguments as `Option` has them."""
    if "choices" in treatment:
        metavar = "|".join(treatment["choices"])
    return {"option": Option(help, metavar, **treatment)}


def option_field(default: Any, help: str, metavar: str = "N", **treatment: Any) -> Any:
    """A field with a default; the other arguments as `Option` has them."""
    return field(default=default, metadata=option_metadata(help, metavar, **treatment))


def to_flag(name: str) -> str:
    """A field's name as the command line has it."""
    return name.replace("_", "-")


MICRO_STEPS = 8
STRATEGIES = (*("auto", "bfd", "balanced", "lp", "knapsack", "first-fit", "next-fit", "window:N"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of one plan. The help of each says what it is, and the text under it what is more."""

    capacity: int = field(
        kw_only=False,
        metadata=option_metadata("The most tokens a pack may hold."),
    )
    strategy: str = option_field(
        "auto",
        "auto (the fewest packs, well mixed), bfd, balanced, lp; or another packer's rule, to "
        "compare: knapsack, first-fit, next-fit, window:N.",
        "NAME",
    )
    """``'auto'``: the fewer packs of ``bfd`` (best-fit-decreasing over all samples at once) and
    ``lp`` (column generation, tried where the certified gap exceeds 0.1 %), and ``balanced``
    (samples of all lengths in every pack) where it needs no more. The rules of other packers:
    ``knapsack`` (NeMo's: worst-fit-decreasing), ``first-fit``, ``next-fit``, ``window:N``
    (best-fit-decreasing of N samples at a time)."""
    seed: int = option_field(0, "Same seed, same lengths: same bytes.")
    """Picks which of equal samples go together and the order of the packs."""
    on_long: str = option_field(
        "drop",
        "What to do with a sample longer than a pack; split and truncate cut no media.",
        choices=get_args(OnLong),
    )
    """``drop`` it with reason ``too_long``, ``split`` a text into pieces, ``truncate`` its tail, or
    ``error``."""
    margin: float | None = option_field(
        None,
        "Keep this share of each pack free.",
        "X",
        shown_default="0; 0.02 for precomputed lengths, 0.1 for heuristic ones",
    )
    """0 <= margin < 1: floor((1 - margin) * capacity) tokens are planned."""
    max_images: int | None = option_field(None, "The most images a pack may hold.", minimum=1)
    max_vision_patches: int | None = option_field(
        None, "The most vision patches a pack may hold.", minimum=1
    )
    max_samples: int | None = option_field(None, "The most samples a pack may hold.", minimum=1)
    memory: str | None = option_field(
        None, "The most memory a pack may take, by --memory-model.", "SIZE", is_stored=False
    )
    memory_model: str | None = option_field(
        None,
        "Bytes of a pack: a=…,b=…,c=…,d=… of a token, a patch, a sample, and in all; or a StepLog.",
        "MODEL|LOG",
        is_stored=False,
    )
    """Weights are fitted to the peaks that a `StepLog` kept, of one pack per forward pass."""
    group_by: str | None = option_field(
        None,
        "Only samples of one kind share a pack.",
        choices=get_args(GroupBy),
    )
    align: int = option_field(
        1,
        "Every sample takes a multiple of N tokens (context parallelism: 2 x cp).",
        minimum=1,
        shown_default="",
    )
    pad_pack_to: int = option_field(
        1,
        "Every pack is padded to a multiple of N tokens (pipeline, FP8).",
        minimum=1,
        shown_default="",
    )
    reserve: int = option_field(
        0, "Keep N tokens of every pack free for what the reader adds.", minimum=0, shown_default=""
    )
    """A dummy image in packs without any; a multiple of `align` and `pad_pack_to`."""
    holdout: float | str | None = option_field(
        None,
        "Keep this share of the samples, by a hash of their key, out.",
        "SHARE",
    )
    holdout_only: float | str | None = option_field(
        None,
        "Plan the samples that --holdout SHARE keeps out.",
        "SHARE",
        is_stored=False,
    )
    exclude: str | None = option_field(
        None,
        "Parquet with the `key` or `sample_id` of samples to leave out.",
        "FILE",
        is_stored=False,
    )
    """Beside ``key`` a column ``source`` may say whose key it is."""
    schedule: str = option_field(
        "stratified",
        "Order of the packs: stratified (micro-steps of equal cost, each step of the whole mix), "
        "random, or by:COLUMN (packs by their samples' mean rank in a column).",
        "NAME",
    )
    """A column of the lengths, or of the file that `order` names."""
    order: str | None = option_field(
        None,
        "Parquet with the column of --schedule by:COLUMN, and `key` or `sample_id`.",
        "FILE",
        is_stored=False,
    )
    global_batch: int | None = option_field(
        None,
        "Packs per optimizer step, over all ranks and accumulation, for the schedule.",
        minimum=1,
        shown_default="512, fewer for small plans",
    )
    """The default, None: 512 or, of fewer than 4096 packs, an eighth of them."""
    micro_steps: int | None = option_field(
        None,
        "Micro-steps of a global batch; the packs of one cost about the same.",
        minimum=1,
        shown_default="8, fewer where that does not divide the global batch",
    )
    """None becomes a number: the largest up to 8 that divides `global_batch`."""
    align_media: bool = option_field(
        False,
        "All packs of a micro-step have media, or none has; a few packs are divided for it.",
        shown_default="",
    )
    """For FSDP without dummy images; the packs of a micro-step are those of all ranks."""
    cost: str | None = option_field(
        None,
        "The cost model of a pack: a preset, weight=value,… or both.",
        "MODEL",
        shown_default="qwen2.5-vl-7b",
        is_stored=False,
    )
    window: int | str = option_field(
        "4GB",
        "Plan N shards (of a bare table N samples) at a time: the samples of a pack lie near each "
        "other; or as many as take SIZE of memory.",
        "N|SIZE",
        is_stored=False,
    )
    """A size enters the plan only as the windows that it makes: all at once, if it suffices."""
    lanes: int | None = option_field(
        None,
        "Plan what a stream of N lanes gives out; --window is then the samples of a lane that are "
        "packed together, by default 4000.",
        minimum=1,
    )
    """The plan that training on a `StreamingPackedDataset` freezes to (docs/streams.md)."""
    mix: tuple[str, ...] = option_field(
        (),
        "How often a sample of a source is seen per epoch, or its share of the epoch's tokens: "
        "photos=2, photos=30%. Repeat for more.",
        "SOURCE=WEIGHT",
        is_stored=False,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "mix", mix_of(self.mix))
        for name, declared in TYPES.items():
            value, said = getattr(self, name), OPTIONS[name]
            kinds = get_args(declared) or (declared,)
            taken = (*kinds, int) if float in kinds else kinds
            if name != "mix" and not isinstance(value, taken):
                raise OptionError(f"{to_flag(name)} is {value!r}, which is not {_KINDS[kinds[0]]}")
            if said.choices and value not in (None, *said.choices):
                choices = ", ".join(said.choices)
                raise OptionError(f"{to_flag(name)} is {value!r}: choose one of {choices}")
            if said.minimum is not None and value is not None:
                _check_range(to_flag(name), value, said.minimum, MAX_CAPACITY)
        steps = micro_steps_of(self.global_batch) if self.micro_steps is None else self.micro_steps
        object.__setattr__(self, "micro_steps", steps)
        choose = ": choose how many tokens a pack may hold,"
        _check_range("capacity", self.capacity, 1, MAX_CAPACITY, choose)
        if self.strategy not in STRATEGIES[:-1] and not re.fullmatch(
            r"window:[1-9]\d{0,9}", self.strategy
        ):
            raise OptionError(
                f"strategy is {self.strategy!r}: choose one of {', '.join(STRATEGIES)}"
            )
        if self.margin is not None and not 0 <= self.margin < 1:
            raise OptionError(f"margin is {self.margin}: it must be at least 0 and below 1")
        for name in ("align", "pad_pack_to"):
            value = getattr(self, name)
            _check_range(to_flag(name), value, 1, self.capacity)
            if self.reserve % value:
                raise OptionError(
                    f"reserve {self.reserve} is not a multiple of {to_flag(name)} {value}: raise it"
                )
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise OptionError(f"seed is {self.seed}: it must fit 64 bits")
        if self.global_batch is not None and self.global_batch % steps:
            raise OptionError(
                f"global-batch {self.global_batch} is not a multiple of the {steps} "
                "micro-steps of a step: change one of them, for example to micro-steps "
                f"{math.gcd(self.global_batch, steps)}"
            )
        if self.holdout is not None and self.holdout_only is not None:
            raise OptionError("holdout and holdout-only plan one side each: give one of them")
        for share in (self.holdout, self.holdout_only):
            if share is not None:
                parse_share(str(share))
        is_by = self.schedule.startswith("by:") and len(self.schedule) > 3
        if self.schedule not in SCHEDULE_NAMES[:2] and not is_by:
            raise OptionError(
                f"schedule is {self.schedule!r}: choose one of {', '.join(SCHEDULE_NAMES)}"
            )
        if is_by and self.lanes is not None:
            raise OptionError("schedule by:COLUMN cannot be combined with lanes: leave one out")
        if self.align_media and (self.schedule != "stratified" or self.lanes is not None):
            raise OptionError(
                "align-media cannot be combined with "
                f"{'lanes' if self.lanes is not None else f'schedule {self.schedule}'}, whose"
                " micro-steps are not of one kind: leave one of them out"
            )
        if self.rows_of_window is None:
            self.memory_bytes()

    @property
    def rows_of_window(self) -> int | None:
        """Shards, or samples, of a window; None if `window` is a size."""
        text = str(self.window).strip()
        if not re.fullmatch(r"-?\d+", text, re.ASCII):
            return None
        _check_range("window", int(text), 1, MAX_CAPACITY)
        return int(text)

    def memory_bytes(self) -> int:
        """The size that `window` states, in bytes."""
        limit = parse_size(str(self.window))
        if not limit:
            raise OptionError(f"window is {self.window!r}: say it like 64, or 4GB")
        return limit


_KINDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}

OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(PlanOptions)}
"""Field of `PlanOptions` -> what is said of it, in the order of the help."""

DEFAULTS = {each.name: each.default for each in fields(PlanOptions)} | {"micro_steps": MICRO_STEPS}
"""Field of `PlanOptions` -> its default."""


def mix_of(mix: Any) -> tuple[str, ...]:
    """A mix as ``'source=weight'``, which may be given as a dict."""
    if isinstance(mix, Mapping):
        return tuple(f"{name}={weight}" for name, weight in mix.items())
    is_listed = isinstance(mix, Sequence) and not isinstance(mix, str)
    if not is_listed or not all(isinstance(each, str) for each in mix):
        raise OptionError(f"mix is {mix!r}: write {{'SOURCE': WEIGHT}}, such as {{'photos': 2}}")
    return tuple(mix)


def micro_steps_of(global_batch: int | None) -> int:
    """Parts of a step whose number was not asked for: 8, or the most that divide it."""
    size = MICRO_STEPS if global_batch is None else global_batch
    return max(n for n in range(1, MICRO_STEPS + 1) if size % n == 0)


def _check_range(name: str, value: int, low: int, high: int, what: str = ": it must be") -> None:
    if type(value) is not int:
        raise OptionError(f"{name} is {value!r}, which is not an integer")
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}{what} {low} to {high}")


GROUPS: dict[str, tuple[str, ...]] = {
    "what to pack": ("capacity", "on_long", "mix", "holdout", "holdout_only", "exclude"),
    "what may share a pack": (
        *("strategy", "group_by", "max_samples", "max_images", "max_vision_patches"),
        *("memory", "memory_model", "seed"),
    ),
    "room in a pack": ("margin", "align", "pad_pack_to", "reserve"),
    "order": ("schedule", "order", "global_batch", "micro_steps", "align_media", "cost"),
    "scale": ("window", "lanes"),
}
"""Name of a group -> fields of `PlanOptions`."""


TYPES: dict[str, Any] = get_type_hints(PlanOptions)
"""Field of `PlanOptions` -> its type."""


def command_line(lengths: str, output: str, options: Mapping[str, Any]) -> str:
    """`packidx plan` with `options`, fields of `PlanOptions`; what is None is not said."""
    return shlex.join(["packidx", "plan", lengths, "-o", output, *command_words(options)])


def command_words(options: Mapping[str, Any]) -> list[str]:
    """`options` as they are typed, in the order of the fields."""
    words = []
    for name in OPTIONS:
        value = options.get(name)
        if value is None or value is False:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{to_flag(name)}"] if each is True else [f"--{to_flag(name)}", str(each)]
    return words
