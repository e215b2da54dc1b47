"""The counter of records, and the settings that every process makes it of."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packidx.encode.loading import load_processor
from packidx.errors import BadRecord, LimitError, MismatchError, OptionError
from packidx.estimate.compare import Comparer
from packidx.estimate.user_encoder import Encode, Measured, UserEncoder, measure_sample
from packidx.format.manifest import Compared, RecordRange, Shard, as_planned
from packidx.io import storage
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import HEURISTIC, Counts
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.gigatoken import Gigatoken
from packidx.records.conversation import Conversation, MediaInfo, map_media
from packidx.records.media.opener import (
    MediaOpener,
    check_reference,
    forget_media,
    is_remote,
    media_info,
)
from packidx.records.media.paths import MediaRoot
from packidx.records.media.references import LIST_KEYS
from packidx.records.read import Change, ReadRecord, RecordReader, opened_record, read_records
from packidx.records.shards import InputFile, short_names
from packidx.user_code import Function, Transform


@dataclass(frozen=True, slots=True)
class CounterSettings:
    """Settings that decide a record's counts, as of `estimate_lengths`; picklable if what the user
    gave is."""

    processor: str | None = None
    processor_settings: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False
    labels: str | None = None
    encode: str | Encode | None = None
    transform: str | Function | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.encode is not None and self.processor is not None:
            raise OptionError("an encoder and a processor both say how to count: give one of them")
        if self.labels is not None and self.processor is None:
            raise OptionError("a label policy needs a processor: without one no labels are counted")
        if self.processor_settings and self.processor is None:
            raise OptionError("settings of a processor need the processor: name its folder")


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
    """Counts of the sample, if it was built."""
    kind: str | None = None
    """Kind of the record, if a processor counts it."""
    error: BadRecord | None = None


class RecordCounter:
    """Counts raw records: by a processor, by the user's encoder, or by guess.

    Args:
        settings: how to count.
        files: what `settings` load as a processor, where another process has loaded it.
        compared: kinds that the parent compared.
        is_fast: True if gigatoken tokenizes.

    Attributes:
        encoder: the user's encoder, None without one.
        transform: the function that changes the files' records, None without one.
        advance: called with numbers of records that are done.

    Raises:
        SourceError, OptionError: the processor, the encoder or the transform cannot be used.
    """

    def __init__(
        self,
        settings: CounterSettings,
        files: ProcessorFiles | None = None,
        compared: Compared | None = None,
        is_fast: bool = False,
    ) -> None:
        if files is None and settings.processor is not None:
            policy = (
                DEFAULT_POLICY if settings.labels is None else LabelPolicy.parse(settings.labels)
            )
            given = settings.processor_settings, settings.trust_remote_code
            files = load_processor(settings.processor, policy, *given)
        self.settings, self.files = settings, files
        self.encoder = None if settings.encode is None else UserEncoder(settings.encode)
        changes = settings.transform
        self.transform = None if changes is None else Transform.load(changes, settings.seed)
        self.counter = ConversationCounter(files)
        self.comparer: Comparer | None = None
        self.advance: Callable[[int], None] = lambda records: None
        if files is not None and self.counter.text is not None:
            self.counter.text.fast = Gigatoken(files.tokenizer) if is_fast else None
            self.comparer = Comparer(files, compared)
            self.comparer.rules = self.counter

    @property
    def fingerprints(self) -> tuple[str | None, str | None]:
        """Fingerprints of encoder or processor, and of the transform: they tell two counters apart,
        unless an encoder has none."""
        counts = self.counter if self.encoder is None else self.encoder
        return counts.fingerprint(), None if (made := self.transform) is None else made.fingerprint

    @property
    def is_known(self) -> bool:
        """Return whether `fingerprints` tell this counter from every other one."""
        return self.encoder is None or self.fingerprints[0] is not None

    def in_workers(self) -> Callable[[], RecordCounter]:
        """Return what makes this counter in another process."""
        text = self.counter.text
        is_fast = text is not None and text.fast is not None
        compared = None if self.comparer is None else self.comparer.compared
        given = self.settings, self.files, compared, is_fast
        return functools.partial(_start_counter, *given, fingerprints=self.fingerprints)

    def compare(
        self, item: ExaminedRecord, shard: JobShard, record: ReadRecord, *, only: bool = False
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
        kind = item.kind = comparer.kind_of(talk, item.infos)
        if not comparer.needs(kind):
            return
        if record.conversation is not None:
            talk = MediaOpener(shard.root).open(record.conversation)
        built = comparer.build(talk, kind, only_compare=only)
        if built is not None:
            item.measured = measure_sample(built, [medium.kind for medium in talk.media])

    def count(self, items: Sequence[ExaminedRecord]) -> Counts:
        """Count records by rules."""
        talks = [talk for item in items if (talk := item.conversation) is not None]
        counts = self.counter.count(talks, [item.infos for item in items])
        for number, item in enumerate(items):
            kind, comparer = item.kind, self.comparer
            if kind and comparer and not comparer.is_exact(kind):
                counts.method[number] = max(counts.method[number], HEURISTIC)
        return counts


_RARELY = 100_000, 50, 100


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely in the block: records are many small objects, and hold no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _start_counter(*settings: Any, fingerprints: tuple[str | None, str | None]) -> RecordCounter:
    """Return the counter of a worker process; raise a MismatchError if it loads another encoder or
    transform than the parent."""
    # The processes are the parallelism, also of what a user's encoder imports.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    gc.set_threshold(*_RARELY)
    forget_media()  # a process of the user's own session may have seen the media before
    counter = RecordCounter(*settings)
    if counter.fingerprints != fingerprints:
        raise MismatchError(
            f"a worker loaded another encoder or transform ({counter.fingerprints}) than the "
            f"parent ({fingerprints}): start again"
        )
    return counter


def without_references(conversation: Conversation) -> Conversation:
    """`conversation` without what its media are: opened ones hold their files' bytes."""
    return map_media(conversation, lambda medium: replace(medium, ref=None))


BATCH = 1024
"""Records that are tokenised together."""

_MAX_TOKENS = 2**31 - 1  # the columns are int32
_MEDIA = frozenset(keys[0] for keys in LIST_KEYS.values())  # which a source is said not to have


@dataclass(frozen=True, slots=True)
class JobShard:
    """A shard that is counted, and what its rows have in common."""

    stated: Shard
    """The shard as the manifest has it; a task's has no ranges."""
    number: int
    name: str
    """File name, or the shortest path suffix that tells it from the table's other shards."""
    file: InputFile
    root: MediaRoot
    """The folder in which its records' media may lie."""
    has_media: bool
    """True if records of its source may have media: only where none has is a placeholder text."""

    def of_task(self) -> JobShard:
        """Return the shard without its ranges."""
        return replace(self, stated=as_planned(self.stated))

    def read(
        self, part: RecordRange, columns: dict[str, str] | None = None, change: Change | None = None
    ) -> Iterator[ReadRecord]:
        """Yield the records of a range; `columns` and `change` as of `RecordReader`."""
        file = self.file
        reader = RecordReader(file.layout, change, columns, has_media=self.has_media)
        return read_records(file.path, part, reader, file.container)


def job_shards(
    files: Sequence[InputFile],
    scans: Sequence[Shard],
    takes_media: bool,
    media_root: str | None,
    remote_media: tuple[str, ...],
) -> tuple[JobShard, ...]:
    """Return the shards of a job, and what the rows of each have in common."""
    shards, names = [], short_names([file.path for file in files])
    for number, (file, scan, name) in enumerate(zip(files, scans, names, strict=True)):
        stated = media_root or file.layout.media_root
        folder = (os.path.dirname(file.path) or ".") if stated is None else stated
        root = MediaRoot(folder, stated is not None, remote_media)
        has_media = takes_media and _MEDIA.isdisjoint(file.layout.ignore)
        shards.append(JobShard(scan, number, name, file, root, has_media))
    return tuple(shards)


def examine_batch(
    records: Iterable[ReadRecord],
    shard: JobShard,
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

    def attempt_steps(
        item: ExaminedRecord, record: ReadRecord, *steps: Callable[..., None]
    ) -> None:
        """Take some steps with a record, and keep what is wrong with it."""
        try:
            for step in steps:
                step(item, record)
        except BadRecord as error:
            item.conversation, item.error = None, error
        except RecursionError as error:
            text = f"the record is too large: {type(error).__name__}"
            item.conversation, item.error = None, BadRecord("bad_record", text)

    def look_up_sizes(item: ExaminedRecord, record: ReadRecord) -> None:
        _look_up_sizes(item, shard.root, is_sized=counter.files is not None)

    def compare_record(item: ExaminedRecord, record: ReadRecord) -> None:
        counter.compare(item, shard, record, only=only_compare)

    def encode_record(item: ExaminedRecord, record: ReadRecord) -> None:
        opened, talk = opened_record(record, MediaOpener(shard.root)), record.conversation
        if counter.encoder is not None:
            item.measured = counter.encoder.measure(opened, talk)
        item.conversation = talk and without_references(talk)

    for record in records:
        at, talk = record.locator, record.conversation
        item = ExaminedRecord(at.row + shift, *at, key=record.key)
        rows.append(item)
        if counter.encoder is not None and record.raw is not None:
            attempt_steps(item, record, encode_record)
            continue
        item.conversation, item.error = talk, record.error
        if talk is not None and any(is_remote(medium, shard.root) for medium in talk.media):
            waiting.append((item, record))
        elif talk is not None:
            attempt_steps(item, record, look_up_sizes, compare_record)
    if waiting:
        with warnings.catch_warnings():
            # Filters belong to all threads: each would take away and bring back the others'.
            warnings.simplefilter("ignore")
            storage.map_overlapped(lambda pair: attempt_steps(*pair, look_up_sizes), waiting)
        for pair in waiting:
            attempt_steps(*pair, compare_record)
    return rows


def _look_up_sizes(item: ExaminedRecord, root: MediaRoot, *, is_sized: bool) -> None:
    """Find out the sizes of a record's media; without a processor, those that no count stands for.
    Raise a BadRecord if a medium cannot be used."""
    talk, infos = item.conversation, list[MediaInfo | None]()
    if talk is None or not talk.media:
        return
    for medium in talk.media:
        if is_sized or (medium.kind == "image" and "n_tokens" not in medium.stated):
            infos.append(media_info(medium, root))
        else:
            is_stated = not {"n_tokens", "height"}.isdisjoint(medium.stated)
            check_reference(medium, root, exists=not is_stated)
            infos.append(None)
    item.infos = tuple(infos)
    if any(not isinstance(medium.ref, str) for medium in talk.media):
        # Content of files: a batch must not hold that of all its records.
        item.conversation = without_references(talk)


def count_rows(items: Sequence[ExaminedRecord], counter: RecordCounter) -> tuple[Counts, list[int]]:
    """Count the records that were not built; an error of one costs no other record.

    Returns:
        Their counts, and the number of the record that each is of; records with errors are among
        the counts or left out.
    """

    numbers = [n for n, item in enumerate(items) if item.error is None and item.measured is None]
    try:
        counts = counter.count([items[number] for number in numbers])
    except (LimitError, MemoryError, MismatchError):  # no record's error
        raise
    except Exception as error:
        if len(numbers) == 1:
            text = f"{type(error).__name__}: {error}"
            items[numbers[0]].error = BadRecord("uncountable", text)
        for number in numbers:
            count_rows([items[number]], counter)
        if all(items[number].error is None for number in numbers):
            raise
        return count_rows(items, counter)
    for at in np.flatnonzero(counts.length > _MAX_TOKENS).tolist():
        text = f"{counts.length[at]} tokens, over {_MAX_TOKENS}"
        counts.errors.setdefault(at, BadRecord("too_many_tokens", text))
    for at, bad in counts.errors.items():
        items[numbers[at]].error = bad
    return counts, numbers
