"""Packs of records as they come, the same at any number of ranks and workers (`pack.streams`)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from packidx.digests import canonical_json, digest
from packidx.errors import FormatError, MismatchError, OptionError, PackidxError
from packidx.format import parquet
from packidx.format.stream import LOG_COLUMNS, LOG_RECIPE
from packidx.index import Pack as PlannedPack
from packidx.index.order import check_rank, whole_number
from packidx.io import files
from packidx.pack.streams import WINDOW, check_lanes, least_lanes
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
        mix: source -> how often its samples come in an epoch, if not once.
        options: further ones, as a plan has them: ``margin``, ``align``, ``pad_pack_to``,
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
        for name, value in (("window", window), ("micro_batch", micro_batch), ("lanes", lanes)):
            if value is not None:
                whole_number(name, value, 1)
        arguments = {"capacity": capacity, "strategy": strategy, "seed": seed}
        if twice := sorted(arguments.keys() & (options or {}).keys()):
            raise OptionError(f"options holds {twice[0]}, which is an argument of its own")
        planned = {**(options or {}), **arguments, "weights": dict(mix or {})}
        self._arguments = sources, encode, planned
        self._window, self._roots, self._reading = window, dict(roots or {}), reading
        self.rank, self.world_size, self.micro_batch = rank, world_size, micro_batch
        self._lanes, self._epoch = lanes, epoch
        self._opened: tuple[StreamIndex, PackedDataset] | None = None
        self._start, self._states = 0, dict[int, Sequence[int]]()
        if lanes is not None:
            self.settle(1)

    def settle(self, workers: int) -> None:
        """Decide the number of lanes, if it is not decided yet, and open the sources.

        Args:
            workers: of the loader.

        Raises:
            MismatchError: the lanes cannot be dealt to these ranks and workers.
        """
        if self._lanes is None:
            self._lanes = least_lanes(self.world_size * max(1, workers) * self.micro_batch)
        check_lanes(self._lanes, self.world_size, workers, self.micro_batch)
        if self._opened is None:
            self._open()

    def _open(self) -> tuple[StreamIndex, PackedDataset]:
        sources, encode, options = self._arguments
        if self._lanes is None:
            raise OptionError("lanes are not decided yet: pass lanes=N, or read a StreamLoader")
        index = StreamIndex(
            sources, encode, options, self._lanes, self._window, self._epoch, self._roots
        )
        for text in index.left_out:
            _log.warning("%s: %s", index.path, text)
        index.start_at(self._start, self._states)
        self._opened = index, PackedDataset(index, encode, **self._reading)
        return self._opened

    @property
    def index(self) -> StreamIndex:
        """The records of the current epoch, read like an index."""
        return (self._opened or self._open())[0]

    @property
    def events(self) -> Events:
        """Samples that were left out of packs (`PackedDataset.events`)."""
        return (self._opened or self._open())[1].events

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
        index, packs = self._opened or self._open()
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

    def state(
        self, place: int, lanes: Mapping[int, Sequence[int]], index: StreamIndex | None = None
    ) -> dict[str, Any]:
        """Return the state after all places before `place`, plain JSON.

        Args:
            lanes: state of each lane that was read.
            index: of the epoch that is read, if `set_epoch` was called meanwhile.
        """
        index = index or self.index
        return _signed(
            {
                "version": _VERSION,
                "recipe": index.recipe,
                "encoder": fingerprint_of(self._arguments[1]),
                "epoch": index.epoch,
                "place": place,
                "num_lanes": index.lanes,
                "lanes": {str(number): list(state) for number, state in sorted(lanes.items())},
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of `StreamLoader` at any world size, merged (`merge_states`).

        Raises:
            FormatError: it is none, or was changed.
            MismatchError: it is of other records, options, seed or lanes, or another encoder.
        """
        _check_state(state)
        if self._lanes is None:
            self._lanes = int(state["num_lanes"])
            check_lanes(self._lanes, self.world_size, 1, self.micro_batch)
        if state["recipe"] != self.index.recipe:
            raise MismatchError(
                f"the state is of the stream {state['recipe'][:12]}, this one is"
                f" {self.index.recipe[:12]}: its records, options, seed, window or lanes are others"
            )
        mine = fingerprint_of(self._arguments[1])
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
    """Return what a loader keeps of a pack: its lane, the state of that, and what was planned."""
    lane = planned.pack_id % index.lanes
    names = ("position", "sample_id", "copy", "length")
    rows = [{name: getattr(sample, name) for name in names} for sample in planned.samples]
    return {
        "place": planned.pack_id,
        "lane": (lane, index.lane(lane).state),
        "planned": [{"place": planned.pack_id, **row} for row in rows],
    }


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


class _Told:
    """Collates packs, and tells beside the batch what the loader keeps of them."""

    def __init__(self, make: Callable[[list[Pack]], Any]) -> None:
        self._make = make

    def __call__(self, packs: list[Pack]) -> tuple[Any, list[dict[str, Any]]]:
        told = [pack.stream or {} for pack in packs]
        return self._make(packs), told


class StreamLoader(DataLoader[Any]):
    """Batches of a stream, and the state of what has been trained on.

    Args:
        stream: what is read.
        collate_fn: a list of packs -> a batch; `collate` by default.
        log: folder in which every pack that was given out is written down when a state is saved,
            in a folder for each epoch, ``epoch-0``; ``packidx freeze`` makes an index of that. When
            the stream starts, packs behind its place are removed. None writes nothing.
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
        told = _Told(collate_fn or collate)
        super().__init__(stream, batch_size=stream.micro_batch, collate_fn=told, **more)
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
        self._reading, self._ended = stream.index, False
        index = stream.index
        self._place, self._lanes, self._rows = stream._start, dict(stream._states), []
        self._agree(index)
        batches = super().__iter__()
        while (given := self._agreed(batches)) is not None:
            batch, told = given
            self._place += stream.world_size * stream.micro_batch
            for pack in told:
                number, state = pack["lane"]
                self._lanes[number] = state
                if self._home is not None:
                    self._rows += pack["planned"]
            yield batch
        self._write_log()
        self._ended = True
        if stream.epoch == index.epoch:
            stream.go_on_at(0, {})

    def _agree(self, index: StreamIndex) -> None:
        """Cut the log back, and compare with all other ranks what is about to be read.

        Raises:
            MismatchError: something differs, or the log is of another stream; on every rank.
        """
        stream, fault = self.stream, ""
        try:
            if self._home is not None and stream.rank == 0:
                self._cut_log(self._home, index)
        except (PackidxError, OSError, ValueError) as error:
            fault = str(error)
        agree(
            {
                "recipe": index.recipe,
                "epoch": index.epoch,
                "position": self._place,
                "micro_batch": stream.micro_batch,
                "world_size": stream.world_size,
                "encoder": fingerprint_of(stream._arguments[1]),
                "rank": stream.rank,
            },
            fault,
        )

    def _agreed(self, batches: Iterator[Any]) -> tuple[Any, list[dict[str, Any]]] | None:
        """Return the next batch if every rank has one: the order ends at the first place whose lane
        has ended."""
        stream = self.stream
        batch, told = next(batches, (None, []))
        first = self._place + (stream.rank - self._place) % stream.world_size
        wanted = [first + n * stream.world_size for n in range(stream.micro_batch)]
        has_one = [pack["place"] for pack in told] == wanted
        if stream.world_size > 1 and dist.is_available() and dist.is_initialized():
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            everywhere = torch.tensor([has_one], dtype=torch.int32, device=device)
            dist.all_reduce(everywhere, dist.ReduceOp.MIN)
            has_one = bool(everywhere.item())
        return (batch, told) if has_one else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batches that were given out, to be merged with the other
        ranks' (`merge_states`); the log is then complete up to there."""
        stream = self.stream
        if self._reading is None or (self._ended and self._reading.epoch != stream.epoch):
            stream.settle(self.num_workers)
            return stream.state(stream._start, stream._states)
        self._write_log()
        return stream.state(self._place, self._lanes, self._reading)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a merged state.

        Raises:
            FormatError, MismatchError: as of `StreamingPackedDataset.load_state_dict`.
        """
        self.stream.load_state_dict(state)
        self._reading = None

    def _cut_log(self, home: Path, index: StreamIndex) -> None:
        """Remove all packs from the log that come after the place where the stream starts.

        Raises:
            MismatchError: the log is of another stream.
        """
        logs = {path.parent: json.loads(path.read_bytes()) for path in home.glob(f"*/{LOG_RECIPE}")}
        for folder, stated in logs.items():
            if stated["recipe"] != index.recipe:
                raise MismatchError(
                    f"{folder} is the log of the stream {stated['recipe'][:12]}, this one is"
                    f" {index.recipe[:12]}: name another folder"
                )
        for folder, stated in logs.items():
            if stated["epoch"] >= index.epoch:
                cut_log(folder, self._place if stated["epoch"] == index.epoch else 0)

    def _write_log(self) -> None:
        """Write down what was given out since this was last done."""
        index, rank = self._reading, self.stream.rank
        if self._home is None or index is None:
            return
        folder = self._home / f"epoch-{index.epoch}"
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0 and not (folder / LOG_RECIPE).exists():
            recipe = {
                "version": _VERSION,
                "recipe": index.recipe,
                "lengths": index.path if index.is_counted else None,
                "epoch": index.epoch,
                "options": index.asked,
            }
            files.write_json(str(folder / LOG_RECIPE), recipe)
        if self._rows:
            first = self._rows[0]["place"]
            rows = pa.Table.from_pylist(self._rows, schema=_LOGGED)
            _write(folder / f"packs-{first:012d}-{self._place:012d}-{rank:05d}.parquet", rows)
            self._rows = []


def _write(path: Path, rows: pa.Table) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with files.naming(temporary), parquet.open_writer(str(temporary), rows.schema) as writer:
        writer.write_table(rows)
    os.replace(temporary, path)


def _parts(folder: Path) -> list[tuple[Path, int]]:
    """The files of a log, and the place behind the last one that each has packs of."""
    return [(path, int(path.name.split("-")[2])) for path in sorted(folder.glob("packs-*.parquet"))]


def cut_log(folder: Path, place: int) -> None:
    """Take the packs at `place` and behind it out of a log: they are trained on anew."""
    for path, end in _parts(folder):
        if end <= place:
            continue
        rows = pq.read_table(path)
        kept = rows.filter(pc.less(rows["place"], place))
        if kept.num_rows:
            first, _, rank = path.name.removeprefix("packs-").removesuffix(".parquet").split("-")
            _write(folder / f"packs-{first}-{place:012d}-{rank}.parquet", kept)
        path.unlink()
