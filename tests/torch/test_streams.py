"""Streams: one snapshot id, whatever the ranks, the workers, the kills; and what they refuse."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from trained_packs import launch

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import (
    FormatError,
    MismatchError,
    OptionError,
    SourceError,
    VerificationError,
)
from packidx.index import Index
from packidx.plan.freeze import freeze_log
from packidx.torch import StreamingPackedDataset, StreamLoader, merge_states

LANES, WINDOW = 8, 40


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    write_records(folder / "talk.jsonl", 1500)
    estimate_lengths(str(folder / "talk.jsonl"), folder / "lengths", encode=Words())
    return folder / "lengths"


def stream_of(lengths: Path, rank: int, world_size: int, **options: Any) -> StreamingPackedDataset:
    options = {"lanes": LANES, "window": WINDOW, "seed": 3, **options}
    return StreamingPackedDataset(
        lengths, Words(), CAPACITY, rank=rank, world_size=world_size, **options
    )


def train(
    lengths: Path,
    log: Path,
    world_size: int,
    workers: int,
    state: Any,
    steps: int | None,
    **options: Any,
) -> tuple[Any, list[list[tuple[int, list[int]]]]]:
    """Train `steps` steps on every rank, then save; the merged state and each rank's packs."""
    states, seen = [], []
    for rank in range(world_size):
        stream = stream_of(lengths, rank, world_size, **options)
        loader = StreamLoader(stream, collate_fn=list, log=log, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        own = []
        for step, packs in enumerate(loader, start=1):
            own += [(pack.pack_id, pack.sample_ids.tolist()) for pack in packs]
            if step == steps:
                break
        states.append(loader.state_dict())
        seen.append(own)
    return merge_states(json.loads(json.dumps(states))), seen


def planned_of(lengths: Path, folder: Path, **options: Any) -> Index:
    """Plan what the stream gives out."""
    asked = {"capacity": CAPACITY, "lanes": LANES, "window": WINDOW, "seed": 3, **options}
    return open_index(plan_packs(lengths, folder, **asked).path)


def given_by(stream: StreamingPackedDataset) -> list[list[int]]:
    return [pack.sample_ids.tolist() for pack in stream]


def ids_at(index: Index, number: int) -> list[int]:
    return [sample.sample_id for sample in index.pack(number).samples]


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [("auto", 0), ("bfd", 0), pytest.param("auto", 2, marks=pytest.mark.slow)],
)
def test_one_id_whatever_the_ranks_the_workers_and_the_kills(
    strategy: str, workers: int, lengths: Path, tmp_path: Path
) -> None:
    index = planned_of(lengths, tmp_path / "planned", strategy=strategy)
    draw, state, place = random.Random(strategy), None, 0
    how = {"strategy": strategy}
    for _ in range(5):
        world_size = draw.choice([1, 2, 4])
        steps = draw.randint(1, max(1, (index.num_packs - place) // world_size // 4))
        state, seen = train(lengths, tmp_path / "log", world_size, workers, state, steps, **how)
        for own in seen:  # what was trained on is what was planned, pack by pack
            for number, samples in own:
                assert samples == ids_at(index, number)
        place += steps * world_size
        assert state["place"] == place
        # Trained on after the checkpoint, and lost.
        train(lengths, tmp_path / "log", world_size, 0, state, 1, **how)
    train(lengths, tmp_path / "log", 1, workers, state, None, **how)
    frozen = freeze_log(tmp_path / "log", tmp_path / "frozen")
    assert frozen.snapshot_id == index.id


@pytest.mark.parametrize("is_counted", [True, False])
def test_an_epoch_that_ended_is_logged_and_the_next_one_begins_at_its_beginning(
    is_counted: bool, lengths: Path, tmp_path: Path
) -> None:
    """No state is saved in the epoch, and one after `set_epoch`."""
    stream = stream_of(lengths if is_counted else lengths.parent / "talk.jsonl", 0, 1)
    loader = StreamLoader(stream, collate_fn=list, log=tmp_path / "log")
    number = sum(1 for _ in loader)
    stream.set_epoch(1)
    state = loader.state_dict()
    assert number > 20 and (state["epoch"], state["place"], state["lanes"]) == (1, 0, {})
    assert freeze_log(tmp_path / "log", tmp_path / "frozen", lengths=lengths).snapshot_id


def test_another_epoch_begins_with_the_next_iteration(lengths: Path, tmp_path: Path) -> None:
    whole = given_by(stream_of(lengths, 0, 1))
    stream = stream_of(lengths, 0, 1)
    loader, seen = StreamLoader(stream, collate_fn=list, log=tmp_path / "log"), []
    for step, packs in enumerate(loader):
        seen += [pack.sample_ids.tolist() for pack in packs]
        if step == 3:
            stream.set_epoch(1)
            state = loader.state_dict()
    assert seen == whole and (state["epoch"], state["place"]) == (0, 4)
    second = [packs[0].sample_ids.tolist() for packs in loader]
    assert second == given_by(stream_of(lengths, 0, 1, epoch=1)) != whole
    going_on = stream_of(lengths, 0, 1)
    going_on.load_state_dict(state)
    assert given_by(going_on) == whole[4:]
    assert freeze_log(tmp_path / "log", tmp_path / "frozen").snapshot_id


def test_files_that_nobody_counted_give_the_same_packs(lengths: Path, tmp_path: Path) -> None:
    counted, raw = lengths, lengths.parent / "talk.jsonl"
    _, of_table = train(counted, tmp_path / "one", 2, 0, None, 20)
    state, of_files = train(raw, tmp_path / "two", 2, 2, None, 20)
    assert of_files == of_table
    _, on = train(raw, tmp_path / "two", 4, 0, state, 3)
    _, more = train(counted, tmp_path / "three", 1, 0, None, 52)
    assert sorted(pack for own in on for pack in own) == more[0][40:]
    frozen = freeze_log(tmp_path / "two", tmp_path / "index", lengths=counted)
    assert frozen.snapshot.result.num_packs > 52
    assert frozen.snapshot_id == planned_of(counted, tmp_path / "planned").id
    with pytest.raises(OptionError, match="--lengths"):
        freeze_log(tmp_path / "two", tmp_path / "index")


def test_a_loader_begins_where_it_was_told_to(lengths: Path) -> None:
    loader = StreamLoader(stream_of(lengths, 0, 1), collate_fn=ids_of, num_workers=2)
    whole = list(loader)
    assert [next(iter(loader)) for _ in range(2)] == whole[:1] * 2  # a look at the first loses none
    assert list(loader) == whole
    state = loader.state_dict()
    assert state["place"] == len(whole)
    loader.load_state_dict(state)
    assert list(loader) == []
    loader.stream.set_epoch(1)
    second = list(loader)
    assert len(second) == loader.state_dict()["place"] and second != whole


@pytest.mark.parametrize(("one", "other"), [("words", "other words"), ("words", None)])
def test_another_encoder_does_not_go_on(lengths: Path, one: str | None, other: str | None) -> None:
    source = lengths.parent / "talk.jsonl"
    first, second = (
        StreamLoader(
            StreamingPackedDataset(source, OtherWords(name), CAPACITY, lanes=LANES),
            collate_fn=list,
        )
        for name in (one, other)
    )
    next(iter(first))
    with pytest.raises(MismatchError, match=f"fingerprint {one}, this stream {other}"):
        second.load_state_dict(first.state_dict())


def test_the_log_of_another_stream_is_refused(lengths: Path, tmp_path: Path) -> None:
    train(lengths, tmp_path / "log", 1, 0, None, 5)
    other = StreamLoader(stream_of(lengths, 0, 1, seed=4), collate_fn=list, log=tmp_path / "log")
    with pytest.raises(MismatchError, match="is the log of the stream"):
        next(iter(other))


def ids_of(packs: list[Any]) -> list[Any]:
    return [(pack.pack_id, pack.sample_ids.tolist()) for pack in packs]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_begin_anew_give_the_same_packs(lengths: Path, context: str) -> None:
    raw = lengths.parent / "talk.jsonl"
    loader = StreamLoader(stream_of(lengths, 0, 1), collate_fn=ids_of)
    whole = [batch for batch, _ in zip(loader, range(12), strict=False)]
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": context}
    for source in (lengths, raw):
        loader = StreamLoader(stream_of(source, 0, 1), collate_fn=ids_of, **options)
        assert [batch for batch, _ in zip(loader, range(12), strict=False)] == whole


def test_what_is_left_out_is_told(
    lengths: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream_of(lengths, 0, 1)
    assert "15 of 1,500 records are too long: in no pack" in caplog.text
    bad = tmp_path / "bad.jsonl"
    lines = (lengths.parent / "talk.jsonl").read_text().splitlines()[:300]
    unread = json.dumps({"text": "302", "why": "It is so."})
    bare = json.dumps({"question": "<image> What?", "answer": "A cat."})  # and no image
    bad.write_text("\n".join([*lines, "{not json", "[1, 2]", unread, bare]) + "\n")
    ours: Any = Words()
    ours.fingerprint_parts = dict  # its records are read as strictly as `estimate` reads them
    stream = StreamingPackedDataset(bad, ours, CAPACITY, lanes=LANES, window=WINDOW)
    seen = sorted(n for pack in stream for n in pack.sample_ids.tolist())
    assert f"{bad}, row 300" in caplog.text and "nothing reads 'why'" in caplog.text
    long = [row for row, line in enumerate(lines) if len(json.loads(line)["text"].split()) > 256]
    assert long and not {*long, 300, 301, 302} & set(seen)
    told = {(each["kind"], each["sample_id"]) for each in stream.events}
    assert told == {("too_long", row) for row in long} | {
        ("unreadable", n) for n in (300, 301, 302, 303)
    }
    assert {(each["pack"], each["position"]) for each in stream.events} == {(None, None)}


def test_records_that_no_place_reaches_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_records(tmp_path / "few.jsonl", 40)
    stream = stream_of(tmp_path / "few.jsonl", 0, 1, lanes=8)
    given = sum(len(pack.samples) for pack in stream)
    assert given < 40
    assert "what other lanes still hold is in no pack of it" in caplog.text


def test_a_log_of_other_packs_is_refused(lengths: Path, tmp_path: Path) -> None:
    train(lengths, tmp_path / "log", 1, 0, None, 9)
    write_records(tmp_path / "talk.jsonl", 1500, seed=1)
    estimate_lengths(str(tmp_path / "talk.jsonl"), tmp_path / "lengths", encode=Words())
    with pytest.raises(VerificationError, match="another pack at place"):
        freeze_log(tmp_path / "log", tmp_path / "index", lengths=tmp_path / "lengths")
    assert not (tmp_path / "index").exists()
    part = next((tmp_path / "log" / "epoch-0").glob("packs-*.parquet"))
    train(lengths, tmp_path / "other", 2, 0, None, 3)
    next((tmp_path / "other" / "epoch-0").glob("packs-*-00001.parquet")).unlink()
    with pytest.raises(FormatError, match="no pack at place 1"):
        freeze_log(tmp_path / "other", tmp_path / "index")
    part.unlink()
    with pytest.raises(FormatError, match="holds no pack yet"):
        freeze_log(tmp_path / "log", tmp_path / "index")


@pytest.mark.parametrize(
    "options",
    [
        {"align": 8, "margin": 0.05},  # 243 tokens, of which samples take 240
        {"pad_pack_to": 16, "reserve": 16},
        {"max_samples": 3, "align": 4},
    ],
)
def test_a_stream_has_the_options_of_its_plan(
    options: dict[str, Any], lengths: Path, tmp_path: Path
) -> None:
    index = planned_of(lengths, tmp_path / "i", **options)
    stream = stream_of(lengths, 0, 1, options=options)
    number = sum(1 for _ in stream)
    for pack in (pack for lane in range(LANES) for pack in stream.index.packs_of_lane(0, lane)):
        if pack.pack_id < number:
            planned = index.pack(pack.pack_id)
            assert pack.samples == planned.samples
            assert pack.stats["padded_length"] == planned.stats["padded_length"]
    lines = (lengths.parent / "talk.jsonl").read_text().splitlines()
    table = pa.Table.from_pylist(list(map(json.loads, lines)))
    pq.write_table(table, tmp_path / "talk.parquet", row_group_size=50)
    for folder, name in ((lengths.parent, "talk.jsonl"), (tmp_path, "talk.parquet")):
        files = stream_of(folder / name, 0, 1, options=options)
        for given, _ in zip(files, range(12), strict=False):
            assert given.sample_ids.tolist() == ids_at(index, given.pack_id)
            padded = index.pack(given.pack_id).stats["padded_length"]
            assert len(given.joined()["input_ids"]) == padded


def test_a_record_that_is_left_out_does_not_change_the_order(tmp_path: Path) -> None:
    """With some seeds the only record that comes twice is too long, which nobody knows of files
    before it comes."""
    write_records(tmp_path / "few.jsonl", 5)
    with (tmp_path / "few.jsonl").open("a") as file:
        file.write(json.dumps({"id": "long", "text": "1 " * (CAPACITY + 1)}) + "\n")
    estimate_lengths(str(tmp_path / "few.jsonl"), tmp_path / "lengths", encode=Words())
    for seed in range(30):
        of_table, of_files = (
            [pack.sample_ids.tolist() for pack, _ in zip(stream, range(2), strict=False)]
            for source in (tmp_path / "lengths", tmp_path / "few.jsonl")
            for stream in [stream_of(source, 0, 1, seed=seed, lanes=3, mix={"few": 1.3})]
        )
        assert of_files == of_table[: len(of_files)]


def test_a_mix_files_ratio_is_that_of_the_stream(lengths: Path, tmp_path: Path) -> None:
    entry = {"file_name": str(lengths.parent / "talk.jsonl"), "sample_ratio": 2.5}
    (tmp_path / "mix.json").write_text(json.dumps({"talk": entry}))
    table = tmp_path / "lengths"
    estimate_lengths(str(tmp_path / "mix.json"), table, encode=Words())
    index = planned_of(table, tmp_path / "index")
    planned = [ids_at(index, number) for number in range(index.num_packs)]
    for source in (table, tmp_path / "mix.json"):
        stream = stream_of(source, 0, 1)
        packs = [pack.sample_ids.tolist() for pack, _ in zip(stream, range(12), strict=False)]
        assert packs == planned[:12]
    assert 3000 < sum(map(len, planned)) < 4500


def test_what_does_not_go_is_said(lengths: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="lanes=9"):
        stream_of(lengths, 0, 3)
    with pytest.raises(OptionError, match="strategy is 'best-fit'"):
        list(stream_of(lengths, 0, 1, strategy="best-fit"))
    with pytest.raises(OptionError, match="40 records cannot fill 64 lanes"):
        write_records(tmp_path / "few.jsonl", 40)
        list(stream_of(tmp_path / "few.jsonl", 0, 1, lanes=None))
    (tmp_path / "bad.jsonl").write_text('{"text": "1", "image": "none.png"}\n' * 40)
    with pytest.raises(SourceError, match=r"lane 0 has no record that fits: .*none\.png"):
        list(stream_of(tmp_path / "bad.jsonl", 0, 1))
    with pytest.raises(OptionError, match="cannot be made"):
        StreamLoader(stream_of(lengths, 0, 1), log=__file__)
    with pytest.raises(OptionError, match="shares of tokens"):
        stream_of(lengths.parent / "talk.jsonl", 0, 1, mix={"talk": "50%"})
    for options, named in (({"group_by": "source"}, "group-by"), ({"on_long": "split"}, "on-long")):
        with pytest.raises(OptionError, match=f"--{named}.* cannot be combined with --lanes"):
            planned_of(lengths, tmp_path / "index", **options)
    state, _ = train(lengths, tmp_path / "log", 1, 0, None, 2)
    with pytest.raises(MismatchError, match="its records, options, seed, window or lanes"):
        stream_of(lengths, 0, 1, seed=4).load_state_dict(state)
    for changed in ({"version": 2}, {**state, "place": 3}, {**state, "lanes": {"0": [0, 9]}}):
        with pytest.raises(FormatError, match="not a state of a stream, or it was changed"):
            stream_of(lengths, 0, 1).load_state_dict(changed)
    later, _ = train(lengths, tmp_path / "log", 1, 0, state, 1)
    with pytest.raises(MismatchError, match="differ in place"):
        merge_states([state, later])


def test_lanes_are_the_least_that_the_loader_allows(lengths: Path) -> None:
    stream = stream_of(lengths, 1, 3, lanes=None, micro_batch=5)
    loader = StreamLoader(stream, collate_fn=ids_of, num_workers=2)
    first = next(iter(loader))
    assert stream.index.lanes == 90 and [place for place, _ in first] == [1, 4, 7, 10, 13]
    other = stream_of(lengths, 0, 1, lanes=None)
    with pytest.raises(MismatchError, match="5 of the 15 lanes .* merge_states those of all ranks"):
        other.load_state_dict(loader.state_dict())
    assert other.index.lanes == 90


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rank": 2, "world_size": 2}, r"rank 2 is outside \[0, 2\)"),
        ({"world_size": 0}, "world_size is 0"),
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"lanes": 0}, "lanes is 0"),
        ({"window": 0}, "window is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"epoch": "1"}, "epoch is '1'"),
        ({"options": {"align": 0}}, "align is 0"),
        ({"options": {"margin": "0.1"}}, "margin is '0.1', which is not a number"),
        ({"options": {"seed": 4}}, "options has 'seed'"),
        ({"options": {"holdout": "0.1"}}, "options has 'holdout'"),
        ({"mix": {"walk": 2}}, "choose from talk"),
        ({"mix": {"talk": "much"}}, "'much', which is not a number"),
        ({"mix": {"talk": 0}}, "every source weight 0"),
    ],
)
def test_options_of_no_stream(lengths: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        stream_of(lengths, **{"rank": 0, "world_size": 1, **asked})


def read(rank: int, long: str, short: str, told: str) -> None:
    """One rank: the places that it was given until the stream ended, rank 1 slowly."""
    dist.init_process_group("gloo")
    stream = StreamingPackedDataset(
        [long, short], Words(), CAPACITY, window=30, lanes=4, rank=rank, world_size=2
    )
    places: list[int] = []
    for packs in StreamLoader(stream, collate_fn=list, num_workers=2):
        places += [pack.pack_id for pack in packs]
        time.sleep(0.02 * rank)
    Path(told, f"{rank}.json").write_text(json.dumps(places))
    dist.barrier()
    dist.destroy_process_group()


def refused(rank: int, source: str, told: str) -> None:
    """One rank: what it is told of four mistakes."""
    dist.init_process_group("gloo")
    log = Path(told, "log")
    said = []
    for options in (
        {"rank": 0},  # both
        {"rank": rank, "seed": rank},
        {"rank": rank, "encode": Words() if rank else OtherWords("other words")},
        {"rank": rank, "log": log, "seed": 5},  # which is of another stream: rank 0 alone reads it
    ):
        encode, kept = options.pop("encode", Words()), options.pop("log", None)
        stream = StreamingPackedDataset(
            source, encode, CAPACITY, lanes=4, world_size=2, **{"seed": 1, **options}
        )
        try:
            next(iter(StreamLoader(stream, collate_fn=list, log=kept)))
        except MismatchError as error:
            said.append(str(error))
    Path(told, f"{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_would_read_different_streams_all_stop(tmp_path: Path) -> None:
    write_records(tmp_path / "talk.jsonl", 200)
    source = str(tmp_path / "talk.jsonl")
    stream = StreamingPackedDataset(source, Words(), CAPACITY, lanes=4, seed=1)
    loader = StreamLoader(stream, collate_fn=list, log=tmp_path / "log")
    for _ in loader:
        break
    loader.state_dict()
    launch(refused, 2, source, str(tmp_path))
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert zero == one
    for said, words in zip(
        zero, ("rank 0 (2 processes)", "the stream", "fingerprint", "is the log of"), strict=True
    ):
        assert words in said


def test_two_ranks_end_together_however_slow_one_is(tmp_path: Path) -> None:
    for name, number in (("long", 300), ("short", 41)):
        write_records(tmp_path / f"{name}.jsonl", number)
    files = [str(tmp_path / "long.jsonl"), str(tmp_path / "short.jsonl")]
    launch(read, 2, *files, str(tmp_path))
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert len(zero) == len(one) > 10
    assert sorted(zero + one) == list(range(2 * len(zero)))


CAPACITY = 256


class Words:
    """A token for each word of a record's text, the first number being the record's own."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [int(word) for word in record["text"].split()]}

    def count(self, record: dict[str, Any]) -> int:
        return len(record["text"].split())

    def fingerprint(self) -> str:
        return "words"


class OtherWords(Words):
    """An encoder with another fingerprint, or with none."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def fingerprint(self) -> str | None:  # type: ignore[override]
        return self.name


def write_records(path: Path, number: int, seed: int = 0) -> None:
    draw = random.Random(seed)
    with path.open("w") as file:
        for row in range(number):
            length = min(CAPACITY + 20, max(1, int(draw.lognormvariate(3.2, 1.0))))
            text = " ".join(str(n) for n in [row, *range(length - 1)])
            file.write(json.dumps({"id": f"r{row}", "text": text}) + "\n")


def test_a_loader_says_how_long_it_was_waited_for(lengths: Path) -> None:
    loader = StreamLoader(stream_of(lengths, 0, 1), collate_fn=ids_of)
    assert loader.data_wait is None
    for number, _ in enumerate(loader):
        if number == 0:
            time.sleep(0.5)
    whole = loader.data_wait
    assert whole is not None and 0 < whole < 1
    for _ in loader:
        pass
    assert loader.data_wait is not None and loader.data_wait > whole
