"""Samples as a model will see them, on the terminal: what is trained stands out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .console import count, print_marked_text, say

if TYPE_CHECKING:
    from packidx.inspect.shown import ShownSample


def shown_samples(path: str, number: int, options: Mapping[str, Any]) -> list[ShownSample]:
    """The first samples of the table at `path`, that was counted with the command's `options`.

    Raises:
        PackidxError: the encoder cannot be loaded.
    """
    from packidx.encode import ProcessorEncoder
    from packidx.inspect import shown
    from packidx.user_code.named import load_named
    from packidx.user_code.transform import Transform

    words: shown.Words | shown.Numbers = shown.Numbers()
    if options["encode"] is not None:
        encode = load_named(options["encode"], "--encode")
    else:
        policy = {} if options["labels"] is None else {"policy": options["labels"]}
        encode = ProcessorEncoder(
            options["processor"],
            **policy,
            settings=options["processor_settings"],
            trust_remote_code=options["trust_remote_code"],
        )
        words = shown.Words(encode.files.tokenizer)
    given, transform = options["transform"], None
    if given is not None:
        transform = Transform.load(given, options["seed"])
    return shown.shown_samples(path, number, encode, words, transform)


def print_samples(samples: list[ShownSample]) -> None:
    """Each sample: what it is called, how long it is, and its text."""
    for sample in samples:
        named = " ".join(filter(None, (sample.source, sample.key, sample.pair)))
        say("")
        if sample.error is not None:
            say(f"── {named}: cannot be built: {sample.error}")
            continue
        trained = f"{count(sample.label_tokens)} trained"
        if not sample.label_tokens:
            trained = "NOTHING is trained"
        planned = ""
        if sample.length != sample.planned_length:
            planned = f" ({count(sample.planned_length)} by the table)"
        say(f"── {named}: {count(sample.length)} tokens{planned}, {trained}")
        print_marked_text([(run.text, run.trained) for run in sample.runs])
    if not samples:
        say("no sample to show: every record was rejected")
