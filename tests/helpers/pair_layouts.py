"""Preference pairs as people have them: the rows of docs/data.md that take one side or both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data_layouts import ASKED, DataLayout, chat, lines, parquet, png, put_images

USER = {"role": "user", "content": "Which?"}
GOOD = {"role": "assistant", "content": "This."}
BAD = {"role": "assistant", "content": "That 漢字."}


def trl_texts(folder: Path) -> None:
    put_images(folder, "a.png")
    sides = {"chosen": "This.", "rejected": "That."}
    lines(
        folder,
        "texts.jsonl",
        {"prompt": "Which?", **sides},
        {"image": "a.png", "question": "Which?", **sides},
        {"instruction": "Which?", "input": "Say.", **sides, "system": "Be brief."},
    )


def trl_turns(folder: Path) -> None:
    content = [{"type": "image", "text": None}, {"type": "text", "text": "Which?"}]
    asked = [{"role": "user", "content": content}]
    said = [[{"type": "text", "text": str(turn["content"])}] for turn in (GOOD, BAD)]
    good, bad = ([{"role": "assistant", "content": parts}] for parts in said)
    images = [{"bytes": png(), "path": None}]
    record: dict[str, Any] = {"prompt": asked, "chosen": good, "rejected": bad, "images": images}
    parquet(folder, "turns.parquet", record, {**record, "chosen": bad, "rejected": good})


def trl_conversations(folder: Path) -> None:
    more = [USER, BAD, USER]
    lines(
        folder,
        "whole.jsonl",
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "Which?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [*more, GOOD], "rejected": [*more, BAD]},
    )


def llama_factory(folder: Path) -> None:
    put_images(folder, "a.png")
    record = {
        "conversations": [{"from": "human", "value": "<image>\nWhat is it?"}],
        "chosen": {"from": "gpt", "value": "This."},
        "rejected": {"from": "gpt", "value": "That."},
    }
    (folder / "ranking.json").write_text(json.dumps([{**record, "images": ["a.png"]}]))


def ms_swift(folder: Path) -> None:
    lines(
        folder,
        "swift.jsonl",
        {"messages": [USER, GOOD], "rejected_response": "That."},
        {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
        {"prompt": "Which?", "response": "This.", "rejected_response": "That."},
    )


_BRIEF = "<|im_start|>system\nBe brief.<|im_end|>\n"

PAIR_LAYOUTS = [
    DataLayout(
        "TRL, texts",
        trl_texts,
        [
            chat("Which?", "This."),
            chat("<image>Which?", "This."),
            chat("Which?\nSay.", "This.", system=_BRIEF),
        ],
    ),
    DataLayout(
        "TRL, turns",
        trl_turns,
        [chat("<image>Which?", "That 漢字."), chat("<image>Which?", "This.")],
    ),
    DataLayout(
        "TRL, conversations",
        trl_conversations,
        [chat("Which?", "That 漢字.")] * 3 + [chat(*["Which?", "That 漢字."] * 2)],
    ),
    DataLayout("LLaMA-Factory's pairs", llama_factory, [chat(ASKED, "This.")]),
    DataLayout(
        "ms-swift's pairs",
        ms_swift,
        [chat("Which?", "That."), chat("Which?", "That 漢字."), chat("Which?", "That.")],
    ),
]
