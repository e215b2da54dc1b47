"""Packs of records as they come, the same at any number of ranks and workers (`pack.streams`)."""

from __future__ import annotations

import json
import logging
import operator
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

from packidx.errors import FormatError, MismatchError, OptionError
from packidx.format import parquet
from packidx.format.stream import LOG_COLUMNS, LOG_RECIPE
from packidx.index import Pack as PlannedPack
from packidx.index.order import check_rank
from packidx.io import files
from packidx.pack.streams import check_lanes
from packidx.torch.collate import collate
from packidx.torch.dataset import PackedDataset
from packidx.torch.packs import Pack
from packidx.torch.reader import Encode
from packidx.torch.stream_rows import StreamIndex
from packidx.user_code import fingerprint_of

_VERSION = 1
_log = logging.getLogger("packidx.torch")
_LOGGED = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in LOG_COLUMNS.items()])


class StreamingPackedDataset(IterableDataset[Pack]):
    """Packs of records that are packed as they come: pack n depends on the records, the seed, the
    rule and the number of lanes, and on nothing that happens while training.

    One pass over it is one epoch of one rank. `StreamLoader` reads it, in workers or not, and keeps
    the state that resumes it at any world size. The packs are `PackedDataset`'s, made by the same
    code; ``pack_id`` is the pack's place in the order of training, of which rank r has the places
    that are r modulo `world_size`.

    Args:
        sources: folder of a lengths table, whose rows are then held in memory; or a file of
            records, a glob or a folder, or several: their records are counted as they come.
        encode: of `PackedDataset`.
        capacity: tokens a pack may hold.
        rule: ``next-fit``, ``best-fit:K``, ``balanced:K``, ``internvl:K`` or ``window:N``
            (docs/streams.md).
        lanes: V, a multiple of ranks x workers x packs of a micro-batch. Of a lengths table 1,024,
            fewer where a lane would give out fewer than 20 packs; else it must be given.
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
        rule: str = "best-fit:16",
        lanes: int | None = None,
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
        if micro_batch < 1 or (lanes is not None and lanes < 1):
            raise OptionError(f"micro_batch {micro_batch}, lanes {lanes}: each must be at least 1")
        asked = {**(options or {}), "capacity": capacity, "strategy": rule, "seed": seed}
        self._arguments = sources, encode, {**asked, "weights": dict(mix or {})}
        self._roots, self._reading = dict(roots or {}), reading
        self.rank, self.world_size, self.micro_batch = rank, world_size, micro_batch
        self._open(lanes, epoch)
        check_lanes(self.index.lanes, world_size, 1, micro_batch)
        for text in self.index.left_out:
            _log.warning("%s: %s", self.index.path, text)

    def _open(self, lanes: int | None, epoch: int) -> None:
        sources, encode, options = self._arguments
        self._start, self._lanes = 0, dict[int, list[Any]]()
        self.index = StreamIndex(sources, encode, options, lanes, epoch, self._roots)
        self._packs = PackedDataset(self.index, encode, **self._reading)
        self.events = self._packs.events

    @property
    def epoch(self) -> int:
        """The epoch whose packs come."""
        return self.index.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the records come in the order of `epoch`, from its beginning."""
        if epoch != self.epoch:
            self._open(self.index.lanes, operator.index(epoch))

    def __len__(self) -> int:
        """Packs of this rank, equal for all ranks: those that fill no micro-batch of every rank are
        left out.

        Raises:
            TypeError: nobody has counted the records.
        """
        try:
            left = self.index.num_packs - self._start
        except OptionError as error:  # to list() this says that there is no length
            raise TypeError(str(error)) from None
        each = self.world_size * self.micro_batch
        return left // each * self.micro_batch

    def __iter__(self) -> Iterator[Pack]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        check_lanes(self.index.lanes, self.world_size, workers, self.micro_batch)
        end = None
        if self.index.is_counted:
            end = self._start + len(self) * self.world_size
        place = self._start + (self.rank - self._start) % self.world_size
        turn = 0
        while end is None or place < end:
            if turn // self.micro_batch % workers == number:
                try:
                    planned = self.index.pack(place)
                except IndexError as error:
                    _log.warning("%s; what other lanes still hold is in no pack of it", error)
                    return
                pack = self._packs.read(planned)
                for each in self.index.take_events():
                    pack.events.append(each)
                    self.events.add(each)
                pack.stream = self._told(planned)
                yield pack
            place, turn = place + self.world_size, turn + 1

    def _told(self, planned: PlannedPack) -> dict[str, Any]:
        """What a loader keeps of a pack: its lane, the state of that, and what was planned."""
        lane, _ = self.index.place(planned.pack_id) or (0, 0)
        names = ("position", "sample_id", "copy", "length")
        rows = [{name: getattr(sample, name) for name in names} for sample in planned.samples]
        return {
            "place": planned.pack_id,
            "lane": (lane, self.index.state_of(lane)),
            "planned": [{"place": planned.pack_id, **row, "trained": True} for row in rows],
        }

    def state(self, place: int, lanes: Mapping[int, list[Any]]) -> dict[str, Any]:
        """The state after all places before `place`, plain JSON."""
        return {
            "version": _VERSION,
            "recipe": self.index.recipe,
            "encoder": fingerprint_of(self._arguments[1]),
            "epoch": self.epoch,
            "place": place,
            "lanes": {str(number): state for number, state in sorted(lanes.items())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of `StreamLoader` at any world size, merged (`merge_states`).

        Raises:
            FormatError: it is none.
            MismatchError: it is of other records, options, rule, seed or lanes, or another encoder.
        """
        try:
            version, recipe, epoch = state["version"], state["recipe"], int(state["epoch"])
            encoder = state["encoder"]
            place, lanes = int(state["place"]), {int(n): own for n, own in state["lanes"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            version = None
        if version != _VERSION or place < 0:
            raise FormatError(
                "this is not a state of a stream: give what StreamLoader.state_dict gave"
            )
        if recipe != self.index.recipe:
            raise MismatchError(
                f"the state is of the stream {recipe[:12]}, this one is {self.index.recipe[:12]}:"
                " its records, options, rule, seed or lanes are others"
            )
        if encoder != (mine := fingerprint_of(self._arguments[1])):
            raise MismatchError(
                f"the state is of an encoder of fingerprint {encoder}, this one has {mine}: its"
                " samples have other lengths, so give the encoder that the state was saved with"
            )
        self.set_epoch(epoch)
        self._go_on_at(place, lanes)

    def _go_on_at(self, place: int, lanes: dict[int, list[Any]]) -> None:
        self._start, self._lanes = place, lanes
        self.index.load_states(lanes)


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of those that all ranks saved at the same step: of each lane the newest.

    Raises:
        MismatchError: they are of different streams or steps.
        OptionError: there is none.
    """
    own = list(states)
    if not own:
        raise OptionError("no state was given: give those that all ranks have saved")
    for name in ("version", "recipe", "encoder", "epoch", "place"):
        if len({state[name] for state in own}) > 1:
            values = ", ".join(sorted({str(state[name])[:12] for state in own}))
            raise MismatchError(f"the states differ in {name} ({values}): give those of one step")
    lanes: dict[str, list[Any]] = {}
    for state in own:
        for number, lane in state["lanes"].items():
            if number not in lanes or lanes[number][1] < lane[1]:
                lanes[number] = lane
    return {**own[0], "lanes": lanes}


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
    """

    def __init__(
        self,
        stream: StreamingPackedDataset,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        log: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> None:
        if more.get("persistent_workers"):
            raise OptionError("persistent workers do not hear of another epoch: leave them out")
        told = _Told(collate_fn or collate)
        super().__init__(stream, batch_size=stream.micro_batch, collate_fn=told, **more)
        check_lanes(stream.index.lanes, stream.world_size, self.num_workers, stream.micro_batch)
        self.stream = stream
        self._home = None if log is None else Path(log)
        if self._home is not None:
            files.make_folder(self._home)
        self._begin()

    def _begin(self) -> None:
        """Stand where the stream goes on."""
        self._epoch = self.stream.epoch
        self._place, self._lanes = self.stream._start, dict(self.stream._lanes)
        self._rows: list[dict[str, Any]] = []

    @property
    def _log(self) -> Path | None:
        """The folder of this epoch's log."""
        return None if self._home is None else self._home / f"epoch-{self._epoch}"

    def __iter__(self) -> Any:
        stream = self.stream
        self._begin()
        if self._home is not None and stream.rank == 0:
            self._cut_log(self._home)
        batches = super().__iter__()
        while (given := self._agreed(batches)) is not None:
            batch, told = given
            self._place += stream.world_size * stream.micro_batch
            for pack in told:
                number, state = pack["lane"]
                self._lanes[number] = state
                if self._log is not None:
                    self._rows += pack["planned"]
            yield batch
        self._log_left_out()
        stream._go_on_at(0, {})

    def _agreed(self, batches: Iterator[Any]) -> tuple[Any, list[dict[str, Any]]] | None:
        """The next batch, if every rank has one: asked where nobody can know how many there are.

        A lane that has ended leaves its place empty, and there the order ends.
        """
        stream = self.stream
        batch, told = next(batches, (None, []))
        first = self._place + (stream.rank - self._place) % stream.world_size
        wanted = [first + n * stream.world_size for n in range(stream.micro_batch)]
        has_one = [pack["place"] for pack in told] == wanted
        if not stream.index.is_counted and dist.is_available() and dist.is_initialized():
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            everywhere = torch.tensor([has_one], dtype=torch.int32, device=device)
            dist.all_reduce(everywhere, dist.ReduceOp.MIN)
            has_one = bool(everywhere.item())
        return (batch, told) if has_one else None

    def _log_left_out(self) -> None:
        """Write down what is left of the epoch: also, once, the packs at its end that fill no
        micro-batch of every rank."""
        stream, end = self.stream, self._place
        if self._log is not None and stream.rank == 0 and stream.index.is_counted:
            end = stream.index.num_packs
            for place in range(self._place, end):
                rows = stream._told(stream.index.pack(place))["planned"]
                self._rows += [{**row, "trained": False} for row in rows]
        self._write_log(end)

    def state_dict(self) -> dict[str, Any]:
        """The state behind the batches that were given out, to be merged with the other ranks'
        (`merge_states`); the log is then complete up to there."""
        self._write_log(self._place)
        if self._epoch != self.stream.epoch:  # nothing of that epoch was given out yet
            self._begin()
        return self.stream.state(self._place, self._lanes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a merged state.

        Raises:
            FormatError, MismatchError: as of `StreamingPackedDataset.load_state_dict`.
        """
        self.stream.load_state_dict(state)
        self._begin()

    def _cut_log(self, home: Path) -> None:
        """Remove all packs from the log that come after the place where the stream starts.

        Raises:
            MismatchError: the log is of another stream.
        """
        logs = {path.parent: json.loads(path.read_bytes()) for path in home.glob(f"*/{LOG_RECIPE}")}
        for folder, stated in logs.items():
            if stated["recipe"] != self.stream.index.recipe:
                raise MismatchError(
                    f"{folder} is the log of the stream {stated['recipe'][:12]}, this one is"
                    f" {self.stream.index.recipe[:12]}: name another folder"
                )
        for folder, stated in logs.items():
            if stated["epoch"] >= self._epoch:
                cut_log(folder, self._place if stated["epoch"] == self._epoch else 0)

    def _write_log(self, end: int) -> None:
        """Write down what was given out since this was last done, up to the place `end`."""
        if self._log is None:
            return
        self._log.mkdir(parents=True, exist_ok=True)
        if self.stream.rank == 0 and not (self._log / LOG_RECIPE).exists():
            files.write_json(str(self._log / LOG_RECIPE), self._recipe())
        if self._rows:
            first, rank = self._rows[0]["place"], self.stream.rank
            rows = pa.Table.from_pylist(self._rows, schema=_LOGGED)
            _write(self._log / f"packs-{first:012d}-{end:012d}-{rank:05d}.parquet", rows)
            self._rows = []

    def _recipe(self) -> dict[str, Any]:
        index = self.stream.index
        return {
            "version": _VERSION,
            "recipe": index.recipe,
            "lengths": index.path if index.is_counted else None,
            "epoch": self._epoch,
            "options": index.asked,
        }


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
