"""How records are counted: the settings every process shares, and the counter made of them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packidx.encode.loading import load_processor
from packidx.errors import BadRecord, LimitError, MismatchError, OptionError
from packidx.estimate.compare import Compared, Comparer
from packidx.estimate.user_encoder import Encode, Measured, UserEncoder, counts_of, measure_sample
from packidx.format.manifest import DEFAULT, Layout
from packidx.io import storage
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import HEURISTIC, Counts
from packidx.processor.kinds import KINDS, record_kind
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.gigatoken import Gigatoken
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.conversation import Conversation, Media, MediaInfo, map_media
from packidx.records.media.opener import (
    MediaOpener,
    check_reference,
    is_remote,
    media_info,
)
from packidx.records.media.paths import MediaRoot
from packidx.records.read import ReadRecord, opened_record
from packidx.user_code import Function, Transform


@dataclass(frozen=True, slots=True)
class CounterSettings:
    """Settings that decide a record's counts; picklable if what the user gave is."""

    processor: str | None = None
    """Folder or name."""
    processor_settings: Mapping[str, Any] = field(default_factory=dict)
    """In place of the folder's own (`packidx.processor.folder.Given`)."""
    trust_remote_code: bool = False
    """Whether code in the processor's folder is run."""
    labels: str | None = None
    """Label policy in words (`LabelPolicy.parse`); None is the default."""
    encode: str | Encode | None = None
    """The user's own encoder, or ``module:NAME`` of it."""
    transform: str | Function | None = None
    seed: int = 0
    """Of the transform."""

    def __post_init__(self) -> None:
        if self.encode is not None and self.processor is not None:
            raise OptionError("an encoder and a processor both say how to count: give one of them")
        if self.labels is not None and self.processor is None:
            raise OptionError("a label policy needs a processor: without one no labels are counted")
        if self.processor_settings and self.processor is None:
            raise OptionError("settings of a processor need the processor: name its folder")

    def load(self) -> ProcessorFiles | None:
        """Load the processor; None without one.

        Raises:
            SourceError, OptionError: the processor cannot be used.
        """
        if self.processor is None:
            return None
        policy = DEFAULT_POLICY if self.labels is None else LabelPolicy.parse(self.labels)
        return load_processor(
            self.processor, policy, self.processor_settings, self.trust_remote_code
        )


@dataclass(slots=True)
class ExaminedRecord:
    """One record on its way to its counts."""

    sample_id: int = 0
    row: int = 0
    offset: int | None = None
    nbytes: int | None = None
    key: str | None = None
    conversation: Conversation | None = None
    infos: tuple[MediaInfo | None, ...] = ()
    measured: Measured | None = None
    kind: str | None = None
    """Kind of the record, if a processor counts it."""
    is_sure: bool = True
    """As of `Comparer.is_sure`."""
    error: BadRecord | None = None
    waits: bool = False
    """Whether its media's sizes are still to be looked up, in an object store."""


class RecordCounter:
    """Counts raw records: by a processor, by the user's encoder, or by guess.

    Args:
        settings: how to count.
        files: what `settings` load as a processor: a worker gets the parent's.
        compared: kinds that the parent compared.
        fast: gigatoken, if it counts texts.

    Attributes:
        encoder: the user's encoder, None without one.
        transform: the function that changes the files' records, None without one.

    Raises:
        OptionError: the encoder or the transform cannot be used.
    """

    def __init__(
        self,
        settings: CounterSettings,
        files: ProcessorFiles | None = None,
        compared: Compared | None = None,
        fast: Gigatoken | None = None,
    ) -> None:
        self.settings, self.files = settings, files
        self.encoder = None if settings.encode is None else UserEncoder(settings.encode)
        changes = settings.transform
        self.transform = None if changes is None else Transform.load(changes, settings.seed)
        self.counter = ConversationCounter(files)
        self.comparer: Comparer | None = None
        if files is not None and self.counter.text is not None:
            self.counter.text.fast = fast
            self.comparer = Comparer(files, compared)

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

    @property
    def loaded(self) -> tuple[str | None, ...]:
        """Fingerprints of what each process loads by itself: the encoder and the transform."""
        encoder = None if self.encoder is None else self.encoder.fingerprint()
        return encoder, None if self.transform is None else self.transform.fingerprint

    @property
    def is_known(self) -> bool:
        """Return whether `fingerprints` tell this counter from every other one."""
        return self.encoder is None or self.encoder.fingerprint() is not None

    def compare(
        self, item: ExaminedRecord, shard: ShardContext, record: ReadRecord, *, only: bool = False
    ) -> None:
        """Build a record with the real processor if its kind is new, or is not counted by rules.

        Args:
            item: the record, examined; it gets the numbers of the built sample.
            only: compare a new kind, and build nothing else.

        Raises:
            BadRecord: it cannot be built, or a medium cannot be decoded.
        """
        talk, comparer = item.conversation, self.comparer
        if comparer is None or talk is None or talk.input_ids is not None:
            return
        kind = item.kind = record_kind(talk, fine=comparer.files.is_probed)
        if item.error is not None:
            return
        is_sure = item.is_sure = not talk.media or comparer.is_sure(talk, item.infos)
        if is_sure and not comparer.needs(kind):
            return
        if record.conversation is not None:
            talk = MediaOpener(shard.root).open(record.conversation)
        built = comparer.build(talk, kind, only_compare=only, is_sure=is_sure)
        if built is not None:
            kinds = tuple(KINDS.index(medium.kind) for medium in talk.media)
            item.measured = measure_sample(built, kinds)

    def count(self, items: Sequence[ExaminedRecord]) -> list[tuple[Counts, list[int]]]:
        """Count a batch.

        Returns:
            Counts, and the numbers of the records that they are of: of those that were built, and
            of those that are counted by rules.
        """
        counted = []
        is_built = [item.measured is not None for item in items]
        numbers = [number for number, built in enumerate(is_built) if built]
        if numbers:
            measured = [each for number in numbers if (each := items[number].measured)]
            counted.append((counts_of(measured), numbers))
        rules = [number for number, built in enumerate(is_built) if not built]
        talks = [talk for number in rules if (talk := items[number].conversation) is not None]
        if rules and self.encoder is None:
            counts = self.counter.count(talks, [items[number].infos for number in rules])
            for at, number in enumerate(rules):
                kind, is_sure = items[number].kind, items[number].is_sure
                if kind and self.comparer and not self.comparer.is_exact(kind, is_sure):
                    counts.method[at] = max(counts.method[at], HEURISTIC)
            counted.append((counts, rules))
        return counted


def without_references(conversation: Conversation) -> Conversation:
    """`conversation` without what its media are: opened ones hold their files' bytes."""
    return map_media(conversation, lambda medium: replace(medium, ref=None))


BATCH = 512
"""Records that are tokenised together."""

_MAX_TOKENS = 2**31 - 1  # the columns are int32


@dataclass(frozen=True, slots=True)
class ShardContext:
    """All that the rows of one shard have in common."""

    number: int
    name: str
    """File name, or the shortest path suffix that tells it from the table's other shards."""
    path: str
    source: str
    root: MediaRoot
    """Where its records' media may lie."""
    sized: bool
    """Whether sizes matter where token counts are stated (that is, a processor is given)."""
    container: str = JSONL
    layout: Layout = DEFAULT
    has_media: bool = True
    """Whether records of its source may have media: only where none has is a placeholder text."""


def examine_batch(
    records: Iterable[ReadRecord],
    shard: ShardContext,
    shift: int,
    counter: RecordCounter,
    *,
    only_compare: bool = False,
) -> list[ExaminedRecord]:
    """Look up the sizes of records' media, and compare or build records that need it.

    Sizes that an object store is asked for are asked for together: what takes time is to wait.

    Args:
        shift: how much a record's sample id is more than its row.
        only_compare: compare new kinds of records, and build nothing else.
    """
    rows: list[ExaminedRecord] = []
    waiting: list[tuple[ExaminedRecord, ReadRecord]] = []

    def compare(item: ExaminedRecord, record: ReadRecord) -> None:
        with _errors_kept(item):
            counter.compare(item, shard, record, only=only_compare)

    for record in records:
        item = _begun(record, shard, record.locator.row + shift, counter)
        rows.append(item)
        if item.waits:
            waiting.append((item, record))
        else:
            compare(item, record)
    if waiting:
        with warnings.catch_warnings():
            # Filters belong to all threads: each would take away and bring back the others'.
            warnings.simplefilter("ignore")
            storage.overlapped(lambda pair: _look(pair[0], shard), waiting)
        for item, record in waiting:
            compare(item, record)
    return rows


def _begun(
    record: ReadRecord, shard: ShardContext, sample_id: int, counter: RecordCounter
) -> ExaminedRecord:
    """Begin the row of a record, and look up the sizes of media that are not in an object store."""
    item = ExaminedRecord(sample_id=sample_id, **record.locator._asdict(), key=record.key)
    if counter.encoder is not None and record.raw is not None:
        with _errors_kept(item):
            opened = opened_record(record, MediaOpener(shard.root))
            item.measured = counter.encoder.measure(opened, record.conversation)
            if record.conversation is not None:
                item.conversation = without_references(record.conversation)
    elif record.error is not None:
        item.error = record.error
    else:
        with _errors_kept(item):
            item.conversation = talk = record.conversation
            item.waits = talk is not None and any(is_remote(m, shard.root) for m in talk.media)
            if not item.waits:
                _look(item, shard)
    return item


def _look(item: ExaminedRecord, shard: ShardContext) -> None:
    """Find out the sizes of a record's media."""
    item.waits = False
    if item.conversation is None:
        return
    with _errors_kept(item):
        item.infos = tuple(_info(medium, shard) for medium in item.conversation.media)
        if any(not isinstance(medium.ref, str) for medium in item.conversation.media):
            # Content of files: a batch must not hold that of all its records.
            item.conversation = without_references(item.conversation)


@contextlib.contextmanager
def _errors_kept(item: ExaminedRecord) -> Iterator[None]:
    """Keep what is wrong with a record in it."""
    try:
        yield
    except BadRecord as error:
        item.conversation, item.error = None, error
    except RecursionError as error:
        text = f"the record is too large: {type(error).__name__}"
        item.conversation, item.error = None, BadRecord("bad_record", text)


def _info(medium: Media, shard: ShardContext) -> MediaInfo | None:
    if shard.sized or (medium.kind == "image" and medium.tokens is None):
        return media_info(medium, shard.root)
    is_stated = medium.tokens is not None or None not in (medium.height, medium.width)
    check_reference(medium, shard.root, exists=not is_stated)
    return None


Counted = list[tuple[Counts, list[int]]]
"""Counts, and the number of the record that each is of."""


def count_rows(parsed: Sequence[ExaminedRecord], counter: RecordCounter) -> Counted:
    """Count the records that have no error; an error of one costs no other record."""
    good = [number for number, item in enumerate(parsed) if item.error is None]
    try:
        counted = _run(parsed, good, counter)
    except (LimitError, MemoryError, MismatchError):  # no record's error
        raise
    except Exception:
        for number in good:
            try:
                _run(parsed, [number], counter)
            except (LimitError, MemoryError):
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                parsed[number].error = BadRecord("uncountable", text)
        good = [number for number in good if parsed[number].error is None]
        counted = _run(parsed, good, counter)
    for counts, numbers in counted:
        for at in np.flatnonzero(counts.length > _MAX_TOKENS).tolist():
            text = f"{counts.length[at]} tokens, over {_MAX_TOKENS}"
            counts.errors.setdefault(at, BadRecord("too_many_tokens", text))
        for at, bad in counts.errors.items():
            parsed[numbers[at]].error = bad
    return counted


def _run(
    parsed: Sequence[ExaminedRecord], chosen: Sequence[int], counter: RecordCounter
) -> Counted:
    counted = counter.count([parsed[number] for number in chosen])
    return [(counts, [chosen[at] for at in numbers]) for counts, numbers in counted]
