"""Chats with pictures as members of tars, in each dialect that a tar's samples have."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from record_files import tar_of

Record = dict[str, Any]


Files = list[tuple[str, bytes]]


SIZES = [(90, 120), (112, 112), (133, 84)]


def picture(number: int, ending: str = "png") -> bytes:
    width, height = SIZES[number % len(SIZES)]
    noise = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(noise).save(sink, "JPEG" if ending == "jpg" else ending)
    return sink.getvalue()


def turns(asked: str, answered: str = "So.") -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def dumped(record: Any) -> bytes:
    return json.dumps(record).encode()


def chat(number: int) -> tuple[Record, dict[str, bytes]]:
    """A record of no, one or two images, which names them by paths, and these."""
    images = {f"{k}.png": picture(number + k) for k in range(number % 3)}
    asked = "<image>" * len(images) + f"What of {number}? " + "More. " * (number % 7)
    return {"messages": turns(asked, f"It is {number}."), "images": list(images)}, images


CHATS = {f"d{number % 2}/s{number:03d}": chat(number) for number in range(24)}


def conversations(key: str, record: Record) -> Record:
    roles = {"user": "human", "assistant": "gpt"}
    said = [{"from": roles[m["role"]], "value": m["content"]} for m in record["messages"]]
    return {"conversations": said, "image": [f"{key}.{name}" for name in record["images"]]}


def parts(key: str, record: Record) -> Record:
    user, answer = record["messages"]
    if not record["images"]:
        return {"messages": record["messages"]}
    content: list[Any] = [{"type": "image_url", "image_url": {"url": n}} for n in record["images"]]
    content.append({"type": "text", "text": user["content"].replace("<image>", "")})
    return {"messages": [{"role": "user", "content": content}, answer]}


def texts(key: str, record: Record) -> Record:
    prompts = [[turn["content"]] for turn in record["messages"][:1]]
    return {
        "texts": {"prompts": prompts, "captions": [[record["messages"][1]["content"]]]},
        "media_files": record["images"],
        "media_type": "image" if record["images"] else "text",
    }


def listed(key: str, record: Record) -> Record:
    kind = "image" if record["images"] else "text"
    return {"texts": record["messages"], "name": record["images"], "media": kind}


def unnamed(key: str, record: Record) -> Record:
    return {"messages": record["messages"]}


def bare(key: str, record: Record) -> Record:
    user, answer = record["messages"]
    if len(record["images"]) > 1:  # of several images the text must say where they stand
        return unnamed(key, record)
    return {"messages": [{**user, "content": user["content"].replace("<image>", "")}, answer]}


DIALECTS: dict[str, Callable[[str, Record], Record]] = {
    "messages": lambda key, record: record,
    "conversations": conversations,
    "parts": parts,
    "texts": texts,
    "listed": listed,
    "unnamed": unnamed,
    "bare": bare,
}


def members_of(dialect: str = "messages") -> Files:
    """`CHATS` as members, the record now before its media and now behind them."""
    found: Files = []
    for number, (key, (record, images)) in enumerate(CHATS.items()):
        media = [(f"{key}.{name}", data) for name, data in images.items()]
        text = [(f"{key}.json", dumped(DIALECTS[dialect](key, record)))]
        found += media + text if number % 2 else text + media
    return found


def put(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(members))
    return path
