"""Transforms that change lengths: the same in the plan, in the reader and in every worker."""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from msgspec.structs import replace
from packidx_cli.main import main
from PIL import Image
from record_files import tar_of, write

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError, OptionError
from packidx.export.energon import export_energon
from packidx.index import Index
from packidx.torch import PackedDataset
from packidx.user_code import Transform

COUNT = 40
CODE = '''
"""Transforms as a user writes them."""

from PIL import Image


def with_system(record, rng):
    """A random system prompt in front."""
    words = ["Be brief.", "Answer as a pirate would, at some length.", "Think first, then answer."]
    chosen = words[rng.integers(len(words))]
    turns = [{"role": "system", "content": chosen}, *record["messages"]]
    return {**record, "messages": turns}


def cropped(record, rng):
    """Every image cut to a random part of it."""
    images = []
    for path in record.get("images") or []:
        image = Image.open(path)
        width, height = (int(rng.integers(28, side + 1)) for side in image.size)
        images.append(image.crop((0, 0, width, height)))
    return {**record, "images": images}


def brief(record, rng):
    return {**record, "messages": [{"role": "system", "content": "Be brief."}, *record["messages"]]}


def both(record, rng):
    return cropped(with_system(record, rng), rng)


def failing(record, rng):
    if record["id"] == "r3":
        raise ValueError("no such day")
    return "text" if record["id"] == "r5" else record
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, importable here and in spawned workers."""
    (tmp_path / "own_transforms.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_transforms", raising=False)
    import own_transforms  # type: ignore[import-not-found]

    yield own_transforms
    sys.modules.pop("own_transforms", None)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    for number in range(4):
        Image.new("RGB", (120 + 31 * number, 90), (number, 0, 0)).save(tmp_path / f"{number}.png")
    with open(tmp_path / "data.jsonl", "w") as file:
        for number in range(COUNT):
            images = [str(tmp_path / f"{(number + k) % 4}.png") for k in range(number % 3)]
            messages = [
                {"role": "user", "content": "<image>" * len(images) + f"What, {number}?"},
                {"role": "assistant", "content": "It is so. " * (number % 5 + 1)},
            ]
            record = {"id": f"r{number}", "messages": messages, "images": images}
            file.write(json.dumps(record) + "\n")
    return tmp_path / "data.jsonl"


@pytest.fixture(scope="module")
def encoder(processors: Path) -> ProcessorEncoder:
    return ProcessorEncoder(str(processors / "qwen2.5-vl"))


def planned(shard: Path, folder: Path, name: str, **options: Any) -> Index:
    options.setdefault("workers", 1)
    estimate_lengths(str(shard), shard.parent / name / "lengths", processor=folder, **options)
    plan_packs(shard.parent / name / "lengths", shard.parent / name / "index", capacity=256)
    return open_index(shard.parent / name / "index")


def lengths(index: Index) -> dict[int, int]:
    rows = index.samples(["sample_id", "length"]).to_pylist()
    return {row["sample_id"]: row["length"] for row in rows}


@pytest.mark.parametrize("name", ["with_system", "cropped"])
def test_every_pack_is_as_long_as_planned(
    name: str, module: Any, shard: Path, processors: Path, encoder: ProcessorEncoder
) -> None:
    """The reader refuses a sample of another length, so that it reads them all is the proof."""
    folder = processors / "qwen2.5-vl"
    index = planned(shard, folder, "changed", transform=f"own_transforms:{name}", seed=5)
    assert index.manifest["lengths"]["transform"]["name"] == f"own_transforms:{name}"
    dataset = PackedDataset(index, encoder, transform=getattr(module, name))
    for number in range(len(dataset)):
        assert len(dataset[number].joined()["input_ids"]) == index.pack(number).stats["length"]
    found, plain = lengths(index), lengths(planned(shard, folder, "plain"))
    other = lengths(planned(shard, folder, "other", transform=f"own_transforms:{name}", seed=6))
    assert len(found) == COUNT
    assert sum(found[n] != plain[n] for n in found) > COUNT // 4
    assert sum(found[n] != other[n] for n in found) > COUNT // 4, "the seed must matter"


def test_another_transform_is_refused(
    module: Any, shard: Path, processors: Path, encoder: ProcessorEncoder
) -> None:
    folder = processors / "qwen2.5-vl"
    index = planned(shard, folder, "t", transform="own_transforms:both", seed=5)
    with pytest.raises(MismatchError, match=r"own_transforms:both \(seed 5\): give it"):
        PackedDataset(index, encoder)
    with pytest.raises(MismatchError, match="own_transforms:cropped has fingerprint"):
        PackedDataset(index, encoder, transform=module.cropped)
    plain = planned(shard, folder, "plain")
    with pytest.raises(MismatchError, match="counted without a transform: leave it out"):
        PackedDataset(plain, encoder, transform=module.both)
    # A plan of another seed is read with that seed, and told from this one by its id.
    other = planned(shard, folder, "other", transform="own_transforms:both", seed=6)
    assert other.id != index.id
    assert len(PackedDataset(other, encoder, transform=module.both)[0].joined()["input_ids"])
    counted = other.snapshot.lengths
    assert counted.transform is not None
    wrongly = replace(counted, transform=replace(counted.transform, seed=5))
    other.snapshot = replace(other.snapshot, lengths=wrongly)
    with pytest.raises(MismatchError, match="encoded to"):
        wrong = PackedDataset(other, encoder, transform=module.both)
        for number in range(len(wrong)):
            wrong[number]


def test_what_a_transform_gets_wrong_is_a_row(
    module: Any, shard: Path, processors: Path, encoder: ProcessorEncoder
) -> None:
    index = planned(shard, processors / "qwen2.5-vl", "t", transform="own_transforms:failing")
    dropped = {row["key"]: row["detail"] for row in index.dropped().to_pylist()}
    assert set(dropped) == {"r3", "r5"}
    assert dropped["r3"].startswith("transform_failed")
    assert "ValueError: no such day" in dropped["r3"]
    assert "own_transforms:failing returned str, not a record" in dropped["r5"]


def test_the_epoch_of_a_pack_and_the_copy_of_a_sample_count(
    module: Any, shard: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader asks for the numbers of (seed, epoch, sample, copy), not of what it reads when."""
    index = planned(shard, processors / "qwen2.5-vl", "t", transform="own_transforms:both")
    asked: list[tuple[int, int, int]] = []

    def apply(self: Any, record: Any, sample_id: int, *, epoch: int = 0, copy: int = 0) -> Any:
        asked.append((epoch, sample_id, copy))
        return record

    monkeypatch.setattr(Transform, "apply", apply)
    dataset = PackedDataset(index, lambda record: {"input_ids": [1]}, transform=module.both)
    sample = index.pack(0).samples[0]
    dataset._read_sample(sample._replace(length=1, padded_length=1, copy=2), 7, [])
    assert asked == [(7, sample.sample_id, 2)]


@pytest.mark.parametrize(("name", "is_random"), [("both", True), ("brief", False)])
def test_weights_above_1_are_refused_with_a_random_transform(
    name: str, is_random: bool, module: Any, shard: Path, processors: Path, tmp_path: Path
) -> None:
    lengths = tmp_path / "l"
    processor, transform = processors / "qwen2.5-vl", f"own_transforms:{name}"
    estimate_lengths(f"t={shard}", lengths, processor=processor, transform=transform)
    assert (
        json.loads((lengths / "manifest.json").read_bytes())["transform"].get("is_random", False)
        is is_random
    )
    plan_packs(lengths, tmp_path / "once", capacity=4096, mix={"t": 1})
    if not is_random:
        plan_packs(lengths, tmp_path / "twice", capacity=4096, mix={"t": 2})
        return
    with pytest.raises(OptionError, match="t has weight 2, .* weights of at most 1"):
        plan_packs(lengths, tmp_path / "twice", capacity=4096, mix={"t": 2})


# -- what it gets and what becomes of it -----------------------------------------------------------

FOREIGN = '''
def laid_out(record, rng):
    """Records of a shape that nobody knows, as they stand in the file."""
    assert set(record) - {"__key__"} == {"id", "frage", "bild", "antworten"}, sorted(record)
    answer = record["antworten"][rng.integers(len(record["antworten"]))]
    asked = {"who": "U", "text": "<image>" + record["frage"]}
    return {"id": "other", "chat": [asked, {"who": "A", "text": answer}], "pic": [record["bild"]]}
'''
OPTIONS: dict[str, Any] = {
    "columns": {"messages": "chat", "images": "pic"},
    "tags": {"role_tag": "who", "content_tag": "text", "user_tag": "U", "assistant_tag": "A"},
}


def foreign_data(folder: Path, kind: str) -> Path:
    """Twelve records with an image each."""
    images = []
    for number in range(4):
        images.append(folder / f"{number}.png")
        Image.new("RGB", (120 + 31 * number, 90)).save(images[-1])
    answers = ["Yes.", "It is so.", "Nobody knows, and nobody ever will."]
    records = [
        {"id": f"r{n}", "frage": f"What, {n}?", "bild": f"{n % 4}.png", "antworten": answers}
        for n in range(12)
    ]
    if kind != "tar":
        return Path(write(folder, kind, records))
    members = []
    for n, record in enumerate(records):
        members.append((f"r{n}.png", images[n % 4].read_bytes()))
        members.append((f"r{n}.json", json.dumps({**record, "bild": "png"}).encode()))
    (folder / "data.tar").write_bytes(tar_of(members))
    return folder / "data.tar"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar"])
def test_a_shape_that_nobody_knows(
    kind: str,
    processors: Path,
    encoder: ProcessorEncoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It gets the file's own record; what it returns has names of its own, and media to open."""
    (tmp_path / "foreign_shape.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_shape", raising=False)
    source, folder = foreign_data(tmp_path, kind), processors / "qwen2.5-vl"
    transform = "foreign_shape:laid_out"
    index = planned(source, folder, "t", transform=transform, seed=3, **OPTIONS)
    table = pq.read_table(next((tmp_path / "t" / "lengths").glob("part-00000*")))
    rows = table.select(["key", "method", "status", "num_images"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(f"r{n}", "exact", "ok", 1) for n in range(12)]
    dataset = PackedDataset(index, encoder, transform=transform)
    for number in range(len(dataset)):
        pack = dataset[number].joined()
        assert len(pack["input_ids"]) == index.pack(number).stats["length"]
        assert len(pack["image_grid_thw"]) == len(pack["sample_ids"])
    command = ["verify", str(index.path), "--processor", str(folder), "--sample", "99"]
    assert main([*command, "--transform", transform]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search("12 samples encoded, .* 0 different", said)
    with pytest.raises(OptionError, match="counted with the transform"):
        export_energon(index.path, tmp_path / "out", workers=1)
    options = {"encode": encoder, "transform": transform, "workers": 1, "seed": 3}
    estimate_lengths(str(source), tmp_path / "encoded", **OPTIONS, **options)
    encoded = pq.read_table(next((tmp_path / "encoded").glob("part-00000*")))
    assert encoded["length"].to_pylist() == table["length"].to_pylist()


# -- the function itself ---------------------------------------------------------------------------


def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"n": int(rng.bit_generator.random_raw())}


def test_numbers_depend_on_seed_epoch_sample_and_copy() -> None:
    def drawn(seed: int, epoch: int, sample: int, copy: int) -> int:
        value: int = Transform.load(draw, seed).apply({}, sample, epoch=epoch, copy=copy)["n"]
        return value

    keys = [(s, e, i, c) for s in (0, 1, -1) for e in (0, 1) for i in (0, 1, 2) for c in (0, 1)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert [drawn(*key) for key in keys] == [drawn(*key) for key in keys]
    # Written down, because a plan outlives the process, the machine and the release.
    assert drawn(0, 0, 0, 0) == GOLDEN[0]
    assert drawn(5, 1, 99, 2) == GOLDEN[1]


GOLDEN = (17558981826938840006, 3082796868518504552)


class Stateful:
    def __init__(self) -> None:
        self.top = 3

    def __call__(self, record: dict[str, Any], rng: Any) -> dict[str, Any]:
        return record


class Named(Stateful):
    fingerprint = "named-1"


def bounded(record: dict[str, Any], rng: Any, top: Any = 3) -> dict[str, Any]:
    return record


def test_fingerprints_tell_functions_apart(module: Any) -> None:
    functions = (draw, bounded, module.both, module.cropped, Named())
    prints = [Transform.load(one).fingerprint for one in functions]
    assert len(set(prints)) == len(prints)
    assert prints[-1] == "named-1"
    assert Transform.load(draw, 1).fingerprint == prints[0]
    with open(module.__file__, "a") as file:
        file.write("# another module\n")
    assert Transform.load(module.both).fingerprint != prints[2]


def test_functions_that_hide_what_they_do_are_refused() -> None:
    top = 3
    hidden: list[Any] = [lambda record, rng: {**record, "top": top}, Stateful()]
    hidden.append(functools.partial(bounded, top=4))
    for function in hidden:
        with pytest.raises(OptionError, match="give it an attribute `fingerprint`"):
            Transform.load(function)
    with pytest.raises(OptionError, match="must fit 64 bits"):
        Transform.load(draw, 1 << 63)
    with pytest.raises(OptionError, match="--transform nowhere:f cannot be loaded"):
        Transform.load("nowhere:f")
