"""Packs of records as they come, the same at any number of ranks and workers (`pack.streams`)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from packidx.digests import canonical_json, digest_parts
from packidx.errors import FormatError, MismatchError, OptionError, PackidxError, SourceError
from packidx.format.schema import fields_of
from packidx.format.terms import LOG_RECIPE
from packidx.index import PlannedPack
from packidx.index.order import check_rank, whole_number
from packidx.io import files
from packidx.packing.streams import WINDOW, check_lanes, least_lanes
from packidx.plan.options import PlanOptions, mix_of
from packidx.torch.collate import collate
from packidx.torch.dataset import Encode, PackedDataset
from packidx.torch.events import Events
from packidx.torch.loss import sum_over_ranks
from packidx.torch.packs import Pack
from packidx.torch.sampler import NAMES, check_agreement
from packidx.torch.stream_rows import StreamIndex
from packidx.user_code import fingerprint_of

_VERSION = 2
_log = logging.getLogger("packidx.torch")
_LOGGED = pa.schema(fields_of("int64 place; int32 position; int64 sample_id; int32 copy length"))
_OF_SAMPLE = _LOGGED.names[1:]
_CAPS = ("max_images", "max_vision_patches", "max_samples")
_OPTIONS = ("margin", "align", "pad_pack_to", "reserve", *_CAPS)


class _Cursor(NamedTuple):
    """A place in a stream.

    Attributes:
        epoch: of the stream.
        place: of the next pack, over all ranks.
        lanes: number of a lane → its window, and packs of that which were given out.
    """

    epoch: int
    place: int = 0
    lanes: Mapping[int, Sequence[int]] = {}


class StreamingPackedDataset(IterableDataset[Pack]):
    """Packs of records that are packed as they come: pack n depends on the records, the seed, the
    strategy, the window and the number of lanes, and on nothing that happens while training.

    One pass over it is one epoch of one rank. `StreamLoader` reads it, in workers or not, and keeps
    the state that resumes it at any world size. The packs are `PackedDataset`'s, made by the same
    code; ``pack_id`` is the pack's place in the order of training, of which rank r has the places
    that are r modulo `world_size`. The epoch ends at the first place whose lane has no more packs.

    Args:
        sources: folder of a lengths table, whose rows are then held in memory; or a file of
            records, a glob or a folder, or several: their records are counted as they come.
        encode: of `PackedDataset`.
        capacity: tokens a pack may hold.
        window: records of a lane that are packed together, N.
        lanes: V, a multiple of ranks x workers x packs of a micro-batch; by default the least that
            is at least 64, or the number that a loaded state has.
        strategy: of `PlanOptions`.
        seed: of the order in which records come.
        epoch: of that order; see `set_epoch`.
        rank: data-parallel rank, below `world_size`.
        micro_batch: packs that `collate` joins.
        mix: of `PlanOptions`; shares of tokens need a lengths table.
        options: further ones of `PlanOptions`: ``margin``, ``align``, ``pad_pack_to``,
            ``reserve``, ``max_images``, ``max_vision_patches``, ``max_samples``.
        reading: ``transform``, ``on_bad`` and others of `PackedDataset`, as `roots` is.

    Raises:
        OptionError: an option has no meaning for these records.
        SourceError, MismatchError: as of `PackedDataset`.
    """

    def __init__(
        self,
        sources: str | os.PathLike[str] | Sequence[str],
        encode: Encode,
        capacity: int,
        *,
        window: int = WINDOW,
        lanes: int | None = None,
        strategy: str = "auto",
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int = 1,
        mix: Mapping[str, float | str] | None = None,
        roots: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        **reading: Any,
    ) -> None:
        check_rank(rank, world_size)
        if unknown := sorted({*(options or {})}.difference(_OPTIONS)):
            raise OptionError(
                f"options has {unknown[0]!r}, and a stream takes {', '.join(_OPTIONS)} there"
            )
        self._sources, self._encode = sources, encode
        self._options = PlanOptions(
            capacity,
            strategy=strategy,
            seed=whole_number("seed", seed),
            window=window,
            lanes=lanes,
            mix=mix_of(mix or ()),
            **(options or {}),
        )
        self._roots, self._reading = dict(roots or {}), reading
        self.rank, self.world_size = rank, world_size
        self.micro_batch = whole_number("micro_batch", micro_batch, 1)
        self._cursor = _Cursor(whole_number("epoch", epoch))
        self._opened: tuple[StreamIndex, PackedDataset] | None = None
        if lanes is not None:
            self._open_sources()

    def _open_sources(
        self, workers: int = 1, lanes: int | None = None
    ) -> tuple[StreamIndex, PackedDataset]:
        """Open the sources, once, and decide the number of lanes, if it is not decided yet.

        Args:
            workers: of the loader.
            lanes: of a state.

        Raises:
            MismatchError: the lanes cannot be dealt to these ranks and workers.
        """
        if self._options.lanes is None:
            least = least_lanes(self.world_size * max(1, workers) * self.micro_batch)
            self._options = replace(self._options, lanes=lanes or least)
        assert self._options.lanes is not None
        check_lanes(self._options.lanes, self.world_size, workers, self.micro_batch)
        if self._opened is None:
            index = StreamIndex(self._sources, self._encode, self._options, self._roots)
            for text in index.left_out:
                _log.warning("%s: %s", index.path, text)
            self._opened = index, PackedDataset(index, self._encode, **self._reading)
        return self._opened

    @property
    def index(self) -> StreamIndex:
        """The records, read like an index."""
        return self._open_sources()[0]

    @property
    def events(self) -> Events:
        """Samples that were left out of packs (`PackedDataset.events`)."""
        return self._open_sources()[1].events

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read `epoch`, from its beginning."""
        if whole_number("epoch", epoch, 0) != self.epoch:
            self._cursor = _Cursor(epoch)

    def __iter__(self) -> Iterator[Pack]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        index, packs = self._open_sources(workers)
        epoch, start, states = self._cursor
        lanes: dict[int, Iterator[PlannedPack]] = {}
        first = start + (self.rank - start) % self.world_size
        for turn, place in enumerate(count(first, self.world_size)):
            if turn // self.micro_batch % workers != number:
                continue
            lane = place % index.lanes
            if lane not in lanes:
                lanes[lane] = index.packs_of_lane(epoch, place, states.get(lane, (0, 0)))
            planned = next(lanes[lane], None)
            if planned is None:
                if not (turn or start):
                    why = index.happened[-1]["error"] if index.happened else "it has none"
                    raise SourceError(f"{index.path}: lane {lane} has no record that fits: {why}")
                _log.warning(
                    f"epoch {epoch} of {index.path} has ended before place {place}; what other"
                    " lanes still hold is in no pack of it"
                )
                return
            pack = packs.read(planned)
            for each in index.happened:
                pack.events.append(each)
                packs.events.add(each)
            index.happened = []
            logged = [
                {"place": place, **{name: getattr(sample, name) for name in _OF_SAMPLE}}
                for sample in planned.samples
            ]
            pack.stream = {"place": place, "lane": planned.stats["lane"], "logged": logged}
            yield pack

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of `StreamLoader` at any world size, merged (`merge_states`).

        Raises:
            FormatError: it is none, or was changed.
            MismatchError: it is of other records, options, seed or lanes, or another encoder; or it
                is of one of several ranks.
        """
        _check_state(state)
        index, _ = self._open_sources(1, state["num_lanes"])
        for name, mine, advice in (
            ("recipe", index.recipe, "its records, options, seed, window or lanes are others"),
            ("encoder", fingerprint_of(self._encode), "give the encoder that it was saved with"),
        ):
            if state[name] != mine:
                raise MismatchError(
                    f"the state has the {NAMES[name]} {state[name]}, this stream {mine}: {advice}"
                )
        lanes = {int(number): own for number, own in state["lanes"].items()}
        if len(lanes) < (number := min(state["place"], index.lanes)):
            raise MismatchError(
                f"the state has {len(lanes)} of the {number} lanes that were read: each rank saves"
                " its own, so give merge_states those of all ranks"
            )
        self._cursor = _Cursor(state["epoch"], state["place"], lanes)


def _sign_state(state: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in state.items() if name != "digest"}
    return {**content, "digest": digest_parts(canonical_json(content))}


def _check_state(state: Mapping[str, Any]) -> None:
    """Raise a FormatError if `state` is none of a stream, or was changed since it was saved."""
    if state.get("version") != _VERSION or _sign_state(state) != state:
        raise FormatError(
            "this is not a state of a stream, or it was changed: give what StreamLoader.state_dict"
            " or merge_states returned"
        )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one state of those that all ranks saved at the same step: of each lane the newest.

    Raises:
        FormatError: one is not a state, or was changed.
        MismatchError: they are of different streams or steps.
        OptionError: there is none.
    """
    own = list(states)
    if not own:
        raise OptionError("no state was given: give those that all ranks have saved")
    for state in own:
        _check_state(state)
    for name in ("recipe", "encoder", "epoch", "place"):
        if len({state[name] for state in own}) > 1:
            values = ", ".join(sorted({str(state[name])[:12] for state in own}))
            raise MismatchError(f"the states differ in {name} ({values}): give those of one step")
    lanes: dict[str, list[int]] = {}
    for state in own:
        for number, lane in state["lanes"].items():
            lanes[number] = max(lanes.get(number, [0, 0]), lane)
    return _sign_state({**own[0], "lanes": lanes})


def _with_states(
    make: Callable[[list[Pack]], Any], packs: list[Pack]
) -> tuple[Any, list[dict[str, Any]]]:
    """Collate packs, and return what the loader keeps of them beside the batch."""
    return make(packs), [pack.stream or {} for pack in packs]


class StreamLoader(DataLoader[Any]):
    """Batches of a stream, and the state of what has been trained on.

    Args:
        stream: what is read.
        collate_fn: a list of packs -> a batch; `collate` by default.
        log: folder in which the packs that were given out are written down when a state is saved
            and when an epoch ends, in a folder for each epoch, ``epoch-0``; ``packidx freeze``
            makes an index of that. None writes nothing.
        more: of `DataLoader`, ``num_workers`` above all; not ``batch_size`` or ``shuffle``.

    Raises:
        OptionError: persistent workers are asked for.
        MismatchError: the lanes cannot be dealt to these ranks and workers.
    """

    def __init__(
        self,
        stream: StreamingPackedDataset,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        log: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> None:
        if more.get("persistent_workers"):
            raise OptionError(
                "persistent_workers=True is not supported: workers would keep the previous epoch"
            )
        with_states = partial(_with_states, collate_fn or collate)
        super().__init__(stream, batch_size=stream.micro_batch, collate_fn=with_states, **more)
        self.stream = stream
        self._home = None if log is None else Path(log)
        if self._home is not None:
            files.make_folder(self._home)
        self._cursor: _Cursor | None = None
        """Behind the batches that were given out; None before the first iteration."""
        self._ended = False
        self._rows: list[dict[str, Any]] = []
        self._began: float | None = None
        self._waited = 0.0  # seconds of this iteration

    @property
    def data_wait(self) -> float | None:
        """Share of this iteration's time that was spent waiting for batches, from 0 to 1; None
        before the first iteration."""
        if self._began is None:
            return None
        return self._waited / max(time.perf_counter() - self._began, 1e-9)

    def __iter__(self) -> Any:
        stream = self.stream
        index, _ = stream._open_sources(self.num_workers)
        epoch, place, states = self._cursor = stream._cursor
        self._ended, self._rows, lanes = False, [], dict(states)
        self._begin_epoch(index)
        batches = super().__iter__()
        self._waited, self._began = 0.0, time.perf_counter()
        while True:
            asked = time.perf_counter()
            given = self._next_batch(batches, place)
            self._waited += time.perf_counter() - asked
            if given is None:
                break
            batch, kept = given
            place += stream.world_size * stream.micro_batch
            for pack in kept:
                number, *lanes[number] = pack["lane"]
                if self._home is not None:
                    self._rows += pack["logged"]
            self._cursor = _Cursor(epoch, place, lanes)
            yield batch
        self._write_log()
        self._ended = True
        if stream.epoch == epoch:
            stream._cursor = _Cursor(epoch)

    def _begin_epoch(self, index: StreamIndex) -> None:
        """Begin the log, and compare with all other ranks what is about to be read.

        Raises:
            MismatchError: something differs, or the log is of another stream; on every rank.
        """
        stream, fault = self.stream, ""
        epoch, place, _ = stream._cursor
        try:
            if self._home is not None and stream.rank == 0:
                _begin_log(self._home / f"epoch-{epoch}", epoch, index)
        except (PackidxError, OSError, ValueError) as error:
            fault = str(error)
        facts = {"recipe": index.recipe, "epoch": epoch, "position": place}
        facts |= {name: getattr(stream, name) for name in ("micro_batch", "world_size", "rank")}
        check_agreement({**facts, "encoder": fingerprint_of(stream._encode)}, fault)

    def _next_batch(
        self, batches: Iterator[Any], place: int
    ) -> tuple[Any, list[dict[str, Any]]] | None:
        """Return the next batch if every rank has one: the order ends at the first place whose lane
        has ended."""
        stream = self.stream
        batch, kept = next(batches, (None, []))
        first = place + (stream.rank - place) % stream.world_size
        wanted = [first + n * stream.world_size for n in range(stream.micro_batch)]
        missing = float([pack["place"] for pack in kept] != wanted)
        if stream.world_size > 1:
            missing = sum_over_ranks(missing)
        return None if missing else (batch, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batches that were given out, to be merged with the other
        ranks' (`merge_states`); the log is then complete up to there."""
        stream, cursor = self.stream, self._cursor
        if cursor is None or (self._ended and cursor.epoch != stream.epoch):
            cursor = stream._cursor
        self._write_log()
        index, _ = stream._open_sources(self.num_workers)
        return _sign_state(
            {
                "version": _VERSION,
                "recipe": index.recipe,
                "encoder": fingerprint_of(stream._encode),
                "epoch": cursor.epoch,
                "place": cursor.place,
                "num_lanes": index.lanes,
                "lanes": {str(number): list(own) for number, own in sorted(cursor.lanes.items())},
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a merged state.

        Raises:
            FormatError, MismatchError: as of `StreamingPackedDataset.load_state_dict`.
        """
        self.stream.load_state_dict(state)
        self._cursor, self._rows = None, []

    def _write_log(self) -> None:
        """Write down what was given out since this was last done.

        Packs that a restarted run gives out once more are logged once more: they are the same.
        """
        if self._home is None or self._cursor is None or not self._rows:
            return
        folder = self._home / f"epoch-{self._cursor.epoch}"
        folder.mkdir(exist_ok=True)
        first, rank = self._rows[0]["place"], self.stream.rank
        path = folder / f"packs-{first:012d}-{self._cursor.place:012d}-{rank:05d}.parquet"
        with files.atomic_file(path) as file, pq.ParquetWriter(file, _LOGGED) as writer:
            writer.write_table(pa.Table.from_pylist(self._rows, _LOGGED))
        self._rows = []


def _begin_log(folder: Path, epoch: int, index: StreamIndex) -> None:
    """Write down what the stream is.

    Raises:
        MismatchError: the log is of another stream.
    """
    path = folder / LOG_RECIPE
    if not path.exists():
        folder.mkdir(exist_ok=True)
        stated: dict[str, Any] = {"version": _VERSION, "recipe": index.recipe, "epoch": epoch}
        stated |= {"options": asdict(index.asked)}
        stated["lengths"] = index.path if index.is_counted else None
        files.write_json(str(path), stated)
    elif (recipe := json.loads(path.read_bytes())["recipe"]) != index.recipe:
        raise MismatchError(
            f"{folder} is the log of the stream {recipe[:12]}, this one is"
            f" {index.recipe[:12]}: name another folder"
        )
