"""The records of a stream: where each lies, how long it is, how often it comes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from packidx.arrays import Int64s
from packidx.digests import canonical_json, digest
from packidx.errors import BadRecord, OptionError, SourceError
from packidx.format.index import IndexManifest, LengthsOf, Options, Result, Source
from packidx.format.lengths import known_table
from packidx.format.manifest import DEFAULT, Layout, as_planned
from packidx.format.schema import LENGTHS, METHODS, PLANNED_MEDIA, Sample
from packidx.hashing import derive_key, hash_ints, hash_numbered
from packidx.index import Index
from packidx.index import Pack as PlannedPack
from packidx.io.copies import local_copies
from packidx.pack.solve import Problem
from packidx.pack.streams import Copies, LaneOrder, expected_copies, most_copies, pack_window
from packidx.plan.options import PlanOptions
from packidx.plan.resolved import with_defaults
from packidx.plan.select.mixture import SourceTotals, copies_of, weights_of
from packidx.records.fetch import Fetcher
from packidx.torch.events import Happened, event
from packidx.torch.reader import Encode
from packidx.torch.sample import length_of, normalise

_LOCATED = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")
_COUNTED = ("length", "label_tokens", "num_images", "vision_patches", "vision_cost", "media")


class StreamIndex(Index):
    """Records that are packed as they come, read like an index: pack k is the one at place k.

    A lengths table says how long its records are. Those of bare files are counted as they come, by
    ``encode.count(record)``, or by building them where `encode` has no such method.

    Args:
        sources: folder of a lengths table; or files of records, as `estimate_lengths` takes them.
        encode: of `PackedDataset`.
        asked: options of the plan of this stream, `lanes` and a number as `window` among them.
        epoch: of the order in which records come.

    Attributes:
        left_out: a sentence for each reason why records are in no pack.
        recipe: digest of all that they depend on.

    Raises:
        OptionError: an option has no meaning for these records.
        SourceError: the sources cannot be read.
    """

    def __init__(
        self,
        sources: str | os.PathLike[str] | Sequence[str],
        encode: Encode,
        asked: PlanOptions,
        epoch: int,
        roots: Mapping[str, str],
    ) -> None:
        self._arguments = sources, encode, asked, epoch, roots
        self.asked, self.epoch, self.roots = asked, epoch, dict(roots)
        assert asked.lanes is not None and asked.rows_of_window is not None
        self.lanes, self.window_size = asked.lanes, asked.rows_of_window
        self.path = os.fspath(sources) if isinstance(sources, str | os.PathLike) else sources[0]
        self._encode = encode
        names = [self.path] if isinstance(sources, str | os.PathLike) else list(sources)
        self.is_counted = len(names) == 1 and _is_lengths(self.path)
        self.left_out: list[str] = []
        self._events: Happened = []
        if self.is_counted:
            self._rows, stated = _counted(self.path)
        else:
            # As `estimate` does: an encoder of the user's own may read columns that ours does not.
            is_ours = hasattr(encode, "fingerprint_parts")
            self._rows, stated = _scanned(names, is_ours, self.left_out)
        self.lengths = self._whole("length") if self.is_counted else None
        own = with_defaults(
            asked, max(stated["lengths"].methods, key=METHODS.index, default="exact")
        )
        if not self.is_counted and (own.max_images or own.max_vision_patches):
            raise OptionError(
                "a cap on images needs to know them before they are read: run `packidx estimate`"
                " and stream from that"
            )
        self._source = self._rows["source"].combine_chunks().to_numpy(zero_copy_only=False)
        weights = self._weights(own, stated["sources"])
        own = replace(own, weights=weights, window_samples=self.window_size, schedule="random")
        self.recipe = digest(canonical_json([stated["lengths"].fingerprint, own.to_json()]))
        self.id = self.recipe[:32]
        self.snapshot = IndexManifest(
            snapshot_id=self.id,
            parent=None,
            options=own,
            result=Result.of([], own, (1, 1)),
            windows=(),
            created="",
            **stated,
        )
        self._capped = {name: self._whole(name) for name in own.caps if name != "num_samples"}
        copies = self._copies(own)
        if not copies.any():
            raise SourceError(f"{self.path} holds no record that can be packed")
        if self.lanes > (number := int(copies.sum())):
            raise OptionError(
                f"{number} records cannot fill {self.lanes} lanes: pass a smaller `lanes`"
            )
        rows = {source.name: source.num_samples for source in stated["sources"]}
        amounts = expected_copies(rows, weights), self.lanes, self.window_size
        self.order = LaneOrder(copies, most_copies(weights), *amounts, own.seed, epoch)
        self._running: dict[int, _Lane] = {}
        self._start = 0

    def __reduce__(self) -> tuple[Any, ...]:
        states = {number: lane.state for number, lane in self._running.items()}
        return _opened, (self._arguments, self._start, states)

    def _weights(self, options: Options, sources: Sequence[Source]) -> dict[str, str]:
        """Return how often samples of each source come, of those that do not come once."""
        if not self.is_counted and any(text.endswith("%") for text in self.asked.mix):
            raise OptionError(
                "mix has shares of tokens, which nobody has counted: run `packidx estimate` and"
                " stream from that, or give numbers of copies"
            )
        totals: dict[str | None, SourceTotals] = {}
        for source in sources:
            own = np.zeros(1) if self.lengths is None else self.lengths[self._source == source.name]
            usable = own[(own > 0) & (own <= options.longest)]
            totals[source.name] = SourceTotals(len(usable), int(usable.sum()))
        return weights_of(self.asked.mix, totals, sources)

    def _whole(self, name: str) -> Int64s:
        """A counter of all rows, 0 where it is not known."""
        if name not in self._rows.column_names:
            return np.zeros(self._rows.num_rows, np.int64)
        values: Int64s = self._rows[name].fill_null(0).to_numpy().astype(np.int64)
        return values

    def _copies(self, options: Options) -> Int64s:
        """How often each record comes in an epoch, int64 [n]; 0 of one that cannot be packed."""
        copies = np.ones(self._rows.num_rows, np.int64)
        if "status" in self._rows.column_names:
            copies[self._rows["status"].to_numpy(zero_copy_only=False) != "ok"] = 0
        if options.weights:
            # FORMAT.md, "Draws"
            salts = hash_numbered([shard.source for shard in self.snapshot.shards])
            draws = salts[self._whole("shard")] ^ self._whole("row").astype(np.uint64)
            draws = hash_ints(draws, derive_key(options.seed, "mix"))
            for name, weight in options.weights.items():
                own = self._source == name
                copies[own] *= copies_of(Fraction(weight), draws[own])
        if self.lengths is None:
            return copies
        tokens = self.lengths
        usable = tokens > 0
        out = {"rejected or without a token": ~usable}
        out["too long"] = usable & (options.padded(tokens) > options.longest)
        for name, most in options.caps.items():
            if name != "num_samples":
                out[f"over the {most} {name} of a pack"] = usable & (self._column(name) > most)
        for reason, which in out.items():
            copies[which] = 0
            if number := int(np.count_nonzero(which)):
                words = f"{number:,} of {len(copies):,} records are {reason}: in no pack"
                self.left_out.append(words)
        return copies

    def take_events(self) -> Happened:
        """Records that were left out as they came, since this was last asked."""
        told, self._events = self._events, []
        return told

    def _column(self, name: str) -> Int64s:
        column = self._rows[name] if name in self._rows.column_names else None
        if column is None or column.null_count:
            raise OptionError(f"{self.path} does not say the {name} of all its samples: no cap")
        return self._whole(name)

    def count(self, row: int, copy: int) -> int:
        """Read a record and return its tokens; 0 if it is in no pack."""
        options = self.snapshot.options
        sample = self._sample(row, copy, 0)
        try:
            record = self._fetcher.read(sample, self.epoch)
            count = getattr(self._encode, "count", None)
            if callable(count):
                length = int(count(record))
            else:
                length = length_of(normalise(self._encode(record)))
            if not 0 < options.padded(length) <= options.longest:
                raise BadRecord("too_long", f"{length} tokens, and a pack holds {options.longest}")
        except (BadRecord, SourceError) as error:
            is_long = isinstance(error, BadRecord) and error.reason == "too_long"
            kind = "too_long" if is_long else "unreadable"
            self._events.append(event(kind, "left_out", sample, error))
            return 0
        return length

    @cached_property
    def _fetcher(self) -> Fetcher:
        return Fetcher(self)

    def packs_of(self, lane: int, window: int, come: Copies, tokens: Int64s) -> list[Int64s]:
        """Return the packs of a lane's window, in the order in which they are given out.

        Args:
            come: the copies of the window.
            tokens: of each; 0 leaves it out.

        Returns:
            int64 [n, 3] for each pack: row, copy and tokens of its records.
        """
        options = self.snapshot.options
        records = np.stack([come.row, come.copy, tokens], 1)[tokens > 0]
        caps = {name: (np.ones(len(records), np.int64), cap) for name, cap in options.caps.items()}
        for name, values in self._capped.items():
            caps[name] = values[records[:, 0]], options.caps[name]
        lengths = options.padded(records[:, 2])
        problem = Problem(lengths, options.planned_capacity, caps)
        packs = pack_window(problem, options.strategy, self.order.key(lane, window))
        return [records[pack] for pack in packs]

    def lane(self, number: int) -> _Lane:
        """Return a lane, where it stands."""
        if number not in self._running:
            first = -(-(self._start - number) // self.lanes) if self._start > number else 0
            self._running[number] = _Lane(self, number, first)
        return self._running[number]

    def start_at(self, place: int, states: Mapping[int, Sequence[int]]) -> None:
        """Let the next pack be the one at `place`, of lanes that stand where `states` say."""
        self._start, self._running = place, {}
        for number, state in states.items():
            self.lane(number).state = (int(state[0]), int(state[1]))

    def pack(self, pack_id: int) -> PlannedPack:
        """Return the pack at place `pack_id`; a lane that has passed it begins anew.

        Raises:
            IndexError: its lane has ended.
        """
        turn, number = divmod(pack_id, self.lanes)
        if self.lane(number).turn > turn:
            self._running[number] = _Lane(self, number, 0)
        lane = self.lane(number)
        records = None
        while lane.turn <= turn:
            if (records := lane.next_pack()) is None:
                said = f"epoch {self.epoch} of {self.path} has ended before place {pack_id}"
                raise IndexError(said)
        samples, start = [], 0
        for position, record in enumerate(() if records is None else records.tolist()):
            sample = self._sample(*record)
            taken = self.snapshot.options.padded(sample.length)
            samples.append(
                sample._replace(
                    pack_id=pack_id, position=position, start=start, padded_length=taken
                )
            )
            start += taken
        pad_to = self.snapshot.options.pad_pack_to
        stats = {"epoch": self.epoch, "padded_length": -(-start // pad_to) * pad_to}
        return PlannedPack(pack_id, stats, samples)

    def _sample(self, row: int, copy: int, length: int | None) -> Sample:
        values: dict[str, Any]
        values = {name: self._rows[name][row].as_py() for name in self._rows.column_names}
        known = values.get("length") if length is None else length
        media = values.get("media")
        places = ("pack_id", "position", "piece", "token_start", "start", "padded_length")
        placed: dict[str, Any] = dict.fromkeys(places, 0)
        located: dict[str, Any] = {name: values.get(name) for name in _LOCATED}
        return Sample(
            copy=copy,
            length=known or 0,
            label_tokens=values.get("label_tokens"),
            media=media and [{name: one[name] for name in _PLANNED} for one in media],
            **placed,
            **located,
        )


class _Lane:
    """The packs of one lane, in order.

    Args:
        index: counts and packs the windows.
        turn: packs that were given out before.

    Attributes:
        state: number of the window, and packs of it that were given out.
    """

    def __init__(self, index: StreamIndex, number: int, turn: int) -> None:
        self._index, self._number, self.turn = index, number, turn
        self.state = (0, 0)
        self._packs: list[Int64s] | None = None
        self._counted: list[int] = []
        """Tokens of the first records of the window that is packed next."""

    def next_pack(self) -> Int64s | None:
        """Return the next pack (`StreamIndex.packs_of`); None once there is none."""
        window, given = self.state
        if self._packs is None:
            self._packs = self._packed(window)
        while given >= len(self._packs):
            if window + 1 >= self._index.order.num_windows:
                return None
            window, given, self._packs = window + 1, 0, self._packed(window + 1)
        if self._index.lengths is None and window + 1 < self._index.order.num_windows:
            # A pack's share of the next window, so that no place waits for a whole one.
            share = -(-self._index.window_size // len(self._packs))
            self._count(self._index.order.window(self._number, window + 1), share)
        self.state, self.turn = (window, given + 1), self.turn + 1
        return self._packs[given]

    def _packed(self, window: int) -> list[Int64s]:
        come = self._index.order.window(self._number, window)
        if self._index.lengths is None:
            self._count(come, len(come.row))
            tokens, self._counted = np.array(self._counted, np.int64), []
        else:
            tokens = self._index.lengths[come.row]
        return self._index.packs_of(self._number, window, come, tokens)

    def _count(self, come: Copies, most: int) -> None:
        """Count at most so many records more."""
        done = len(self._counted)
        more = zip(*(values[done : done + most].tolist() for values in come), strict=True)
        self._counted += [self._index.count(row, copy) for row, copy in more]


_PLANNED = [field.name for field in PLANNED_MEDIA.value_type]


def _opened(
    arguments: tuple[Any, ...], place: int, states: Mapping[int, Sequence[int]]
) -> StreamIndex:
    index = StreamIndex(*arguments)
    index.start_at(place, states)
    return index


def _is_lengths(path: str) -> bool:
    try:
        return known_table(path).manifest is not None
    except SourceError:
        return False


def _counted(path: str) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a lengths table in order of `sample_id`, and what a manifest says of it."""
    table = known_table(path)
    manifest = table.manifest
    assert manifest is not None
    wanted = (*_LOCATED, *_COUNTED, "status")
    parts = [
        pq.read_table(copy, columns=list(wanted), page_checksum_verification=True)
        for copy in local_copies(table.files)
    ]
    rows = pa.concat_tables(parts).combine_chunks()
    lengths = LengthsOf(
        uri=path,
        fingerprint=manifest.fingerprint,
        num_samples=manifest.num_samples,
        encoder=manifest.encoder,
        methods=manifest.methods,
        transform=manifest.transform,
    )
    names = [name for name in Source.__struct_fields__ if name != "num_dropped"]
    sources = [
        Source(**{name: getattr(source, name) for name in names}, num_dropped=0)
        for source in manifest.sources
    ]
    shards = tuple(map(as_planned, manifest.shards))
    return rows, {"lengths": lengths, "sources": tuple(sources), "shards": shards}


def _scanned(
    names: Sequence[str], is_ours: bool, left_out: list[str]
) -> tuple[pa.Table, dict[str, Any]]:
    """Where the records of files lie, and what a manifest says of these.

    Args:
        is_ours: whether records with a column that nobody reads are refused.
        left_out: is given a sentence for each reason why some are left out.
    """
    # They bring readers of mixes, which who streams from a lengths table does not need.
    from packidx.records.read import RecordReader, read_records
    from packidx.records.shards import scan_shards
    from packidx.records.sources.find_shards import find_shards

    files = find_shards(list(names))
    scans = scan_shards(files, os.cpu_count() or 1, lambda *_: None)
    rows: list[tuple[Any, ...]] = []
    refused: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    layouts: dict[str, Layout] = {}
    for number, (file, scan) in enumerate(zip(files, scans, strict=True)):
        layouts[file.source] = file.layout
        for part in scan.ranges:
            reader = RecordReader(file.layout, columns={} if is_ours else None)
            read = read_records(file.path, part, reader, file.container)
            for record in read:
                status, error = "ok", record.error
                if error is not None and (is_ours or record.raw is None):
                    status = "rejected"
                    where = f"{file.uri}, row {record.locator.row}: {error.detail}"
                    refused.setdefault(error.reason, []).append(where)
                rows.append((len(rows), file.source, None, number, *record.locator, status))
        counts[file.source] = counts.get(file.source, 0) + scan.shard.rows
    for reason, places in sorted(refused.items()):
        left_out.append(f"{len(places):,} records are in no pack: {reason} ({places[0]})")
    schema = pa.schema([LENGTHS.field(name) for name in (*_LOCATED, "status")])
    shards = tuple(as_planned(scan.shard) for scan in scans)
    lengths = LengthsOf(
        uri=names[0],
        fingerprint=digest(canonical_json([shard.to_json() for shard in shards])),
        num_samples=sum(counts.values()),
        encoder=None,
        methods={},
    )
    sources = tuple(
        Source(
            name=name,
            media_root=layouts[name].media_root,
            layout=None if layouts[name] == DEFAULT else layouts[name],
            num_samples=count,
            num_dropped=0,
        )
        for name, count in counts.items()
    )
    stated = {"lengths": lengths, "sources": sources, "shards": shards}
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(list(map(list, columns)), schema=schema), stated
