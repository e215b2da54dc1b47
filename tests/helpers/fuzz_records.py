"""Random damage to good records of every dialect: each line is a row, and no row harms another.

    python tests/helpers/fuzz_records.py [RECORDS] [SEED]

counts a million records by default, in two processes. `test_fuzz.py` runs some thousands.
"""

from __future__ import annotations

import base64
import collections
import copy
import functools
import io
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from packidx.estimate import estimate_lengths

BLOCK = 50_000
"""Records of one shard."""
GOOD_SHARE = 0.2
"""Of the records stay as they are."""

_PLACE = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def good_records() -> list[dict[str, Any]]:
    """One of every dialect and form that is counted without a file but ``good.png``."""
    uri = "data:image/png;base64," + base64.b64encode(_png()).decode()
    user, said = (
        {"role": "user", "content": "What — 是 \U0001f642?"},
        {"role": "assistant", "content": "So."},
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, None]}}}
    video = {"path": "v.mp4", "height": 64, "width": 96, "num_frames": 12, "fps": 5.0}
    parts = [
        {"type": "image", "image": "good.png"},
        {"type": "text", "text": "and "},
        {"type": "image_url", "image_url": {"url": uri}},
    ]
    meta = {"images_meta": [[30, 40]], "videos_meta": [[12, 64, 96, 5.0, 2.4]]}
    sharegpt = [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "A cat.\n"}]
    return [
        {"conversations": sharegpt, "image": "good.png", "id": 7},
        {
            "conversations": sharegpt,
            "images": [{"path": "good.png", "height": 300, "width": 500}],
            "system": "Be brief.",
        },
        {"messages": [user, said, user, {**said, "train": False}], "id": "own"},
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": parts},
                said,
            ]
        },
        {
            "messages": [
                user,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "42"},
                said,
            ],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
        {
            "conversation": [{"role": "user", "content": "<image><video> both"}, said],
            "images": ["good.png"],
            "videos": ["v.mp4"],
            "mm_inputs_meta": meta,
            "_text_tokens": 19,
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "video", **video}, {"type": "text", "text": "?"}],
                },
                said,
            ]
        },
        {
            "messages": [{"role": "user", "content": "<video>"}, said],
            "videos": [{"frames": ["good.png", "good.png"], "fps": 1}],
        },
        {
            "conversations": [
                {"from": "human", "value": "hi"},
                {"from": "function_call", "value": '{"name": "f"}'},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "x"},
            ]
        },
        {"prompt": "q", "response": "r", "history": [["a", "b"]]},
        {"instruction": "q", "input": "more", "output": "r", "image": "good.png"},
        {"question": "q", "answer": "r"},
        {"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]},
    ]


_VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**64,
        10**30,
        1.5,
        -0.0,
        1e300,
        "",
        " ",
        "<image>",
    ),
    *(
        "<video>",
        "user",
        "<|image_pad|>",
        "<|im_end|>",
        "none.png",
        "good.png",
        "/etc/passwd",
        "\0",
    ),
    *(
        "../good.png",
        "http://x/a.png",
        "data:,x",
        "{{ x }}",
        "a.lmdb::k",
        "\ud800",
        "\ufeff",
        "x" * 3000,
    ),
    *([], {}, [None], [[]], [{}], {"": None}, {"path": "good.png"}, ["good.png"], [1, "a"], "[]"),
]


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(_VALUES))


def _nodes(record: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    found: list[tuple[Any, Any]] = []
    left = [record]
    while left:
        holder = left.pop()
        for key, item in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            found.append((holder, key))
            if isinstance(item, dict | list):
                left.append(item)
    return found


def _change_tree(record: Any, rng: random.Random) -> Any:
    """The record with some values of other types, members gone, renamed, added or swapped."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        nodes = _nodes(record) if isinstance(record, dict | list) else []
        if not nodes:
            return _value(rng)
        holder, key = rng.choice(nodes)
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, name = rng.choice(nodes)
            holder[key] = copy.deepcopy(other[name])
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice((*_KEYS, str(key) + "x"))] = holder.pop(key)
        elif kind == 3 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), _value(rng))
        elif kind == 4:
            for _ in range(rng.choice((1, 3, 20))):
                holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}
        else:
            holder[key] = _value(rng)
    return record


_KEYS = (
    *("messages", "conversations", "role", "from", "content", "value", "image", "images", "videos"),
    *("video", "system", "tools", "id", "_text_tokens", "mm_inputs_meta", "input_ids", "labels"),
    *("type", "text", "path", "bytes", "fps", "frames", "audio", "train", "weight", "tool_calls"),
)


def _dumped(record: Any, rng: random.Random) -> bytes:
    text = json.dumps(record, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _nest(line: bytes, rng: random.Random) -> bytes:
    """A value put into hundreds or thousands of lists or objects."""
    start, depth = line.find(b'": ') + 3, rng.choice((300, 900, 3000))
    for _ in range(rng.randrange(4)):
        start = max(start, line.find(b'": ', start) + 3)
    end = len(line) - 1
    if rng.random() < 0.5:  # one number, not all the rest
        return line[:start] + b"[" * depth + b"1" + b"]" * depth + b', "a": ' + line[start:]
    return line[:start] + b'{"a": ' * depth + line[start:end] + b"}" * depth + line[end:]


def _repeat_key(line: bytes, rng: random.Random) -> bytes:
    """A member said twice, with another value."""
    at = line.find(b"{", rng.randrange(len(line)))
    value = json.dumps(_value(rng)).encode()
    member = f'"{rng.choice(_KEYS)}": '.encode() + value + b", "
    return line[: at + 1] + member + line[at + 1 :]


def _change_bytes(line: bytes, rng: random.Random) -> bytes:
    data = bytearray(line)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 5, 50)))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.choice(
                (
                    b"\0",
                    b"\xff",
                    b'"',
                    b"\\",
                    b"{",
                    b"]",
                    b"\r",
                    b"\n",
                    b"\\ud800",
                    rng.randbytes(3),
                )
            )
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end]
        elif kind == 4:
            data[at:end] = rng.randbytes(end - at)
        elif kind == 5 and rng.random() < 0.5:
            del data[at:]
    return bytes(data)


def damaged(record: dict[str, Any], rng: random.Random) -> bytes:
    """A line of it that something is wrong with, most often; it may be several or none."""
    kind = rng.randrange(4)
    if kind == 0:
        return _change_bytes(_dumped(record, rng), rng)
    if kind == 1:
        change = _nest if rng.random() < 0.05 else _repeat_key
        return change(_dumped(record, rng), rng)
    line = _dumped(_change_tree(copy.deepcopy(record), rng), rng)
    return _change_bytes(line, rng) if kind == 2 and rng.random() < 0.3 else line


class Fuzzer:
    """Counts damaged records between good ones, and checks what comes out.

    Args:
        folder: for files.
        processor: folder of a processor; None guesses lengths.
    """

    def __init__(self, folder: Path, processor: Path | None) -> None:
        self._folder, self._processor = folder, processor
        (folder / "good.png").write_bytes(_png())
        self._records = good_records()
        self._good = [json.dumps(record).encode() for record in self._records]
        rows = self._counted(b"\n".join(self._good)).to_pylist()
        assert [row["detail"] for row in rows if row["status"] != "ok"] == []
        contents = [_content(row) for row in rows]
        self._alone = dict(zip(self._good, contents, strict=True))
        """Rows of the good records among themselves."""

    def run(self, count: int, seed: int) -> collections.Counter[str]:
        """Rows by reason (``'ok'`` where counted) of `count` records.

        Raises:
            AssertionError: a promise is broken; the shard stays where it says.
        """
        rng = random.Random(seed)
        lines = [self._good[0]]
        for _ in range(count - 1):
            number = rng.randrange(len(self._good))
            keep = rng.random() < GOOD_SHARE
            lines.append(self._good[number] if keep else damaged(self._records[number], rng))
        data = b"\n".join(lines) + rng.choice((b"", b"\n", b"\r\n", b"\n\n \n"))
        return self._check(data, self._counted(data))

    def _counted(self, data: bytes) -> pa.Table:
        (self._folder / "x.jsonl").write_bytes(data)
        output = self._folder / "out"
        estimate_lengths(
            str(self._folder / "x.jsonl"), output, processor=self._processor, workers=1
        )
        return pq.read_table(sorted(output.glob("part-*.parquet")))

    def _check(self, data: bytes, table: pa.Table) -> collections.Counter[str]:
        expected, at = [], 0
        for line in data.split(b"\n"):
            if line.strip():
                expected.append((at, line.removesuffix(b"\r")))
            at += len(line) + 1
        where = f"in {self._folder}/x.jsonl"
        assert table.num_rows == len(expected), where
        for name in ("sample_id", "row"):
            assert table[name].to_pylist() == list(range(len(expected))), where
        assert table["offset"].to_pylist() == [offset for offset, _ in expected], where
        assert table["nbytes"].to_pylist() == [len(line) for _, line in expected], where
        found: collections.Counter[str] = collections.Counter()
        for (_, line), row in zip(expected, table.to_pylist(), strict=True):
            here = f"row {row['row']} {where}: {row['reason']}, {row['detail']}"
            assert row["key"] and row["source"], here
            if row["status"] == "ok":
                assert row["reason"] is None, here
                assert row["length"] >= (self._processor is not None), here
            else:
                assert row["reason"] and row["detail"] and row["length"] == 0, here
                # An error of packidx, not of the record.
                assert row["reason"] != "uncountable", here
            if line in self._alone:
                assert _content(row) == self._alone[line], here
            found[row["reason"] or "ok"] += 1
        return found


def _content(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _PLACE}


_fuzzer: Callable[[int, int], collections.Counter[str]]


def _start(folder: str, processor: str) -> None:
    global _fuzzer
    _fuzzer = Fuzzer(Path(tempfile.mkdtemp(dir=folder)), Path(processor)).run


def _run(seed: int) -> collections.Counter[str]:
    return _fuzzer(BLOCK, seed)


def main(records: int = 1_000_000, first_seed: int = 0) -> None:
    from processors import qwen_folders

    begun = time.monotonic()
    total: collections.Counter[str] = collections.Counter()
    folder = tempfile.mkdtemp(prefix="fuzz-")
    processor = qwen_folders(Path(folder) / "processors")["qwen2.5-vl"]
    start = functools.partial(_start, folder, str(processor))
    with multiprocessing.get_context("spawn").Pool(2, start) as pool:
        seeds = range(first_seed, first_seed - (-records // BLOCK))
        for number, found in enumerate(pool.imap_unordered(_run, seeds), 1):
            total += found
            print(f"\r{number * BLOCK:,} records", end="", file=sys.stderr, flush=True)
    shutil.rmtree(folder)  # kept where a promise was broken
    print(f"\n{total.total():,} rows in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for reason, count in total.most_common():
        print(f"{count:10,}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
