"""Packs of records as they come, the same at any number of ranks and workers (`pack.streams`)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from packidx.digests import canonical_json, digest
from packidx.errors import FormatError, MismatchError, OptionError, PackidxError
from packidx.format.stream import LOG_COLUMNS, LOG_RECIPE
from packidx.index import Pack as PlannedPack
from packidx.index.order import check_rank, whole_number
from packidx.io import files
from packidx.pack.streams import WINDOW, check_lanes, least_lanes
from packidx.plan.options import PlanOptions, mix_of
from packidx.torch.collate import collate
from packidx.torch.dataset import PackedDataset
from packidx.torch.events import Events
from packidx.torch.packs import Pack
from packidx.torch.ranks import agree
from packidx.torch.reader import Encode
from packidx.torch.stream_rows import StreamIndex
from packidx.user_code import fingerprint_of

_VERSION = 2
_log = logging.getLogger("packidx.torch")
_LOGGED = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in LOG_COLUMNS.items()])
_CAPS = ("max_images", "max_vision_patches", "max_samples")
_OPTIONS = ("margin", "align", "pad_pack_to", "reserve", *_CAPS)


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
        rank, world_size: data-parallel ranks.
        micro_batch: packs that `collate` joins.
        mix: of `PlanOptions`; shares of tokens need a lengths table.
        options: further ones of `PlanOptions`: ``margin``, ``align``, ``pad_pack_to``,
            ``reserve``, ``max_images``, ``max_vision_patches``, ``max_samples``.
        roots, transform, on_mismatch, on_bad, dummy_image: of `PackedDataset`.

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
        whole_number("seed", seed, 0)
        whole_number("epoch", epoch, 0)
        whole_number("micro_batch", micro_batch, 1)
        if unknown := sorted({*(options or {})}.difference(_OPTIONS)):
            raise OptionError(
                f"options has {unknown[0]!r}, and a stream takes {', '.join(_OPTIONS)} there"
            )
        self._sources, self._encode = sources, encode
        self._options = PlanOptions(
            capacity,
            strategy=strategy,
            seed=seed,
            window=window,
            lanes=lanes,
            mix=mix_of(mix or ()),
            **(options or {}),
        )
        self._roots, self._reading = dict(roots or {}), reading
        self.rank, self.world_size, self.micro_batch = rank, world_size, micro_batch
        self._epoch = epoch
        self._opened: tuple[StreamIndex, PackedDataset] | None = None
        self._start, self._states = 0, dict[int, Sequence[int]]()
        if lanes is not None:
            self.settle(1)

    def settle(self, workers: int, lanes: int | None = None) -> None:
        """Decide the number of lanes, if it is not decided yet, and open the sources.

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
        _ = self.index

    def _open(self) -> tuple[StreamIndex, PackedDataset]:
        if self._opened is None:
            if self._options.lanes is None:
                raise OptionError("lanes are not decided: pass lanes=N, or read a StreamLoader")
            index = StreamIndex(
                self._sources, self._encode, self._options, self._epoch, self._roots
            )
            for text in index.left_out:
                _log.warning("%s: %s", index.path, text)
            index.start_at(self._start, self._states)
            self._opened = index, PackedDataset(index, self._encode, **self._reading)
        return self._opened

    @property
    def index(self) -> StreamIndex:
        """The records of the current epoch, read like an index."""
        return self._open()[0]

    @property
    def events(self) -> Events:
        """Samples that were left out of packs (`PackedDataset.events`)."""
        return self._open()[1].events

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read `epoch`, from its beginning."""
        whole_number("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._start, self._states, self._opened = 0, {}, None

    def __iter__(self) -> Iterator[Pack]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        self.settle(workers)
        index, packs = self._open()
        place = self._start + (self.rank - self._start) % self.world_size
        turn = 0
        while True:
            if turn // self.micro_batch % workers == number:
                try:
                    planned = index.pack(place)
                except IndexError as error:
                    _log.warning("%s; what other lanes still hold is in no pack of it", error)
                    return
                pack = packs.read(planned)
                for each in index.take_events():
                    pack.events.append(each)
                    packs.events.add(each)
                pack.stream = _kept_of(planned, index)
                yield pack
            place, turn = place + self.world_size, turn + 1

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of `StreamLoader` at any world size, merged (`merge_states`).

        Raises:
            FormatError: it is none, or was changed.
            MismatchError: it is of other records, options, seed or lanes, or another encoder.
        """
        _check_state(state)
        self.settle(1, state["num_lanes"])
        if state["recipe"] != self.index.recipe:
            raise MismatchError(
                f"the state is of the stream {state['recipe'][:12]}, this one is"
                f" {self.index.recipe[:12]}: its records, options, seed, window or lanes are others"
            )
        mine = fingerprint_of(self._encode)
        if state["encoder"] != mine:
            raise MismatchError(
                f"the state is of an encoder of fingerprint {state['encoder']}, this one has"
                f" {mine}: give the encoder that the state was saved with"
            )
        self.set_epoch(state["epoch"])
        self.go_on_at(state["place"], {int(n): own for n, own in state["lanes"].items()})

    def go_on_at(self, place: int, states: Mapping[int, Sequence[int]]) -> None:
        """Let the next iteration begin at `place`, with lanes that stand where `states` say."""
        self._start, self._states = place, dict(states)
        self.index.start_at(place, states)


def _kept_of(planned: PlannedPack, index: StreamIndex) -> dict[str, Any]:
    """Return what a loader keeps of a pack: its lane, the state of that, and rows of the log."""
    place, lane = planned.pack_id, planned.pack_id % index.lanes
    names = [name for name in LOG_COLUMNS if name != "place"]
    rows = [{name: getattr(sample, name) for name in names} for sample in planned.samples]
    logged = [{"place": place, **row} for row in rows]
    return {"place": place, "lane": (lane, index.lane(lane).state), "logged": logged}


def _signed(state: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in state.items() if name != "digest"}
    return {**content, "digest": digest(canonical_json(content))}


def _check_state(state: Mapping[str, Any]) -> None:
    """
    Raises:
        FormatError: it is not a state of a stream, or was changed since it was saved.
    """
    try:
        is_state = state["version"] == _VERSION and _signed(state)["digest"] == state["digest"]
    except (KeyError, TypeError, ValueError):
        is_state = False
    if not is_state:
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
    return _signed({**own[0], "lanes": lanes})


def _with_states(
    make: Callable[[list[Pack]], Any], packs: list[Pack]
) -> tuple[Any, list[dict[str, Any]]]:
    """Collate packs, and return what the loader keeps of them beside the batch."""
    kept = [pack.stream or {} for pack in packs]
    return make(packs), kept


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
        self._reading: StreamIndex | None = None
        self._ended = False
        self._place, self._lanes = 0, dict[int, Sequence[int]]()
        self._rows: list[dict[str, Any]] = []

    def __iter__(self) -> Any:
        stream = self.stream
        stream.settle(self.num_workers)
        self._reading, self._ended = index, _ = stream.index, False
        self._place, self._lanes, self._rows = stream._start, dict(stream._states), []
        self._agree(index)
        batches = super().__iter__()
        while (given := self._next(batches)) is not None:
            batch, kept = given
            self._place += stream.world_size * stream.micro_batch
            for pack in kept:
                number, state = pack["lane"]
                self._lanes[number] = state
                if self._home is not None:
                    self._rows += pack["logged"]
            yield batch
        self._write_log()
        self._ended = True
        if stream.epoch == index.epoch:
            stream.go_on_at(0, {})

    def _agree(self, index: StreamIndex) -> None:
        """Begin the log, and compare with all other ranks what is about to be read.

        Raises:
            MismatchError: something differs, or the log is of another stream; on every rank.
        """
        stream, fault = self.stream, ""
        try:
            if self._home is not None and stream.rank == 0:
                self._begin_log(self._home / f"epoch-{index.epoch}", index)
        except (PackidxError, OSError, ValueError) as error:
            fault = str(error)
        facts = {"recipe": index.recipe, "epoch": index.epoch, "position": self._place}
        facts |= {name: getattr(stream, name) for name in ("micro_batch", "world_size", "rank")}
        agree({**facts, "encoder": fingerprint_of(stream._encode)}, fault)

    def _next(self, batches: Iterator[Any]) -> tuple[Any, list[dict[str, Any]]] | None:
        """Return the next batch if every rank has one: the order ends at the first place whose lane
        has ended."""
        stream = self.stream
        batch, kept = next(batches, (None, []))
        first = self._place + (stream.rank - self._place) % stream.world_size
        wanted = [first + n * stream.world_size for n in range(stream.micro_batch)]
        has_one = [pack["place"] for pack in kept] == wanted
        if stream.world_size > 1 and dist.is_available() and dist.is_initialized():
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            everywhere = torch.tensor([has_one], dtype=torch.int32, device=device)
            dist.all_reduce(everywhere, dist.ReduceOp.MIN)
            has_one = bool(everywhere.item())
        return (batch, kept) if has_one else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batches that were given out, to be merged with the other
        ranks' (`merge_states`); the log is then complete up to there."""
        stream, index, place, lanes = self.stream, self._reading, self._place, self._lanes
        if index is None or (self._ended and index.epoch != stream.epoch):
            stream.settle(self.num_workers)
            index, place, lanes = stream.index, stream._start, dict(stream._states)
        else:
            self._write_log()
        return _signed(
            {
                "version": _VERSION,
                "recipe": index.recipe,
                "encoder": fingerprint_of(stream._encode),
                "epoch": index.epoch,
                "place": place,
                "num_lanes": index.lanes,
                "lanes": {str(number): list(state) for number, state in sorted(lanes.items())},
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a merged state.

        Raises:
            FormatError, MismatchError: as of `StreamingPackedDataset.load_state_dict`.
        """
        self.stream.load_state_dict(state)
        self._reading = None

    def _begin_log(self, folder: Path, index: StreamIndex) -> None:
        """Write down what the stream is.

        Raises:
            MismatchError: the log is of another stream.
        """
        path = folder / LOG_RECIPE
        if not path.exists():
            folder.mkdir(exist_ok=True)
            stated: dict[str, Any] = {"version": _VERSION, "recipe": index.recipe}
            stated |= {"epoch": index.epoch, "options": asdict(index.asked)}
            stated["lengths"] = index.path if index.is_counted else None
            files.write_json(str(path), stated)
        elif (recipe := json.loads(path.read_bytes())["recipe"]) != index.recipe:
            raise MismatchError(
                f"{folder} is the log of the stream {recipe[:12]}, this one is"
                f" {index.recipe[:12]}: name another folder"
            )

    def _write_log(self) -> None:
        """Write down what was given out since this was last done.

        Packs that a restarted run gives out once more are logged once more: they are the same.
        """
        if self._home is None or self._reading is None or not self._rows:
            return
        folder = self._home / f"epoch-{self._reading.epoch}"
        folder.mkdir(exist_ok=True)
        first, rank = self._rows[0]["place"], self.stream.rank
        path = folder / f"packs-{first:012d}-{self._place:012d}-{rank:05d}.parquet"
        with files.atomic_file(path) as file, pq.ParquetWriter(file, _LOGGED) as writer:
            writer.write_table(pa.Table.from_pylist(self._rows, _LOGGED))
        self._rows = []
