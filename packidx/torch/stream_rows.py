"""The records of a stream: where each lies, how long it is, how often it comes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from packidx.arrays import Bools, Int64s
from packidx.digests import canonical_json, digest_parts
from packidx.errors import BadRecord, OptionError, SourceError
from packidx.format.index import IndexManifest, LengthsOf, Options, Result, Source
from packidx.format.lengths import LengthsManifest, known_table
from packidx.format.manifest import DEFAULT, as_planned, decode_json
from packidx.format.schema import LENGTHS, METHODS, PLANNED_MEDIA, PlannedSample
from packidx.hashing import derive_key, hash_ints, hash_numbered
from packidx.index import Index, PlannedPack
from packidx.io.cache import StoredFile, local_copies
from packidx.packing.solve import Problem
from packidx.packing.streams import Copies, LaneOrder, expected_copies, most_copies, pack_window
from packidx.plan.options import PlanOptions
from packidx.plan.resolved import with_defaults
from packidx.plan.select.mixture import SourceTotals, copies_of, weights_of
from packidx.records.fetch import Fetcher
from packidx.torch.dataset import Encode
from packidx.torch.events import Happened, make_event
from packidx.torch.sample import length_of, normalise_sample

_LOCATED = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")
_COUNTED = ("length", "label_tokens", "num_images", "vision_patches", "media", "status")


class StreamIndex(Index):
    """Records that are packed as they come; what locates them is read like an index.

    A lengths table states how long its records are. Those of bare files are counted as they come,
    by ``encode.count(record)``, or by building them where `encode` has no such method. Of bare
    files only the places of the records are read at first.

    Args:
        sources: folder of a lengths table; or files of records, as `estimate_lengths` takes them.
        encode: of `PackedDataset`.
        asked: options of the plan of this stream, `lanes` and a number as `window` among them.
        roots: of `PackedDataset`.

    Attributes:
        recipe: digest of all that the packs of an epoch depend on.
        is_counted: True if the source is a lengths table.
        left_out: a sentence for each reason why records of a lengths table are in no pack.
        happened: events of records that were left out as they came.

    Raises:
        OptionError: an option has no meaning for these records.
        SourceError: the sources cannot be read.
    """

    def __init__(
        self,
        sources: str | os.PathLike[str] | Sequence[str],
        encode: Encode,
        asked: PlanOptions,
        roots: Mapping[str, str],
    ) -> None:
        assert asked.lanes is not None and asked.rows_of_window is not None
        self.asked, self.roots, self._encode = asked, dict(roots), encode
        self.lanes, self.window_size = asked.lanes, asked.rows_of_window
        names = [os.fspath(sources)] if isinstance(sources, str | os.PathLike) else list(sources)
        self.path = names[0]
        self.left_out: list[str] = []
        self.happened: Happened = []
        manifest = None
        with contextlib.suppress(SourceError):
            table = known_table(self.path)
            manifest = table.manifest if len(names) == 1 else None
        self.is_counted = manifest is not None
        self._bad: dict[int, BadRecord] = {}
        if manifest is None:
            self._rows, stated = _scan_files(names, self._bad)
        else:
            self._rows, stated = _read_lengths(self.path, manifest, table.files)
        weakest = max(stated["lengths"].methods, key=METHODS.index, default="exact")
        own = with_defaults(asked, weakest)
        if not self.is_counted and (own.max_images or own.max_vision_patches):
            raise OptionError(
                "a cap on images needs to know them before they are read: run `packidx estimate`"
                " and stream from that"
            )
        self._capped: dict[str, Int64s] = {}
        self.lengths = self._usable_lengths(own) if self.is_counted else None
        weights, self._copies = self._draw_copies(stated, own.seed)
        own = replace(own, weights=weights, window_samples=self.window_size, schedule="random")
        self.recipe = digest_parts(canonical_json([stated["lengths"].fingerprint, own.to_json()]))
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
        # As `estimate` does: an encoder of the user's own may read columns that ours does not.
        self._fetcher = Fetcher(self, None, encode, is_strict=hasattr(encode, "fingerprint_parts"))
        coming = self._copies if self.lengths is None else self._copies[self.lengths > 0]
        if not coming.any():
            raise SourceError(f"{self.path} holds no record that can be packed")
        if self.lanes > (number := int(coming.sum())):
            raise OptionError(
                f"{number} records cannot fill {self.lanes} lanes: pass a smaller `lanes`"
            )

    __reduce__ = object.__reduce__  # type: ignore[assignment]  # `Index` pickles as its path

    def _usable_lengths(self, options: Options) -> Int64s:
        """Return tokens of each row of a lengths table, int64 [n]; 0 if no pack takes it.

        Raises:
            OptionError: a counter is capped that the table does not have of each of these rows.
        """
        lengths: Int64s = self._rows["length"].fill_null(0).to_numpy().astype(np.int64)
        lengths[pc.not_equal(self._rows["status"], "ok").to_numpy()] = 0
        out: dict[str, Bools] = {
            "rejected or without a token": lengths <= 0,
            "too long": options.padded(lengths) > options.longest,
        }
        for name, most in options.caps.items():
            if name == "num_samples":
                continue
            column = self._rows[name]
            if (column.is_null().to_numpy() & (lengths > 0)).any():
                raise OptionError(f"{self.path} does not say the {name} of all its samples: no cap")
            values = self._capped[name] = column.fill_null(0).to_numpy().astype(np.int64)
            out[f"over the {most} {name} of a pack"] = (lengths > 0) & (values > most)
        for reason, which in out.items():
            if number := int(np.count_nonzero(which)):
                text = f"{number:,} of {len(lengths):,} records are {reason}: in no pack"
                self.left_out.append(text)
        lengths[np.logical_or.reduce(list(out.values()))] = 0
        return lengths

    def _draw_copies(self, stated: Mapping[str, Any], seed: int) -> tuple[dict[str, str], Int64s]:
        """Return how often samples of each source come, of those that do not come once, and how
        often each record comes in an epoch, int64 [n]."""
        if not self.is_counted and any(text.endswith("%") for text in self.asked.mix):
            raise OptionError(
                "mix has shares of tokens, which are not counted: run `packidx estimate` and"
                " stream from that, or give numbers of copies"
            )
        source = self._rows["source"].combine_chunks().to_numpy(zero_copy_only=False)
        totals: dict[str | None, SourceTotals] = {}
        for name in (each.name for each in stated["sources"]):
            own = np.zeros(1) if self.lengths is None else self.lengths[source == name]
            totals[name] = SourceTotals(int(np.count_nonzero(own)), int(own.sum()))
        weights = weights_of(self.asked.mix, totals, stated["sources"])
        copies = np.ones(self._rows.num_rows, np.int64)
        if weights:
            # FORMAT.md, "Draws"
            salts = hash_numbered([shard.source for shard in stated["shards"]])
            shard, row = (self._rows[name].to_numpy() for name in ("shard", "row"))
            draws = hash_ints(salts[shard] ^ row.astype(np.uint64), derive_key(seed, "mix"))
            for name, weight in weights.items():
                copies[source == name] = copies_of(Fraction(weight), draws[source == name])
        return weights, copies

    def packs_of_lane(
        self, epoch: int, place: int, state: Sequence[int] = (0, 0)
    ) -> Iterator[PlannedPack]:
        """Yield the packs of a lane; each one's ``stats["lane"]`` is the lane and the next state.

        Args:
            epoch: of the order in which records come.
            place: of the first pack, which says the lane.
            state: number of its window, and packs of that which were given out.
        """
        lane, window, given = place % self.lanes, *state
        weights = self.snapshot.options.weights
        rows = {source.name: source.num_samples for source in self.snapshot.sources}
        amounts = expected_copies(rows, weights), self.lanes, self.window_size
        order = LaneOrder(self._copies, most_copies(weights), *amounts, self.asked.seed, epoch)
        counted: list[int] = []
        for number in range(window, order.num_windows):
            come, later = order.window(lane, number), order.window(lane, number + 1)
            self._count_records(come, epoch, counted, len(come.row))
            tokens = np.array(counted, np.int64)
            if self.lengths is not None:
                tokens = self.lengths[come.row]
            packs = self._pack_records(come, tokens, order.key(lane, number))
            counted = []
            for done, records in enumerate(packs[given:], given + 1):
                # A pack's share of the next window, so that no place waits for a whole one.
                self._count_records(later, epoch, counted, -(-self.window_size // len(packs)))
                yield self._make_pack(
                    place, records, {"epoch": epoch, "lane": (lane, number, done)}
                )
                place += self.lanes
            given = 0

    def _pack_records(self, come: Copies, tokens: Int64s, key: int) -> list[Int64s]:
        """Return row, copy and tokens of the records of each pack of a window, int64 [n, 3]."""
        options = self.snapshot.options
        records = np.stack([come.row, come.copy, tokens], 1)[tokens > 0]
        one = np.ones(len(records), np.int64)  # of samples themselves
        caps = {
            name: (self._capped[name][records[:, 0]] if name in self._capped else one, most)
            for name, most in options.caps.items()
        }
        problem = Problem(options.padded(records[:, 2]), options.planned_capacity, caps)
        return [records[pack] for pack in pack_window(problem, options.strategy, key)]

    def _make_pack(self, place: int, records: Int64s, stats: dict[str, Any]) -> PlannedPack:
        options, samples, start = self.snapshot.options, [], 0
        for position, record in enumerate(records.tolist()):
            taken = options.padded(record[2])
            placed = {"pack_id": place, "position": position, "start": start}
            samples.append(self._make_sample(*record, **placed, padded_length=taken))
            start += taken
        padded = -(-start // options.pad_pack_to) * options.pad_pack_to
        return PlannedPack(place, {**stats, "padded_length": padded}, samples)

    def _make_sample(self, row: int, copy: int, length: int, **placed: int) -> PlannedSample:
        names = [name for name in self._rows.column_names if name in PlannedSample._fields]
        values: dict[str, Any] = {name: self._rows[name][row].as_py() for name in names}
        values |= {"copy": copy, "length": length, **placed}
        return PlannedSample(**{**dict.fromkeys(_UNPLACED, 0), "label_tokens": None, **values})

    def _count_records(self, come: Copies, epoch: int, counted: list[int], most: int) -> None:
        """Count at most so many more records of a window, behind those that are `counted`."""
        if self.lengths is None:
            more = slice(len(counted), len(counted) + most)
            for row, copy in zip(come.row[more].tolist(), come.copy[more].tolist(), strict=True):
                counted.append(self._count_tokens(row, copy, epoch))

    def _count_tokens(self, row: int, copy: int, epoch: int) -> int:
        """Read a record and return its tokens; 0 if it is in no pack."""
        options, sample = self.snapshot.options, self._make_sample(row, copy, 0)
        try:
            if row in self._bad:
                raise self._bad[row]
            record = self._fetcher.read(sample, epoch)
            count = getattr(self._encode, "count", None)
            if callable(count):
                length = int(count(record))
            else:
                length = length_of(normalise_sample(self._encode(record)))
            if not 0 < options.padded(length) <= options.longest:
                raise BadRecord("too_long", f"{length} tokens, and a pack holds {options.longest}")
        except (BadRecord, SourceError) as error:
            is_long = isinstance(error, BadRecord) and error.reason == "too_long"
            kind = "too_long" if is_long else "unreadable"
            happened = make_event(kind, "left_out", sample, error)
            self.happened.append({**happened, "pack": None, "position": None})
            return 0
        return length


_UNPLACED = ("pack_id", "position", "piece", "token_start", "start", "padded_length")


def _read_lengths(
    path: str, manifest: LengthsManifest, files: Sequence[StoredFile]
) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of a lengths table by `sample_id`, and what a manifest says of it."""
    parts = [
        pq.read_table(copy, columns=[*_LOCATED, *_COUNTED], page_checksum_verification=True)
        for copy in local_copies(files)
    ]
    rows = pa.concat_tables(parts).combine_chunks()
    media = rows["media"].cast(PLANNED_MEDIA)
    rows = rows.set_column(rows.column_names.index("media"), "media", media)
    lengths = LengthsOf(
        uri=path,
        fingerprint=manifest.fingerprint,
        num_samples=manifest.num_samples,
        encoder=manifest.encoder,
        methods=manifest.methods,
        transform=manifest.transform,
    )
    sources = [
        decode_json(Source, {**each.to_json(), "num_dropped": 0}) for each in manifest.sources
    ]
    shards = tuple(map(as_planned, manifest.shards))
    return rows, {"lengths": lengths, "sources": tuple(sources), "shards": shards}


def _scan_files(names: Sequence[str], bad: dict[int, BadRecord]) -> tuple[pa.Table, dict[str, Any]]:
    """Return where the records of files lie, and what a manifest says of these.

    Args:
        bad: is given the records that are none, by row of the table.
    """
    # They bring readers of mixes, which who streams from a lengths table does not need.
    from packidx.records.containers.registry import get_container
    from packidx.records.shards import scan_shards
    from packidx.records.sources.find_shards import find_shards

    files = find_shards(list(names))
    found = scan_shards(files, os.cpu_count() or 1, lambda *_: None)
    places: list[tuple[Any, ...]] = []
    sources: dict[str, Source] = {}
    for number, (file, shard) in enumerate(zip(files, found, strict=True)):
        reader = get_container(file.container, file.layout.delimiter)
        for part in shard.ranges:
            for record in reader.read(file.path, part):
                at = record.locator
                if at.offset is None:  # a table's: it locates its records by their rows alone
                    rest = range(at.row, at.row + part.num_records)
                    places += ((number, row, None, None) for row in rest)
                    break
                if isinstance(error := record.data, BadRecord):
                    text = f"{error.detail} ({file.uri}, row {at.row})"
                    bad[len(places)] = BadRecord(error.reason, text)
                places.append((number, *at))
        before = sources[file.source].num_samples if file.source in sources else 0
        sources[file.source] = Source(
            name=file.source,
            media_root=file.layout.media_root,
            layout=None if file.layout == DEFAULT else file.layout,
            num_samples=before + shard.rows,
            num_dropped=0,
        )
    shards = tuple(map(as_planned, found))
    lengths = LengthsOf(
        uri=names[0],
        fingerprint=digest_parts(canonical_json([shard.to_json() for shard in shards])),
        num_samples=len(places),
        encoder=None,
        methods={},
    )
    located = dict(
        zip(("shard", "row", "offset", "nbytes"), zip(*places, strict=True), strict=True)
    )
    columns: dict[str, Any] = {"sample_id": range(len(places)), "key": [None] * len(places)}
    columns["source"] = [files[number].source for number, *_ in places]
    schema = pa.schema([LENGTHS.field(name) for name in _LOCATED])
    rows = pa.table({name: list(values) for name, values in (columns | located).items()}, schema)
    return rows, {"lengths": lengths, "sources": tuple(sources.values()), "shards": shards}
