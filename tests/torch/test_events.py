"""What a reader does about samples that are not what was planned, and says of bad use."""

from __future__ import annotations

import errno
import gc
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from manifests import file_of
from small_packs import length_of, make_index, record
from tiny_models import fresh
from torch.utils.data import DataLoader
from torch_packs import IMAGE, Failing, SyntheticEncode

from packidx.errors import (
    BadRecord,
    MismatchError,
    NotFoundInIndex,
    OptionError,
    PackidxError,
    SourceError,
)
from packidx.index import Index, open_index
from packidx.plan import plan_packs
from packidx.torch import (
    OrderedPacks,
    Pack,
    PackedDataset,
    PackSampler,
    StepLog,
    as_hf_dataset,
    collate,
    events,
    prepare_model,
)

TEXTS = [record(seed, [5 + seed]) for seed in range(5)]
IMAGES = [record(100 + n, [3, (4, 2 + 2 * n), 4, (2, 2), 2 + n]) for n in range(4)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"text": TEXTS, "image": IMAGES}, capacity=64)


BAD = BadRecord("broken_media", "an image cannot be decoded")


# -- input and output ------------------------------------------------------------------------------


FAILURES = [
    BAD,
    OSError(errno.ESTALE, "Stale file handle"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    OSError("image file is truncated"),  # as Pillow says it, without a number
    KeyError("tokens"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_sample_is_read_once(index: Index, error: Exception) -> None:
    key = str(index.pack(0).samples[0].key)
    encode = Failing({key}, error)
    with pytest.raises(type(error)):
        PackedDataset(index, encode)[0]
    assert encode.asked[key] == 1
    encode = Failing({key}, error)
    PackedDataset(index, encode, on_bad="skip")[0]
    assert encode.asked[key] == 1


def test_what_concerns_the_whole_plan_is_raised_whatever_the_policy(
    index: Index, tmp_path: Path
) -> None:
    options: Any = {"on_bad": "skip", "on_mismatch": "skip"}
    with pytest.raises(MismatchError, match="but not input_ids\nwhile reading"):
        PackedDataset(index, lambda record: {"labels": [1]}, **options)[0]
    for error in (MemoryError(), ModuleNotFoundError("no module named av")):
        encode = Failing({str(one["id"]) for one in TEXTS + IMAGES}, error)
        with pytest.raises(type(error)):
            PackedDataset(index, encode, **options)[0]
    for name in ("text", "image"):
        with open(tmp_path / f"{name}.jsonl", "ab") as file:
            file.write(b"{}\n")
    with pytest.raises(
        MismatchError, match=r"\): shard .*has \d+ bytes, \d+ when .*plan again\nwhile"
    ):
        PackedDataset(index, SyntheticEncode(), **options)[0]


# -- other than planned ----------------------------------------------------------------------------


class Resized(SyntheticEncode):
    """Encodes one record as if its parts were others."""

    def __init__(self, key: str, parts: Any) -> None:
        super().__init__()
        self.key, self.parts = key, parts

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        parts = self.parts if record["id"] == self.key else record["parts"]
        return super().__call__({**record, "parts": parts})


def at(index: Index, key: str) -> tuple[int, slice]:
    """The pack of a sample, and its tokens there."""
    for k in range(index.num_packs):
        for sample in index.pack(k).samples:
            if sample.key == key:
                return k, slice(sample.start, sample.start + sample.length)
    raise AssertionError(key)


def check_left_out(given: Pack, healthy: dict[str, Any], key: str) -> None:
    """All other samples stand as they do in a healthy read, and pad tokens fill the pack up."""
    pack = given.joined()
    ids, number = healthy["sample_ids"].tolist(), int(key[4:])
    sample = number if number < 100 else len(TEXTS) + number - 100
    assert pack["sample_ids"].tolist() == [each for each in ids if each != sample]
    assert len(pack["input_ids"]) == len(healthy["input_ids"])
    spans = pairwise(healthy["cu_seqlens"].tolist())
    kept = [slice(*span) for each, span in zip(ids, spans, strict=False) if each != sample]
    for name in ("input_ids", "labels"):
        left = torch.cat([healthy[name][span] for span in kept] or [healthy[name][:0]])
        assert torch.equal(pack[name][: len(left)], left)
        assert pack["labels"][len(left) :].eq(-100).all()
    rest = pack["cu_seqlens"][len(kept)]
    assert torch.equal(pack["position_ids"][0, rest:], torch.arange(len(pack["input_ids"]) - rest))
    tokens = sum(int(t * h * w) // 4 for t, h, w in pack.get("image_grid_thw", []))
    assert tokens == int((pack["input_ids"] == IMAGE).sum())


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("key-2", [9]),
        ("key-2", [4]),
        ("key-101", [3, (4, 4), 4, (2, 2), 6]),
        ("key-101", [3, (4, 8), 4, (2, 2), 3]),  # an image twice as large
        ("key-101", [3, (4, 4), 4]),  # an image less
        ("key-101", [3, (2, 8), 4, (2, 2), 3]),  # an image of as many tokens
    ],
)
def test_a_sample_of_another_length(index: Index, key: str, parts: Any) -> None:
    k, inside = at(index, key)
    healthy = PackedDataset(index, SyntheticEncode())[k].joined()
    encode = Resized(key, parts)
    with pytest.raises(
        MismatchError, match=rf"encoded to ({length_of(parts)} tokens|images of .*) but planned as"
    ):
        PackedDataset(index, encode)[k]
    dataset = PackedDataset(index, encode, on_mismatch="skip")
    read = dataset[k]
    check_left_out(read, healthy, key)
    (told,) = read.events
    found = (told["done"], told["planned"], told["found"], told["key"])
    assert found == ("left_out", inside.stop - inside.start, length_of(parts), key)
    assert dataset.events.counts == {"mismatch": 1}


# -- seen everywhere -------------------------------------------------------------------------------


def test_what_workers_meet_is_seen_in_the_process_that_trains(index: Index) -> None:
    keys = {"key-1", "key-3", "key-102"}
    dataset = PackedDataset(index, Failing(keys, BAD), on_bad="skip")
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    told = [one for pack in loader for one in pack.events]
    assert {one["key"] for one in told} == keys
    assert sorted(dataset.events, key=str) == sorted(told, key=str)
    assert dataset.events.counts == {"unreadable": 3}
    list(loader)
    assert len(dataset.events) == 6, "a second epoch's add to them"


def test_events_are_bounded_and_leave_nothing_behind(
    index: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(events, "LIMIT", 5)
    dataset = PackedDataset(index, Failing({"key-1"}, BAD), on_bad="skip")
    k, _ = at(index, "key-1")
    with caplog.at_level(logging.WARNING, "packidx.torch"):
        for _ in range(8):
            dataset[k]
    assert dataset.events.counts == {"unreadable": 8} and len(dataset.events) == 8
    assert len(dataset.events.records) == 5
    assert len(caplog.messages) == 5, "the log, too, ends somewhere"
    assert f"pack {k}, sample 1 (key 'key-1'), planned as 6 tokens: unreadable" in caplog.text
    assert "further ones are only counted" in caplog.messages[-1]
    assert len(list(folder.iterdir())) == 1
    del dataset
    gc.collect()
    assert not list(folder.iterdir())


RECORDS = [record(n, [3 + n % 5, (4, 4), 2]) for n in range(12)]


@pytest.fixture
def misused(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"all": RECORDS}, capacity=32, fingerprint="the-one")


def read(misused: Index, **policy: Any) -> Any:
    return PackedDataset(misused, SyntheticEncode(), **policy)[0]


def ordered(misused: Index, **options: Any) -> OrderedPacks:
    return OrderedPacks(misused, SyntheticEncode(), 1, **options)


def with_fewer_labels(misused: Index) -> Any:
    pack = read(misused)
    pack.samples[0]["labels"] = pack.samples[0]["labels"][:4]
    return pack


def flipped(misused: Index) -> Any:
    path = file_of(misused, "samples")
    data = bytearray(path.read_bytes())
    data[20] ^= 4
    path.write_bytes(bytes(data))
    return read(misused)


def swapped(misused: Index) -> Any:
    processor = Path(misused.path).with_name("processor")
    processor.mkdir()
    (processor / "tokenizer_config.json").write_text("{}")
    return PackedDataset(processor, misused.path)


def bare(misused: Index) -> Any:
    """A snapshot of a bare table has no shards: what a row calls one is nobody's."""
    place = Path(misused.path).with_name("bare")
    plan_packs(place.with_name("lengths") / "part-00000.parquet", place, capacity=64)
    assert open_index(place).manifest["shards"] == []
    return read(open_index(place))


def gone(misused: Index) -> Any:
    Path(misused.manifest["shards"][0]["uri"]).unlink()
    return read(misused)


def model_of(attention: str) -> Any:
    model = fresh("qwen3")
    model.config._attn_implementation = attention
    return model


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (gone, SourceError, r"all.jsonl"),
        (flipped, PackidxError, "samples-00000.parquet is damaged or missing"),
        (bare, PackidxError, "was planned from bare lengths, without places"),
        (lambda i: PackSampler(i, global_batch=1).state_at(-1), OptionError, "step -1 is outside"),
        (lambda i: PackSampler(f"{i.path}@zz"), NotFoundInIndex, "no snapshot 'zz'"),
        (lambda i: collate(read(i), attention="spda"), OptionError, "'spda' is not one of flash, "),
        (lambda i: collate([]), OptionError, "collate got no pack"),
        (lambda i: collate([read(i).joined()]), MismatchError, "collate got dict, not a pack"),
        (lambda i: collate(with_fewer_labels(i)), MismatchError, "4 labels and 13 tokens in a"),
        (lambda i: prepare_model(model_of("nobodys")), MismatchError, "'nobodys', which is not kn"),
        (lambda i: prepare_model(None), OptionError, "give prepare_model a transformers model"),
        (lambda i: read(i, on_mismatch="truncate"), OptionError, "on_mismatch .* is not one of"),
        (lambda i: read(i, on_bad="hole"), OptionError, "on_bad 'hole' is not one of"),
        (lambda i: PackedDataset(i, SyntheticEncode())[10**6], IndexError, "has packs 0 to 5"),
        (lambda i: PackedDataset(i, None), OptionError, "encode is None: give a processor's"),
        (swapped, NotFoundInIndex, "processor is not a pack index"),
        (lambda i: PackSampler(PackedDataset(i, print)), OptionError, "index is a Packed"),
        (
            lambda i: as_hf_dataset(PackedDataset(i, SyntheticEncode())),
            OptionError,
            "takes OrderedPacks",
        ),  # type: ignore[arg-type]
        (lambda i: ordered(i, seed=-1), OptionError, "seed is -1: it must be at least 0"),
        (lambda i: ordered(i, epochs=0), OptionError, "epochs is 0: it must be at least 1"),
        (
            lambda i: StepLog(__file__, PackSampler(i, global_batch=1)),
            OptionError,
            "folder .* cannot be made",
        ),
    ],
)
def test_one_sentence(
    misused: Index, use: Callable[[Index], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        use(misused)
    assert "\n" not in str(caught.value)
