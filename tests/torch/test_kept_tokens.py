"""Kept tokens: readers take what `estimate` tokenized, and it is what they would have made."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from export_files import contents
from packidx_cli.main import main
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import ChangedSource, MismatchError, OptionError
from packidx.estimate import tasks
from packidx.records import shards
from packidx.records.fetch import Fetcher
from packidx.torch import PackedDataset

LOG = "packidx.torch"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CAPACITY = 96


def said(question: Any, answer: str = "Two of them, I think.", **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def image(name: str, text: str = "What is it?") -> dict[str, Any]:
    return said([{"type": "image", "image": name}, {"type": "text", "text": text}])


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, tools, documents, own ids, images, a video, long samples and bad ones."""
    home = tmp_path_factory.mktemp("kept")
    for name, size in (("a.png", (90, 60)), ("b.png", (64, 128))):
        Image.new("RGB", size, (200, 90, 30)).save(home / name)
    write_clip(home / "c.mp4", frames=8)
    two = said([{"type": "image", "image": n} for n in ("a.png", "b.png")] + ["Both?"])
    two["messages"][0]["content"][-1] = {"type": "text", "text": "Both?"}
    chats = [said("How many words are there? " * n, f"{n} é漢\n") for n in range(12)]
    chats += [said("Rain?", tools=[TOOL]), {"messages": "none"}, image("absent.png")]
    chats += [image("a.png"), two, image("b.png", "Describe it at length. " * 30)]
    chats += [said([{"type": "video", "video": "c.mp4"}, {"type": "text", "text": "What?"}])]
    chats += [said("A long one. " * 100, "A long answer. " * 60)]
    ids = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 9, 7, 8]}]
    documents = [{"text": "A document of some words. " * n} for n in (1, 40)]
    for name, records in (("chats", chats), ("ids", ids), ("documents", documents)):
        write(home / f"{name}.jsonl", records)
    return home


def made(home: Path, out: Path, processor: Path, **options: Any) -> Path:
    sources = [str(home / f"{name}.jsonl") for name in ("chats", "ids", "documents")]
    given: dict[str, Any] = {"keep_tokens": True, "workers": 1, **options}
    with pytest.MonkeyPatch.context() as patch:  # several parts
        for module in (shards, tasks):
            patch.setattr(module, "TASK_BYTES", 4000)
        summary = estimate_lengths(sources, out / "lengths", processor=processor, **given)
    assert summary.num_parts > 1
    plan_packs(out / "lengths", out / "index", capacity=CAPACITY, on_long="split")
    return out / "index"


@pytest.fixture(scope="module")
def index(data: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(data, tmp_path_factory.mktemp("out"), folders["qwen2.5-vl"])


def packs(
    index: Path, folder: Path, tokens: bool | None, roots: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    dataset = PackedDataset(index, ProcessorEncoder(folder), roots, tokens=tokens)
    return [dataset[k].joined() for k in range(len(dataset))]


def same(ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert len(ones) == len(others) > 0
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(value, other[key]) if torch.is_tensor(value) else True
            assert not torch.is_tensor(value) or value.dtype == other[key].dtype


def test_kept_tokens_are_those_that_are_made(
    index: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = packs(index, folders["qwen2.5-vl"], tokens=False)
    held = {key for pack in expected for key in pack}
    assert {"pixel_values", "pixel_values_videos"} <= held
    read: list[Any] = []
    plain = Fetcher.read
    monkeypatch.setattr(Fetcher, "read", lambda self, s, e: read.append(s) or plain(self, s, e))
    same(packs(index, folders["qwen2.5-vl"], tokens=None), expected)
    # Pieces of texts among them: a record is read for its media alone, or for its own ids.
    assert {sample.source for sample in read} == {"chats", "ids"}
    pieces = PackedDataset(index, lambda record: record).index.duckdb()
    asked = "SELECT count(*) FROM samples WHERE sample_id NOT IN (SELECT unnest(?::BIGINT[]))"
    texts = pieces.execute(asked, [[sample.sample_id for sample in read]]).fetchone()
    assert texts is not None and texts[0] > 20


def test_sides_of_pairs(folders: dict[str, Path], tmp_path: Path) -> None:
    sides = [{"prompt": f"Which of {n}?", "chosen": "One.", "rejected": "None."} for n in range(9)]
    source = write(tmp_path / "pairs.jsonl", sides)
    processor = folders["qwen2.5-vl"]
    estimate_lengths(
        source, tmp_path / "lengths", processor=processor, pair="both", keep_tokens=True
    )
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=CAPACITY)
    same(packs(tmp_path / "index", processor, True), packs(tmp_path / "index", processor, False))


def test_the_lengths_are_as_without(index: Path, data: Path, folders: dict[str, Path]) -> None:
    kept = index.parent / "lengths"
    other = made(data, index.parent / "plain", folders["qwen2.5-vl"], keep_tokens=False)
    plain = other.parent / "lengths"
    assert (index / "HEAD").read_text() == (other / "HEAD").read_text()
    stated = [json.loads((folder / "manifest.json").read_text()) for folder in (plain, kept)]
    assert [each["fingerprint"] for each in stated] == [stated[0]["fingerprint"]] * 2
    assert stated[0]["files"] == stated[1]["files"]
    assert "tokens" not in stated[0] and "keep_tokens" not in stated[0]["options"]
    assert not list(plain.glob("tokens-*")) and list(kept.glob("tokens-*"))


def test_another_tokenizer_is_refused(index: Path, folders: dict[str, Path]) -> None:
    with pytest.raises(MismatchError, match="use the same processor"):
        PackedDataset(index, ProcessorEncoder(folders["qwen3-vl"]), tokens=True)
    with pytest.raises(MismatchError, match="label policy"):
        PackedDataset(index, ProcessorEncoder(folders["qwen2.5-vl"], "last"), tokens=True)


def test_without_the_tokens_text_is_tokenized(
    index: Path, data: Path, folders: dict[str, Path], tmp_path: Path, caplog: Any
) -> None:
    folder, expected = folders["qwen2.5-vl"], packs(index, folders["qwen2.5-vl"], False)
    own = tmp_path / "own"
    shutil.copytree(index.parent, own)
    lengths, moved = own / "lengths", {str(index.parent / "lengths"): str(own / "lengths")}
    caplog.set_level(logging.WARNING, LOG)
    same(packs(own / "index", folder, True, moved), expected)
    assert not caplog.records
    tokens = next(lengths.glob("tokens-*"))
    damaged = bytearray(tokens.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    tokens.write_bytes(damaged)
    same(packs(own / "index", folder, True, moved), expected)
    assert [str(tokens) in each.message for each in caplog.records] == [True]
    shutil.rmtree(lengths)
    caplog.clear()
    same(packs(own / "index", folder, True, moved), expected)
    assert [str(lengths) in each.message for each in caplog.records] == [True]
    caplog.clear()
    same(packs(own / "index", folder, None, moved), expected)
    assert not caplog.records


def test_other_media_and_other_shards_are_noticed(
    data: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    home, folder = tmp_path / "data", folders["qwen2.5-vl"]
    shutil.copytree(data, home)
    index = made(home, tmp_path, folder)
    Image.new("RGB", (300, 90)).save(home / "a.png")
    for tokens in (True, False):
        with pytest.raises(MismatchError, match="planned as|a grid|grids"):
            packs(index, folder, tokens)
    shutil.copy(data / "a.png", home / "a.png")
    chats = (home / "chats.jsonl").read_text()
    (home / "chats.jsonl").write_text(
        chats.replace("Describe it at length", "Describe at length it")
    )
    with pytest.warns(UserWarning, match="has changed|shard"):
        read, expected = packs(index, folder, True), packs(index, folder, False)
    same(read, expected)
    (home / "chats.jsonl").write_text(chats)
    with open(home / "documents.jsonl", "a") as file:
        file.write("\n")
    with pytest.raises(ChangedSource, match=r"documents\.jsonl has"):
        packs(index, folder, True)


def test_an_encoder_that_does_more_is_given_records(index: Path, folders: dict[str, Path]) -> None:
    class More(ProcessorEncoder):
        def __call__(self, record: Any, allocate: Any = None, kept: Any = None) -> Any:
            assert kept is None
            return {**super().__call__(record, allocate), "more": torch.ones(1)}

    dataset = PackedDataset(index, More(folders["qwen2.5-vl"]))
    assert "more" in dataset[0].samples[0]


def test_it_goes_to_workers(index: Path, folders: dict[str, Path]) -> None:
    dataset = PackedDataset(index, ProcessorEncoder(folders["qwen2.5-vl"]), tokens=True)
    expected = dataset[0].joined()
    other = pickle.loads(pickle.dumps(dataset))
    same([other[0].joined()], [expected])
    assert len(pickle.dumps(dataset._reader._tokens)) < 2000


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_died_goes_on(
    workers: int, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (shards, tasks):
        monkeypatch.setattr(module, "TASK_BYTES", 4000)
    texts = [said(f"Word {n}. " * 40) for n in range(60)]
    write(tmp_path / "a.jsonl", texts[:30])
    write(tmp_path / "b.jsonl", texts[30:])
    given: dict[str, Any] = {"processor": folders["qwen2.5-vl"], "keep_tokens": True}
    sources = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    whole = estimate_lengths(sources, tmp_path / "whole", workers=workers, **given)
    assert whole.num_parts > 4
    written = tasks.write_part

    def dies(folder: str, number: int, *rest: Any) -> Any:
        if number == 3:
            raise OSError("no more")
        return written(folder, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_part", dies)
        with pytest.raises(OptionError):
            estimate_lengths(sources, tmp_path / "out", workers=1, **given)
    summary = estimate_lengths(sources, tmp_path / "out", workers=workers, **given)
    assert summary.resumed_parts == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    again = estimate_lengths(sources, tmp_path / "out", workers=1, **given)
    assert again.existed
    # Shards in another order, and more of them: their rows, and tokens, are taken over.
    write(tmp_path / "c.jsonl", texts[:5])
    other = [sources[1], str(tmp_path / "c.jsonl"), sources[0]]
    taken = estimate_lengths(other, tmp_path / "out", workers=1, **given).taken_over
    assert taken is not None and (taken.num_samples, taken.num_counted) == (60, 5)
    estimate_lengths(other, tmp_path / "fresh", workers=1, **given)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    # A table that has none says so, and is counted anew.
    estimate_lengths(other, tmp_path / "none", workers=1, **{**given, "keep_tokens": False})
    taken = estimate_lengths(other, tmp_path / "none", workers=1, **given).taken_over
    assert taken is not None and "keep tokens has changed" in (taken.reason or "")
    assert contents(tmp_path / "none") == contents(tmp_path / "fresh")


def test_damaged_tokens_are_counted_again(folders: dict[str, Path], tmp_path: Path) -> None:
    source, out = write(tmp_path / "a.jsonl", [said("Who?")] * 5), tmp_path / "out"
    given: dict[str, Any] = {"processor": folders["qwen2.5-vl"], "keep_tokens": True}
    estimate_lengths(source, out, **given)
    before = contents(out)
    (out / "tokens-00000.arrow").unlink()
    taken = estimate_lengths(source, out, **given).taken_over
    assert taken is not None and "tokens-00000.arrow is missing" in taken.damaged[0]
    assert contents(out) == before


def test_what_cannot_be_kept(folders: dict[str, Path], tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [said("Who?")])
    given: dict[str, Any] = {"keep_tokens": True}
    with pytest.raises(OptionError, match="give one"):
        estimate_lengths(source, tmp_path / "out", **given)
    with pytest.raises(OptionError, match="give one"):
        estimate_lengths(
            source, tmp_path / "out", **given, processor=folders["qwen2.5-vl"], method="heuristic"
        )
    with pytest.raises(OptionError, match="each epoch"):
        estimate_lengths(
            source,
            tmp_path / "out",
            **given,
            processor=folders["qwen2.5-vl"],
            transform=lambda record, rng: record,
        )


def test_of_a_recipe_and_on_the_command_line(folders: dict[str, Path], tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [said("Who?")] * 5)
    command = ["pack", source, "--processor", str(folders["qwen2.5-vl"]), "--capacity", "64"]
    assert main([*command, "--keep-tokens", "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert "keep_tokens: true" in (tmp_path / "out" / "recipe.yaml").read_text()
    assert (tmp_path / "out" / "lengths" / "tokens-00000.arrow").is_file()
