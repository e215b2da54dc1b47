"""How records are counted: the settings every process shares, and the counter made of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packidx.errors import BadRecord, OptionError, SourceError
from packidx.estimate.user_encoder import Encode, Measured, UserEncoder, counts_of
from packidx.estimate.verdicts import judged
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import Compared, Counts
from packidx.processor.folder import load_processor
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation, MediaInfo
from packidx.records.dialects.parse import parse
from packidx.user_code.transform import Function, Transform


@dataclass(frozen=True, slots=True)
class CounterSettings:
    """Settings that decide a record's counts; picklable if what the user gave is."""

    processor: str | None = None
    """Folder or name."""
    processor_settings: Mapping[str, Any] = field(default_factory=dict)
    """In place of the folder's own (`packidx.processor.settings.Given`)."""
    trust_remote_code: bool = False
    """Whether code in the processor's folder is run."""
    labels: str | None = None
    """Label policy in words (`LabelPolicy.parse`); None is the default."""
    encode: str | Encode | None = None
    """The user's own encoder, or ``module:NAME`` of it."""
    transform: str | Function | None = None
    seed: int = 0
    """Of the transform."""
    cheap: bool = False
    """Estimate without tokenizing or encoding anything."""

    def __post_init__(self) -> None:
        if self.encode is not None and self.processor is not None:
            raise OptionError("an encoder and a processor both say how to count: give one of them")
        if self.labels is not None and self.processor is None:
            raise OptionError("a label policy needs a processor: without one no labels are counted")
        if self.processor_settings and self.processor is None:
            raise OptionError("settings of a processor need the processor: name its folder")

    def build(self) -> RecordCounter:
        """The counter.

        Raises:
            SourceError, OptionError: the processor, encoder or transform cannot be used.
        """
        files = None
        if self.processor is not None:
            policy = DEFAULT_POLICY if self.labels is None else LabelPolicy.parse(self.labels)
            files = load_processor(
                self.processor, policy, self.processor_settings, self.trust_remote_code
            )
        encoder = None if self.encode is None else UserEncoder(self.encode)
        changes = self.transform
        transform = None if changes is None else Transform.load(changes, self.seed)
        return RecordCounter(files, encoder, transform, self.cheap)


@dataclass(slots=True)
class ExaminedRecord:
    """One record on its way to its counts."""

    sample_id: int = 0
    row: int = 0
    offset: int | None = None
    nbytes: int | None = None
    key: str | None = None
    pair: str | None = None
    conversation: Conversation | None = None
    infos: tuple[MediaInfo | None, ...] = ()
    measured: Measured | None = None
    error: BadRecord | None = None
    waits: bool = False
    """Whether its media's sizes are still to be looked up, in an object store."""


class RecordCounter:
    """Counts raw records: by a processor, by the user's encoder, or by guess.

    Attributes:
        files: the processor, None without one.
        encoder: the user's encoder, None without one.
        transform: what changes the files' records, None without one.
        opens_media: whether records are handed over with their media opened.
    """

    def __init__(
        self,
        files: ProcessorFiles | None,
        encoder: UserEncoder | None = None,
        transform: Transform | None = None,
        cheap: bool = False,
    ) -> None:
        self.files = files
        self.encoder = encoder
        self.transform = transform
        self._measures = encoder is not None and not cheap
        self.opens_media = self._measures
        if cheap and files is not None:
            files = replace(files, tokenizer=None)  # media as ever, text by guess
        self.counter = ConversationCounter(files)
        self._judge = functools.cache(self._judged)

    def _judged(self, kind: str) -> Compared:
        """What came of comparing samples of a kind that the parent did not see."""
        assert self.files is not None  # there was one to compare
        return judged(self.files, [kind])

    @property
    def decided(self) -> tuple[str, Compared]:
        """What the parent finds out and its workers take over: the text backend, and what came of
        comparing the processor with the real one."""
        text = self.counter.text
        return "tokenizers" if text is None else text.backend, self.counter.compared

    @decided.setter
    def decided(self, decided: tuple[str, Compared]) -> None:
        backend, self.counter.compared = decided
        is_compared = self.counter.compared.by is not None
        self.counter.judge = self._judge if is_compared else None
        if self.counter.text is not None:
            self.counter.text.backend = backend

    def warm(self) -> None:
        """Load what will be needed, before there is anything to count."""
        if self.counter.text is not None:
            self.counter.text.warm()

    def fingerprint(self) -> str | None:
        """The encoder's or the processor's; None where there is none that could be compared."""
        if self.encoder is not None:
            return self.encoder.fingerprint()
        return ConversationCounter(self.files).fingerprint()

    def fingerprints(self) -> tuple[str | None, ...]:
        """All that tells two counters apart."""
        files = None if self.files is None else self.files.fingerprint()
        transform = None if self.transform is None else self.transform.fingerprint
        return self.fingerprint(), files, transform

    def identity(self) -> tuple[str | None, ...]:
        """The same, made quickly: two processes that have it equal count equally."""
        files = None if self.files is None else self.files.source_digest
        encoder = None if self.encoder is None else self.encoder.fingerprint()
        transform = None if self.transform is None else self.transform.fingerprint
        return encoder, files, transform

    @property
    def counted_by(self) -> str | None:
        """Whose arithmetic counts media, where that is not exact."""
        vision = None if self.files is None else self.files.vision
        return None if vision is None else vision.counted_by

    @property
    def is_known(self) -> bool:
        """Whether `fingerprints` tell this counter from every other one."""
        return self.encoder is None or self.encoder.fingerprint() is not None

    def measure(self, record: dict[str, Any], item: ExaminedRecord) -> None:
        """Run the encoder on an opened record, where there is one to run.

        Raises:
            BadRecord: the encoder cannot build a sample of it.
        """
        if self._measures and self.encoder is not None:
            try:
                item.conversation = parse(record)
            except BadRecord:  # of a dialect that only the encoder knows
                item.conversation = None
            item.measured = self.encoder.measure(record, item.conversation)

    def count(self, items: Sequence[ExaminedRecord]) -> Counts:
        """The counts of a batch."""
        if self._measures:
            return counts_of([item.measured for item in items if item.measured is not None])
        conversations = [item.conversation for item in items if item.conversation is not None]
        return self.counter.count(conversations, [item.infos for item in items])


def without_references(conversation: Conversation) -> Conversation:
    """`conversation` without what its media are: opened ones hold their files' bytes."""
    turns = []
    for turn in conversation.turns:
        parts = (part if isinstance(part, str) else replace(part, ref=None) for part in turn.parts)
        turns.append(replace(turn, parts=tuple(parts)))
    return replace(conversation, turns=tuple(turns))


def check_renders(counter: RecordCounter) -> None:
    """Text is never guessed where a processor was given, unless that is asked for.

    Raises:
        SourceError: the processor lacks a file that text is counted with.
    """
    processor = counter.files
    if processor is None or (processor.tokenizer and processor.template):
        return
    lacking = "tokenizer.json" if processor.tokenizer is None else "chat_template.jinja"
    raise SourceError(
        f"there is no {lacking} in {processor.folder}, so text cannot be counted: add the model's, "
        "or guess all text with --method heuristic"
    )
