"""The promise itself: lengths are what real processors build, and docs/data.md is what is read."""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex
import subprocess
import sys
import tarfile
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from data_layouts import LAYOUTS, DataLayout, lines
from packidx_cli.main import main
from PIL import Image, ImageOps

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset
from packidx.torch.joining import IGNORE

NUM_COMPARED = 300
PER_SHARD = 600
FAMILIES = ("qwen2.5-vl", "qwen3-vl")


@pytest.fixture(scope="module")
def shards(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first records of each shard of the corpus; `make plan` counts all of it."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in corpus.glob("*.jsonl"):
        with shard.open() as lines:
            (folder / shard.name).write_text("".join(islice(lines, PER_SHARD)))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def counted(
    request: pytest.FixtureRequest,
    shards: Path,
    corpus: Path,
    whole_processors: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """(lengths table, the processor folder it was counted with)."""
    folder = whole_processors / request.param
    lengths = tmp_path_factory.mktemp(request.param) / "lengths"
    summary = estimate_lengths(shards.as_posix(), lengths, processor=folder, media_root=corpus)
    assert summary.num_samples == 5 * PER_SHARD
    assert summary.num_rejected == 0
    assert summary.methods == {"exact": summary.num_samples}
    return lengths, folder


def opened(path: Path) -> Image.Image:
    """As transformers' `load_image` opens a path; torchvision's own decoder may be missing."""
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def hugging_face_messages(record: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    """The corpus's records as a trainer would write them for transformers; none of our code."""
    if "conversations" in record:
        names = {"human": "user", "gpt": "assistant"}
        images = (
            record.get("images") or [record["image"]]
            if "image" in record or "images" in record
            else []
        )
        left = [opened(root / image) for image in images]
        messages = []
        for turn in record["conversations"]:
            content: list[dict[str, Any]] = []
            for number, text in enumerate(turn["value"].split("<image>")):
                if number:
                    content.append({"type": "image", "image": left.pop(0)})
                if text:
                    content.append({"type": "text", "text": text})
            messages.append({"role": names[turn["from"]], "content": content})
        assert not left
        return messages
    messages = []
    for turn in record.get("messages") or record["conversation"]:
        content = turn["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parts = [
            p if p["type"] == "text" else {"type": "image", "image": opened(root / p["image"])}
            for p in content
        ]
        messages.append({"role": turn["role"], "content": parts})
    return messages


def test_lengths_equal_the_real_processor(counted: tuple[Path, Path], corpus: Path) -> None:
    from transformers import AutoProcessor

    lengths, folder = counted
    processor = AutoProcessor.from_pretrained(folder)
    shards = json.loads((lengths / "manifest.json").read_text())["shards"]
    files = sorted(lengths.glob("part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    chosen = random.Random(0).sample(rows, NUM_COMPARED)
    assert {row["source"] for row in chosen} == {shard["source"] for shard in shards}
    for row in chosen:
        with open(shards[row["shard"]]["uri"], "rb") as file:
            file.seek(row["offset"])
            record = json.loads(file.read(row["nbytes"]))
        assert record["id"] == row["key"]
        built = processor.apply_chat_template(
            hugging_face_messages(record, corpus),
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        assert row["length"] == built["input_ids"].shape[1], row["key"]
        pixels = built["pixel_values"].shape[0] if "pixel_values" in built else 0
        assert row["vision_patches"] == pixels, row["key"]
        grids = built["image_grid_thw"].tolist() if pixels else []
        assert [[m["t"], m["h"], m["w"]] for m in row["media"]] == grids, row["key"]
        ids = built["input_ids"][0].tolist()
        for medium in row["media"]:
            span = ids[medium["at"] : medium["at"] + medium["tokens"]]
            assert set(span) == {processor.image_token_id}, row["key"]
        num_images = sum(token == processor.image_token_id for token in ids)
        assert row["image_tokens"] == num_images, row["key"]


DOCS = Path(__file__).parents[2] / "docs" / "data.md"
MEDIUM = re.compile(r"<\|vision_start\|>(?:<\|(image|video)_pad\|>)+<\|vision_end\|>")


def documented() -> dict[str, str]:
    """The command of each layout in docs/data.md."""
    rows: dict[str, str] = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 5 and cells[1] not in ("layout", "---"):
            assert cells[1] not in rows, f"{cells[1]} is in docs/data.md twice"
            rows[cells[1]] = cells[3].strip("`").replace("\\|", "|")
    return rows


def test_every_layout_is_documented_and_every_row_is_run() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert sorted(names) == sorted(documented())


encoder_of = cache(ProcessorEncoder)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name.replace(" ", "-"))
def test_what_docs_say_is_what_is_read(
    layout: DataLayout,
    processors: Path,
    whole_processors: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    layout.write(tmp_path)
    prompts, join = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.M | re.S)
    if layout.name == "COCO":
        subprocess.run([sys.executable, "-c", join], check=True)
    (tmp_path / "prompts.py").write_text(prompts)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "prompts", raising=False)
    program, *command = shlex.split(documented()[layout.name])
    assert program == "packidx"
    # The first token of a document is not trained, and Qwen's own vocabulary says how long it is.
    own = whole_processors if "documents" in layout.name else processors
    encoder = encoder_of(folder := str(own / "qwen2.5-vl"))
    options = ["--processor", folder, "-o", "lengths", "--workers", "1", "--quiet"]
    assert main([*command, *options, "--show", "99", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["shown"]
    shown.sort(key=lambda sample: sample["sample_id"])  # which came by turns of the sources
    assert [as_shown(sample["runs"]) for sample in shown] == list(layout.samples)
    rows = pq.read_table(sorted(Path("lengths").glob("part-*.parquet"))).to_pylist()
    assert [(row["status"], row["reason"]) for row in rows] == [("ok", None)] * len(layout.samples)
    assert {row["method"] for row in rows} == {"exact"}
    assert main(["plan", "lengths", "-o", "index", "--capacity", "4096", "--quiet"]) == 0
    transform = dict(itertools.pairwise(command)).get("--transform")
    dataset = PackedDataset("index", encoder, transform=transform)
    assert len(dataset) == 1
    read = said(dataset[0].joined(), encoder)
    assert [read[number] for number in sorted(read)] == list(layout.samples)
    sizes = dataset[0].joined()["cu_seqlens"].diff().tolist()
    lengths = dict(zip(dataset[0].joined()["sample_ids"].tolist(), sizes, strict=True))
    assert {row["sample_id"]: row["length"] for row in rows} == lengths


def as_shown(runs: list[dict[str, Any]]) -> str:
    """What `--show` says, in the words of `said`."""
    text = "".join(f"[[{run['text']}]]" if run["trained"] else run["text"] for run in runs)
    return re.sub(r"<\|vision_start\|><\|(image|video)_pad\|>×\d+<\|vision_end\|>", r"<\1>", text)


def said(pack: dict[str, Any], encoder: ProcessorEncoder) -> dict[int, str]:
    """What each sample of a pack says, by its id: ``[[`` and ``]]`` around what is trained on,
    media with the words around them as ``<image>``."""
    tokenizer = encoder.files.tokenizer
    assert tokenizer is not None
    borders = pack["cu_seqlens"].tolist()
    samples = {}
    for number, sample_id in enumerate(pack["sample_ids"]):
        span = slice(borders[number], borders[number + 1])
        ids, labels = pack["input_ids"][span].tolist(), pack["labels"][span].tolist()
        assert all(label in (IGNORE, ident) for ident, label in zip(ids, labels, strict=True))
        text, begin = "", 0
        for at in range(1, len(ids) + 1):
            if at == len(ids) or (labels[at] == IGNORE) != (labels[begin] == IGNORE):
                part = tokenizer.decode(ids[begin:at], skip_special_tokens=False)
                text += part if labels[begin] == IGNORE else f"[[{part}]]"
                begin = at
        samples[int(sample_id)] = MEDIUM.sub(r"<\1>", text)
    return samples


def test_long_documents_are_split_and_exported(
    processors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces hold all tokens once; a document that was exported is a document."""
    monkeypatch.chdir(tmp_path)
    text = "It was a dark and stormy night, 漢字.\n" * 40
    lines(tmp_path, "docs.jsonl", {"text": text}, {"text": "Short."})
    encoder = encoder_of(folder := str(processors / "qwen2.5-vl"))
    options = ["--processor", folder, "--workers", "1", "--quiet"]
    assert main(["estimate", "docs.jsonl", "-o", "lengths", *options]) == 0
    plan = ["plan", "lengths", "-o", "index", "--on-long", "split", "--capacity", "64", "--quiet"]
    assert main(plan) == 0
    dataset = PackedDataset("index", encoder)
    pieces = sorted(
        (sample.sample_id, sample.piece, number, at)
        for number in range(len(dataset))
        for at, sample in enumerate(dataset.index.pack(number).samples)
    )
    ids: dict[int, list[int]] = {0: [], 1: []}
    for sample_id, _, number, at in pieces:
        pack = dataset[number].joined()
        borders = pack["cu_seqlens"].tolist()
        ids[sample_id] += pack["input_ids"][borders[at] : borders[at + 1]].tolist()
    assert ids[0] == encoder({"text": text})["input_ids"].tolist()
    assert ids[1] == encoder({"text": "Short."})["input_ids"].tolist()
    assert main(["plan", "lengths", "-o", "whole", "--capacity", "4096", "--quiet"]) == 0
    assert main(["export", "wds", "whole", "-o", "packs", "--quiet"]) == 0
    (tar,) = Path("packs").glob("*.tar")
    with tarfile.open(tar) as archive:
        names = [name for name in archive.getnames() if name.endswith("json")]
        records = [json.loads(archive.extractfile(name).read()) for name in names]  # type: ignore[union-attr]
    assert '"role": "document"' in json.dumps(records)
