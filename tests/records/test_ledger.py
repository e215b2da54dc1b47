"""Every column is used, carried or told: none that training should see is read past in silence."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout
from packidx.records.conversation import Conversation
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import standard
from packidx.records.ledger import Ledger, merge_columns

JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 20
STRUCT = {"bytes": JPEG, "path": None}
TALK = [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "Hi there."}]
OTHER = [{"from": "human", "value": "What else?"}, {"from": "gpt", "value": "Nothing."}]
ASKED = {"question": "What is it?", "answer": "A cat."}


def looked_at(
    record: dict[str, Any], layout: Layout = DEFAULT
) -> tuple[str | None, dict[str, str]]:
    """What is said of a record, None if nothing; and its columns with their uses."""
    columns: dict[str, str] = {}
    try:
        Ledger(layout, "jsonl", columns).check(record)
    except BadRecord as error:
        assert error.reason == "unused_column"
        return error.detail, columns
    return None, columns


REFUSED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    # what it is: the record, the column that nobody reads, and the line that takes it
    "image_path": ({**ASKED, "image_path": "a/b.png"}, "image_path", "images=image_path"),
    "img": ({**ASKED, "img": "a.JPG"}, "img", "images=img"),
    "img_name": ({**ASKED, "img_name": "a.webp"}, "img_name", "images=img_name"),
    "image_bytes": ({**ASKED, "image_bytes": JPEG}, "image_bytes", "images=image_bytes"),
    "two of them": (
        {**ASKED, "image_0": STRUCT, "image_1": STRUCT},
        "image_0",
        "images=image_0,image_1",
    ),
    "MMMU": (
        {**ASKED, "image_1": STRUCT, **dict.fromkeys(map("image_{}".format, range(2, 4)))},
        "image_1",
        "images=image_1,image_2,image_3",
    ),
    "of the same name elsewhere": (
        {**ASKED, "image": "rgb/a.png", "depth": "depth/a.png"},
        "depth",
        "images=image,depth",
    ),
    "other bytes of the same name": (
        {**ASKED, "image": {"bytes": JPEG, "path": "a"}, "image_2": {"bytes": JPEG, "path": "a"}},
        "image_2",
        "images=image,image_2",
    ),
    "NExT-QA": ({**ASKED, "a0": "cat", "a1": "dog"}, "a0", None),
    "choices beside turns": ({"messages": TALK, "Option A": "cat"}, "Option A", None),
    "VQAv2": ({**ASKED, "image_id": 262148}, "image_id", None),
    "an answer beside turns": ({"messages": TALK[:1], "answer": "Hi."}, "answer", None),
    "SVAMP": ({**ASKED, "Body": "There are 3 cats."}, "Body", "query=Body"),
    "s1K": ({**ASKED, "thinking_trajectories": ["So it is."]}, "thinking_trajectories", None),
    "one more": ({**ASKED, "image": "a.png", "more": ["b.png"]}, "more", "images=image,more"),
    "beside messages": ({"messages": TALK, "jpg": JPEG}, "jpg", "images=jpg"),
    "image_url": (
        {"messages": TALK, "image_url": "https://x.y/z"},
        "image_url",
        "images=image_url",
    ),
    "COYO": ({"id": 1, "url": "http://x.y/a.jpg?w=9", "text": "A cat."}, "url", "images=url"),
    "DataComp": (
        {"url": "http://x.y/a", "text": "A cat.", "original_width": 9, "original_height": 9},
        "url",
        "images=url",
    ),
    "base64": ({**ASKED, "b": "/9j/" + "A" * 80}, "b", "images=b"),
    "deep": ({"messages": TALK, "meta": {"a": [{"b": "x.mp4"}]}}, "meta", None),
    "in JSON": ({"messages": TALK, "meta": '{"files": ["x.wav"]}'}, "meta", None),
    "Qwen's first form": ({**ASKED, "note": "See <img>a</img>."}, "note", None),
    "two system prompts": (
        {**ASKED, "system": "Be kind.", "system_prompt": "Be brief."},
        "system_prompt",
        None,
    ),
    "Dolly": (
        {"instruction": "Sum up.", "context": "A long one.", "response": "Short."},
        "context",
        "query=context",
    ),
    "RACE": ({**ASKED, "article": "Once upon."}, "article", "query=article"),
    "functions": ({"messages": TALK, "functions": [{"name": "f"}]}, "functions", "tools=functions"),
    "reasoning": ({**ASKED, "reasoning": "It purrs."}, "reasoning", None),
    "MMLU-Pro": ({**ASKED, "cot_content": "Let's think."}, "cot_content", None),
    "SmolTalk2": (
        {"messages": TALK, "chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        None,
    ),
    "ms-swift": ({"messages": TALK, "objects": {"ref": ["cat"]}}, "objects", None),
    "other turns": ({"messages": TALK, "conversations": OTHER}, "conversations", None),
    "turns of any name": (
        {"text": "Once.", "x": [{"who": "U", "t": "Hi you."}, {"who": "A", "t": "Hello."}]},
        "x",
        None,
    ),
    "questions and answers": ({"text": "Once.", "qa": [{"q": "a b?", "a": "c d"}]}, "qa", None),
    "loss_mask": ({"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}, "loss_mask", None),
    "any mask": ({"input_ids": [1, 2, 3], "m": [0, 0, 1]}, "m", None),
    "padding": ({"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}, "attention_mask", None),
    "other labels": ({"input_ids": [1, 2, 3], "targets": [-100, 2, 3]}, "targets", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_reads_is_refused_until_it_is_stated(name: str) -> None:
    record, column, line = REFUSED[name]
    told, columns = looked_at(record)
    assert told is not None and f"the column {column!r}" in told and f"--ignore {column}" in told
    assert columns[column] == "not used" and "--column" not in told
    ignored = Layout(ignore=tuple(c for c in record if columns[c] != "text" and c != "input_ids"))
    assert looked_at(record, ignored)[0] is None
    if line is None:
        return
    standard_name, own = line.split("=")
    told, columns = looked_at(record, Layout(columns={standard_name: own}))
    assert told is None
    held = [each for each in own.split(",") if record[each] is not None]
    assert all(columns[each] not in ("not used", "carried") for each in held)


HARMLESS: dict[str, dict[str, Any]] = {
    "C4": {"text": "Once. upon", "url": "http://x.y/a.html", "timestamp": "2020-01-01T00:00:00Z"},
    "FineWeb": {"text": "Once.", "dump": "CC", "file_path": "s3://x/y.warc.gz", "score": 0.9},
    "img2dataset": {"jpg": JPEG, "caption": "A cat.", "url": "http://x.y/a.jpg", "width": 9},
    "LLaVA": {"id": "a/b.jpg", "image": "c/a/b.jpg", "conversations": OTHER},
    "UltraChat": {"prompt": "Say hi.", "prompt_id": "0af.1", "messages": TALK},
    "the same turns": {"messages": TALK, "conversations": json.dumps(TALK)},
    "a question with its options": {
        "question": "Which?\nA. red\nB. green",
        "options": ["red", "green"],
        "answer": "red",
    },
    "counts": {**ASKED, "num_options": 4, "context_length": 9, "question_type": "open", "ok": True},
    "BERT": {
        "input_ids": [1, 2, 3],
        "attention_mask": [1, 1, 1],
        "token_type_ids": [0, 0, 0],
        "position_ids": [0, 1, 2],
    },
    "a word is not text": {**ASKED, "reasoning": "on", "context": "nan", "functions": "none"},
    "spaced otherwise": {"messages": TALK, "prompt": "say  HI.\n"},
    "nothing in it": {**ASKED, "image_1": None, "context": "", "options": [], "tools": None},
    "embedding": {**ASKED, "embedding": [0.1] * 64, "hash": b"\x01\x02", "explanation": "So. It"},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_says_nothing_more_is_carried(name: str) -> None:
    told, columns = looked_at(HARMLESS[name])
    assert told is None and columns.keys() == HARMLESS[name].keys()


def test_uses_are_told_by_what_they_change() -> None:
    record = {
        "id": "7",
        "system": "Be brief.",
        "tools": [{"name": "f"}],
        "messages": TALK,
        "_text_tokens": 9,
        "score": 1,
        "note": "x" * 200,
    }
    assert looked_at(record)[1] == {
        "id": "id",
        "system": "system",
        "tools": "tools",
        "messages": "text",
        "_text_tokens": "size",
        "score": "carried",
        "note": "not used",
    }
    pictures = {"image": "a.png", "caption": "A cat.", "mm_inputs_meta": {"images_meta": [[9, 9]]}}
    assert looked_at(pictures)[1] == {
        "image": "images",
        "caption": "text",
        "mm_inputs_meta": "size",
    }


def test_each_record_is_looked_into_not_only_the_first() -> None:
    ledger = Ledger(DEFAULT, "jsonl", columns := {})
    good = {**ASKED, "image": None, "extra": None, "note": "short"}
    for record in (good, {**good, "image": "a.png"}, {**good, "question": None}):
        ledger.check(record)
    assert columns["image"] == "images" and columns["extra"] == "carried"
    with pytest.raises(BadRecord, match="'extra' holds an image"):
        ledger.check({**good, "extra": "b.png"})
    with pytest.raises(BadRecord, match="'note' holds an image"):
        ledger.check({**good, "note": "b.png"})
    assert columns["extra"] == columns["note"] == "not used"


def test_a_column_may_hold_values_of_several_kinds() -> None:
    ledger = Ledger(DEFAULT, "jsonl", {})
    for value in (0, "", False, "on", 5, ["a"], {"a": 1}, [], None, 0.0, "x."):
        ledger.check({**ASKED, "note": value})
    documents = Ledger(DEFAULT, "jsonl", {})
    for text in ("Once.", 5, ["Once."], {"a": "Once."}, None, 0, "", True):
        documents.check(
            {"text": text, "note": "n"}
        )  # what is not text is refused when it is parsed
    with pytest.raises(BadRecord, match="'note' holds an image"):
        ledger.check({**ASKED, "note": "a.png"})


def test_a_stated_column_that_is_not_read_is_told() -> None:
    record = {"input_ids": [1, 2, 3], "messages": TALK}
    told, _ = looked_at(record, Layout(columns={"messages": "messages"}))
    assert told is not None and "--column" not in told
    tokens = {"tokens": [1, 2, 3], "loss_mask": [0, 0, 1]}
    told, _ = looked_at(tokens, Layout(columns={"input_ids": "tokens"}))
    assert told is not None and "holds a mask" in told


def test_a_record_in_a_text_is_refused_unless_the_column_is_stated() -> None:
    inner = {"question": "What?", "chosen": "A.", "rejected": "B."}
    for record in ({"image": "a.png", "text": json.dumps(inner)}, {"text": json.dumps(ASKED)}):
        told, _ = looked_at(record)
        assert told is not None and "'text' is itself a record, as JSON" in told
        assert looked_at(record, Layout(columns={"text": "text"}))[0] is None
    assert looked_at({"text": '{"a": [1, 2]}'})[0] is None


def test_merged_columns_do_not_depend_on_their_order() -> None:
    uses = ["carried", "id", "not used", "ignored", "text", "images"]
    for seed in range(50):
        rng = random.Random(seed)
        parts = [{"c": rng.choice(uses)} for _ in range(4)]
        merged: list[dict[str, str]] = []
        for order in (parts, parts[::-1]):
            merged.append({})
            for part in order:
                merge_columns(merged[-1], part)
        assert merged[0] == merged[1]


# -- 2,000 tables of columns that nobody knows, and of known ones in odd company -------------------

KNOWN = [
    *("images", "image", "video", "jpg", "png", "file_name", "url", "URL", "text", "caption"),
    *("messages", "conversations", "prompt", "query", "question", "answer", "response", "input"),
    *("output", "instruction", "system", "tools", "history", "id", "key", "name", "media_type"),
    *("texts", "labels", "chosen", "_text_tokens", "label", "metadata", "source"),
]


class Marks:
    """Texts and names of files that stand in one place alone."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.number = rng, 0

    def word(self) -> str:
        self.number += 1
        return f"w{self.number}x{self.rng.randrange(10**9)}"

    def sentence(self) -> str:
        return f"{self.word()} and {self.word()}."


def media_value(marks: Marks) -> tuple[Any, list[Any]]:
    """A value that holds media, and what names each of them."""
    rng = marks.rng
    name = f"{marks.word()}.{rng.choice(('png', 'jpg', 'JPEG', 'webp', 'mp4', 'wav'))}"
    data = JPEG + marks.word().encode()
    plain: list[tuple[Any, list[Any]]] = [
        (f"d/{name}", [f"d/{name}"]),
        (f"https://h.example/{name}", [f"https://h.example/{name}"]),
        (data, [data]),
        ({"bytes": data, "path": None}, [data]),
    ]
    value, refs = rng.choice(plain)
    wrapped: list[Callable[[], Any]] = [lambda: value, lambda: value, lambda: [value]]
    if isinstance(value, str):
        wrapped += [lambda: json.dumps([value]), lambda: {"a": {"b": value}}]
    return rng.choice(wrapped)(), refs


def turns_value(marks: Marks) -> tuple[Any, list[Any]]:
    rng = marks.rng
    said = [marks.sentence() for _ in range(rng.randrange(2, 5))]
    role, content = rng.choice([("role", "content"), ("from", "value"), ("who", "msg"), ("a", "b")])
    words = rng.choice([("user", "assistant"), ("human", "gpt"), ("U", "A"), ("Kunde", "Hilfe")])
    turns: Any = [{role: words[n % 2], content: text} for n, text in enumerate(said)]
    if rng.random() < 0.3:
        turns = json.dumps(turns)
    return turns, said


def any_name(marks: Marks) -> str:
    rng = marks.rng
    if rng.random() < 0.4:
        return rng.choice(KNOWN)
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(2, 9)))


def random_table(seed: int) -> tuple[dict[str, Any], list[Any], bool]:
    """A record, what a conversation must hold if it is taken, and whether it must never be."""
    marks = Marks(random.Random(seed))
    rng = marks.rng
    user, assistant = marks.sentence(), marks.sentence()
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    cores: list[dict[str, Any]] = [
        {"messages": turns},
        {"question": user, "answer": assistant},
        {"prompt": user, "response": assistant},
        {"text": assistant},
        {"image": f"{user[:8]}.png", "caption": assistant},
        {"input_ids": [1, 2, 3, 4]},
    ]
    record = dict(rng.choice(cores))
    wanted: list[Any] = []
    never = False
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(("media", "turns", "system", "tools", "reasoning", "mask", "scalar"))
        name = any_name(marks)
        value: Any
        held: list[Any]
        if kind == "media":
            value, held = media_value(marks)
        elif kind == "turns":
            value, held = turns_value(marks)
        elif kind in ("system", "reasoning"):
            name = {"system": "system_prompt", "reasoning": "rationale"}[kind]
            value = marks.sentence()
            held = [value]
        elif kind == "tools":
            name, value, held = "functions", [{"name": marks.word()}], ["never"]
        elif kind == "mask":
            value, held = [0, 0, 1, 1], []
            never |= "input_ids" in record and name not in record and name not in KNOWN
        else:
            value, held = rng.choice((3, 0.5, True, "en", None)), []
        if name not in record:
            record[name] = value
            wanted += held
    items = [*record.items()]
    rng.shuffle(items)
    return dict(items), wanted, never


def contents(conversation: Conversation) -> list[Any]:
    refs: list[Any] = []
    for medium in conversation.media:
        refs += medium.ref if isinstance(medium.ref, list | tuple) else [medium.ref]
    texts = [part for turn in conversation.turns for part in turn.parts if isinstance(part, str)]
    return [*refs, "\n".join([*texts, str(conversation.tools)])]


def test_no_column_of_2000_random_tables_is_read_past() -> None:
    taken = refused = 0
    for seed in range(2000):
        record, wanted, never = random_table(seed)
        try:
            Ledger(DEFAULT, "jsonl", {}).check(record)
            conversation = parse(standard(dict(record), DEFAULT))
        except BadRecord:
            refused += 1
            continue
        taken += 1
        *refs, text = contents(conversation)
        missing = [item for item in wanted if item not in refs and str(item) not in text]
        assert not missing and not never, (seed, record)
    assert taken > 200 and refused > 1000
