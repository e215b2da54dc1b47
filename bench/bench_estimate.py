"""`packidx estimate` against the way trainers count, in one run on the same machine.

The peers' way is NeMo's precompute script: a pool of processes, each of which renders a record with
the tokenizer's chat template and calls `tokenizer.encode` on it; images are resized in Python, one
by one. Both sides read the same JSONL and start from nothing.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

WORKERS = 2
NUM_LONG = 400_000
NUM_MEMORY = 60_000
NUM_SIZES = 200_000
MODEL = "qwen2.5-vl"


# -- the peers' way --------------------------------------------------------------------------------


def smart_resize(height: int, width: int, factor: int, low: int, high: int) -> tuple[int, int]:
    """As Qwen's image processor has it, one image at a time."""
    h_bar, w_bar = round(height / factor) * factor, round(width / factor) * factor
    if h_bar * w_bar > high:
        beta = math.sqrt((height * width) / high)
        h_bar = max(factor, math.floor(height / beta / factor) * factor)
        w_bar = max(factor, math.floor(width / beta / factor) * factor)
    elif h_bar * w_bar < low:
        beta = math.sqrt(low / (height * width))
        h_bar = math.ceil(height * beta / factor) * factor
        w_bar = math.ceil(width * beta / factor) * factor
    return h_bar, w_bar


_peer: dict[str, Any] = {}


def start_peer(folder: str, root: str) -> None:
    from transformers import AutoTokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _peer["tokenizer"] = AutoTokenizer.from_pretrained(folder)
    _peer["template"] = (Path(folder) / "chat_template.jinja").read_text()
    settings = json.loads((Path(folder) / "preprocessor_config.json").read_text())
    _peer["limits"] = settings["min_pixels"], settings["max_pixels"]
    _peer["root"] = root


def messages_of(record: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages with one part per text and image, and the images' paths, of the bench's dialects."""
    roles = {"human": "user", "gpt": "assistant"}
    turns = record.get("messages") or record.get("conversations") or record["conversation"]
    listed = record.get("images") or ([record["image"]] if "image" in record else [])
    messages, images = [], []
    for turn in turns:
        role = turn.get("role") or roles[turn["from"]]
        content = turn["content"] if "content" in turn else turn["value"]
        parts: list[dict[str, str]] = []
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "image":
                parts.append({"type": "image"})
                images.append(part["image"])
                continue
            for number, text in enumerate(part["text"].split("<image>")):
                if number:
                    parts.append({"type": "image"})
                if text:
                    parts.append({"type": "text", "text": text})
        messages.append({"role": role, "content": parts})
    return messages, images or listed


def count_peer(line: bytes) -> int:
    from PIL import Image, ImageOps

    record = json.loads(line)
    messages, images = messages_of(record)
    text = _peer["tokenizer"].apply_chat_template(
        messages, chat_template=_peer["template"], tokenize=False
    )
    length = len(_peer["tokenizer"].encode(text))
    meta = record.get("mm_inputs_meta")
    for number, name in enumerate(images):
        if meta is None:
            with Image.open(os.path.join(_peer["root"], name)) as image:
                width, height = ImageOps.exif_transpose(image).size
        else:
            height, width = meta["images_meta"][number]
        height, width = smart_resize(height, width, 28, *_peer["limits"])
        length += height // 28 * (width // 28) - 1
    return length


def lines_of(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            yield from file


def run_peer(paths: list[Path], processor: Path, root: Path) -> tuple[float, list[int]]:
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, start_peer, (str(processor), str(root))) as pool:
        lengths = list(pool.imap(count_peer, lines_of(paths), chunksize=64))
    return time.perf_counter() - begin, lengths


# -- ours ------------------------------------------------------------------------------------------


def run_estimate(
    paths: list[Path], processor: Path, root: Path, output: Path
) -> tuple[float, list[int], float]:
    """(seconds, lengths, peak memory of the largest process in MB)."""
    shutil.rmtree(output, ignore_errors=True)
    script = (
        "import resource, sys; from packidx_cli.main import main\n"
        "try: status = main(sys.argv[1:])\n"
        "finally: print(max(resource.getrusage(who).ru_maxrss for who in"
        " (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)), file=sys.stderr)\n"
        "sys.exit(status)"
    )
    args = ["estimate", *map(str, paths), "-o", str(output), "--processor", str(processor)]
    args += ["--media-root", str(root), "--workers", str(WORKERS)]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *args], check=True, capture_output=True, text=True
    )
    taken = time.perf_counter() - begin
    table = pq.read_table(sorted(output.glob("part-*.parquet")), columns=["length"])
    return taken, table["length"].to_pylist(), int(done.stderr.split()[-1]) / 1024


def write_long(corpus: Path, path: Path, count: int) -> None:
    """Records of 1,000 characters and more, made of the corpus's dialogues, sizes in metadata."""
    rng = random.Random(0)
    image = next(path for path in sorted(corpus.rglob("*.*")) if path.suffix in (".jpg", ".png"))
    texts = []
    for line in lines_of([corpus / "dialogues.jsonl"]):
        record = json.loads(line)
        for turn in record.get("messages") or record["conversations"]:
            texts.append(turn.get("content") or turn.get("value"))
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            turns = []
            for role in ("user", "assistant") * rng.choice((1, 1, 2)):
                words: list[str] = []
                while sum(map(len, words)) < rng.choice((250, 500, 900)):
                    words.append(rng.choice(texts))
                turns.append({"role": role, "content": " ".join(words)})
            turns[0]["content"] = "<image>\n" + turns[0]["content"]
            size = [rng.randint(100, 1500), rng.randint(100, 1500)]
            record = {
                "id": str(number),
                "messages": turns,
                "images": [str(image.relative_to(corpus))],
            }
            record["mm_inputs_meta"] = {"images_meta": [size]}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def bench_records(data: Path, folder: Path) -> None:
    """Records per second, end to end; promised: 8 times where records are long, 2 times else."""
    processor, corpus = data / "processors" / MODEL, data / "corpus"
    long = folder / "long.jsonl"
    write_long(corpus, long, NUM_LONG)
    for name, paths in (("long", [long]), ("short", sorted(corpus.glob("*.jsonl")))):
        ours, lengths, _ = run_estimate(paths, processor, corpus, folder / "lengths")
        theirs, expected = run_peer(paths, processor, corpus)
        again, _, _ = run_estimate(paths, processor, corpus, folder / "lengths")
        ours = min(ours, again)
        differences = sum(a != b for a, b in zip(lengths, expected, strict=True))
        rate, peer = len(lengths) / ours, len(expected) / theirs
        chars = sum(path.stat().st_size for path in paths) / len(lengths)
        print(
            f"estimate / Pool({WORKERS}) of encode, {name:<5} "
            f"{rate:8.0f} / {peer:.0f} records/s = {rate / peer:5.2f}   "
            f"({len(lengths):,} records of {chars:.0f} bytes, {differences} differences)"
        )


def bench_media() -> None:
    """Columns of counts against one call of smart_resize per image; promised: 10 times."""
    from packidx.processor.families.qwen import QWEN2_5_VL

    vision = QWEN2_5_VL.read({}, None, {})[0]
    sizes = np.random.default_rng(0).integers(28, 4000, (NUM_SIZES, 2))
    pairs = sizes.tolist()
    ours, theirs = [], []
    for _ in range(3):
        begin = time.perf_counter()
        counts = vision.count_images(sizes)
        columns = counts.tokens, counts.patches, counts.cost
        ours.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        listed = []
        for height, width in pairs:
            height, width = smart_resize(height, width, 28, 3136, 1_003_520)
            patches = height // 14 * (width // 14)
            listed.append((patches // 4, patches, patches * patches))
        theirs.append(time.perf_counter() - begin)
    differences = int((np.stack(columns, axis=1) != np.array(listed)).any(axis=1).sum())
    ratio = min(theirs) / min(ours)
    print(
        f"one by one / media columns ({NUM_SIZES // 1000}k)    {min(theirs):6.3f} s / "
        f"{min(ours):.3f} s = {ratio:5.2f}   ({differences} differences)"
    )


def bench_memory(data: Path, folder: Path) -> None:
    """Peak memory of the largest process, 0.2 GB of input and ten times as much; promised: flat."""
    processor, corpus = data / "processors" / MODEL, data / "corpus"
    small, large = folder / "small.jsonl", folder / "large.jsonl"
    write_long(corpus, small, NUM_MEMORY)
    block = small.read_bytes()
    for path, size in ((small, 200 << 20), (large, 2000 << 20)):
        with open(path, "wb") as file:
            while file.tell() < size:
                file.write(block)
    peaks = [
        run_estimate([path], processor, corpus, folder / "lengths")[2] for path in (small, large)
    ]
    print(
        f"peak memory, 2 GB of input / 0.2 GB  {peaks[1]:6.0f} MB / {peaks[0]:.0f} MB = "
        f"{peaks[1] / peaks[0]:5.2f}"
    )


def main() -> None:
    import tempfile

    data = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    with tempfile.TemporaryDirectory() as folder:
        bench_media()
        bench_records(data, Path(folder))
        bench_memory(data, Path(folder))


if __name__ == "__main__":
    main()
