"""Bad use of the reader gets one sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifests import file_of
from small_packs import make_index, record
from tiny_models import fresh
from torch_packs import SyntheticEncode

from packidx.errors import (
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
    PackedDataset,
    PackSampler,
    StepLog,
    as_hf_dataset,
    collate,
    prepare_model,
)

RECORDS = [record(n, [3 + n % 5, (4, 4), 2]) for n in range(12)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"all": RECORDS}, capacity=32, fingerprint="the-one")


def read(index: Index, **policy: Any) -> Any:
    return PackedDataset(index, SyntheticEncode(), **policy)[0]


def ordered(index: Index, **options: Any) -> OrderedPacks:
    return OrderedPacks(index, SyntheticEncode(), 1, **options)


def with_fewer_labels(index: Index) -> Any:
    pack = read(index)
    pack.samples[0]["labels"] = pack.samples[0]["labels"][:4]
    return pack


def flipped(index: Index) -> Any:
    path = file_of(index, "samples")
    data = bytearray(path.read_bytes())
    data[20] ^= 4
    path.write_bytes(bytes(data))
    return read(index)


def swapped(index: Index) -> Any:
    processor = Path(index.path).with_name("processor")
    processor.mkdir()
    (processor / "tokenizer_config.json").write_text("{}")
    return PackedDataset(processor, index.path)


def bare(index: Index) -> Any:
    """A snapshot of a bare table has no shards: what a row calls one is nobody's."""
    place = Path(index.path).with_name("bare")
    plan_packs(place.with_name("lengths") / "part-00000.parquet", place, capacity=64)
    assert open_index(place).manifest["shards"] == []
    return read(open_index(place))


def gone(index: Index) -> Any:
    Path(index.manifest["shards"][0]["uri"]).unlink()
    return read(index)


def model_of(attention: str) -> Any:
    model = fresh("qwen3")
    model.config._attn_implementation = attention
    return model


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (gone, SourceError, r"all.jsonl"),
        (flipped, PackidxError, "samples-00000.parquet is damaged or missing"),
        (bare, PackidxError, "was planned from bare lengths and does not say where"),
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
        (swapped, NotFoundInIndex, "the index comes before the processor"),
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
    index: Index, use: Callable[[Index], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        use(index)
    assert "\n" not in str(caught.value)
