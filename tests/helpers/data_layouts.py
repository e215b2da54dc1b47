"""Data as people have it: for each row of docs/data.md a writer of such files, and what is read.

A layout is one of `LAYOUTS`. Its command stands in docs/data.md alone, in the row of its
name; the test runs it in the folder that the writer has written to.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from record_files import tar_of

SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
"""What the template of Qwen2.5-VL writes before a conversation without a system turn."""


@dataclass(frozen=True)
class DataLayout:
    """One row of docs/data.md."""

    name: str
    """As in the row's first cell."""
    write: Callable[[Path], Any]
    """Writes the files that the row's command names into a folder."""
    samples: Sequence[str]
    """What each sample says, in order: ``[[`` and ``]]`` around what is trained on, ``<image>``
    for an image with the words around it."""


LAYOUTS: list[DataLayout] = []


def layout(name: str, samples: Sequence[str]) -> Callable[[Callable[[Path], Any]], Any]:
    """A decorator of a writer: its layout is one of `LAYOUTS`."""

    def add(write: Callable[[Path], Any]) -> Any:
        LAYOUTS.append(DataLayout(name, write, samples))
        return write

    return add


def chat(*texts: str, system: str = SYSTEM) -> str:
    """A conversation as Qwen2.5-VL has it: what the user and the assistant say, in turns."""
    said = system
    for number, text in enumerate(texts):
        if number % 2:
            said += f"<|im_start|>assistant\n[[{text}<|im_end|>]]\n"
        else:
            said += f"<|im_start|>user\n{text}<|im_end|>\n"
    return said


def png(number: int = 0) -> bytes:
    """A small image; others have other sizes."""
    sink = io.BytesIO()
    Image.new("RGB", (60 + 31 * number, 80), (number, 90, 0)).save(sink, "PNG")
    return sink.getvalue()


def put_images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))


def lines(folder: Path, name: str, *records: Any) -> None:
    (folder / name).write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )


def table(folder: Path, name: str, header: str, *rows: Sequence[str]) -> None:
    with open(folder / name, "w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def parquet(folder: Path, name: str, *records: dict[str, Any]) -> None:
    pq.write_table(pa.Table.from_pylist(list(records)), folder / name)


HUMAN = {"from": "human", "value": "<image>\nWhat is it?"}
GPT = {"from": "gpt", "value": "A cat."}
ASKED = "<image>\nWhat is it?"
ODD = ["  \n", "漢字 <image> é\u0301", "<|im_start|>user"]
END = "<|im_end|>]]"
"""Behind a document: this tokenizer's eos_token."""
DOCUMENTS = [
    f"It[[ was.{END}",
    f"  \n[[{END}",
    f"漢[[字 <image> é\u0301{END}",
    f"<|im_start|>[[user{END}",
]
ONE = chat(ASKED, "A cat.")
FIRST = chat("<image>What is it?", "A cat.")


@layout(
    "ShareGPT",
    [
        chat(ASKED, "A cat.", "And 漢字?", "No."),
        chat("And 漢字?", "No."),
        chat(ASKED, "A cat.", "And 漢字?", "No."),
    ],
)
def sharegpt(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    turns = [HUMAN, GPT, {"from": "human", "value": "And 漢字?"}, {"from": "gpt", "value": "No."}]
    records = [
        {"conversations": turns, "image": "a.png", "id": 7},
        {"conversations": turns[2:], "image": None, "id": 8},
        {"conversations": turns, "image": ["b.png"], "id": 9},
    ]
    (folder / "chats.json").write_text(json.dumps(records))


@layout(
    "OpenAI",
    [
        FIRST,
        chat(
            "<image>What is it?<image>",
            "A cat.",
            system="<|im_start|>system\nBe brief.<|im_end|>\n",
        ),
        chat("Hello", "A cat."),
    ],
)
def openai(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    content = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is it?"}]
    two = [*content, {"type": "image_url", "image_url": {"url": "b.png"}}]
    answer = {"role": "assistant", "content": "A cat."}
    system = {"role": "system", "content": "Be brief."}
    lines(
        folder,
        "chats.jsonl",
        {"messages": [{"role": "user", "content": content}, answer]},
        {"messages": [system, {"role": "user", "content": two}, answer]},
        {"messages": [{"role": "user", "content": "Hello"}, answer]},
    )


@layout("messages in Parquet", [ONE, chat(ASKED, "A dog.")])
def trl(folder: Path) -> None:
    asked = {"role": "user", "content": ASKED}
    records = [
        {
            "messages": [asked, {"role": "assistant", "content": answer}],
            "images": [{"bytes": png(number), "path": f"{number}.png"}],
        }
        for number, answer in enumerate(("A cat.", "A dog."))
    ]
    parquet(folder, "train-00000-of-00001.parquet", *records)


@layout("turns as JSON text", [ONE])
def cells(folder: Path) -> None:
    put_images(folder, "a.png")
    table(folder, "table.csv", "image,conversations", ["a.png", json.dumps([HUMAN, GPT])])


@layout("names of their own", [ONE])
def own_names(folder: Path) -> None:
    put_images(folder, "a.png")
    turns = [{"who": "U", "text": ASKED}, {"who": "A", "text": "A cat."}]
    lines(folder, "own.jsonl", {"chat": turns, "pics": ["a.png"]})


@layout("WebDataset", [FIRST, FIRST])
def webdataset(folder: Path) -> None:
    members = []
    for number in range(2):
        record = {"conversations": [{"from": "human", "value": "What is it?"}, GPT]}
        members.append((f"000{number}.png", png(number)))
        members.append((f"000{number}.json", json.dumps(record).encode()))
    (folder / "shard-000000.tar").write_bytes(tar_of(members))


@layout("LoongForge", [ONE])
def loongforge(folder: Path) -> None:
    put_images(folder, "a.png")
    texts = {"prompts": [ASKED], "captions": ["A cat."]}
    lines(folder, "texts.jsonl", {"texts": texts, "media_files": ["a.png"], "media_type": "image"})


@layout("saved by `datasets`", [chat("Hi", "Hello.")])
def saved(folder: Path) -> None:
    import datasets

    records = [
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
            ]
        }
    ]
    datasets.Dataset.from_list(records).save_to_disk(folder / "saved")


@layout("question, answer", [FIRST, chat('<image>Is it "so", é?', "Yes.\nIt is.")])
def vqa(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    rows = [["a.png", "What is it?", "A cat."], ["b.png", 'Is it "so", é?', "Yes.\nIt is."]]
    table(folder, "vqa.csv", "image,question,answer", *rows)


@layout(
    "prompt, response",
    [
        chat("<image><image>What is it?", "A cat."),
        chat("And <image> this?", "A dog."),
        chat("Hello", "Hi."),
    ],
)
def prompts(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    lines(
        folder,
        "pairs.jsonl",
        {"prompt": "What is it?", "response": "A cat.", "images": ["a.png", "b.png"]},
        {"prompt": "And <image> this?", "completion": "A dog.", "images": ["b.png"]},
        {"prompt": "Hello", "response": "Hi.", "images": []},
    )


@layout(
    "Alpaca",
    [
        chat("Describe it.\nBriefly.", "A cat."),
        chat("<image>Describe it.", "A cat."),
        chat("<image>From here to <image>?", "Far."),
        chat("Hi", "Hello.", "More.", "No."),
    ],
)
def alpaca(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    two = ["a.png", "b.png"]
    records = [
        {"instruction": "Describe it.", "input": "Briefly.", "output": "A cat."},
        {"instruction": "Describe it.", "input": "", "output": "A cat.", "images": ["a.png"]},
        {"instruction": "<image>From here to <image>?", "output": "Far.", "images": two},
        {"instruction": "More.", "input": None, "output": "No.", "history": [["Hi", "Hello."]]},
    ]
    (folder / "alpaca.json").write_text(json.dumps(records))


@layout("captions in a table", [chat("<image>", "A cat."), chat("<image>", "Ein Häuschen")])
def captions(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    table(folder, "captions.csv", "image,caption", ["a.png", "A cat."], ["b.png", "Ein Häuschen"])


@layout("tokens", ["Hello[[, world]]", "Hello,[[ world]]", "Hello[[, world]]"])
def tokens(folder: Path) -> None:
    lines(
        folder,
        "tokens.jsonl",
        {"input_ids": [9707, 11, 1879], "labels": [-100, 11, 1879]},
        {"input_ids": [9707, 11, 1879], "labels": [-100, -100, 1879]},
        {"input_ids": [9707, 11, 1879]},
    )


@layout(
    "FineVision, The Cauldron",
    [
        chat("<image>What is it?", "A cat.", "And this?", " "),
        chat("Both <image> and <image>?", "Yes."),
        chat("Hello", "Hi."),
    ],
)
def finevision(folder: Path) -> None:
    def record(*images: bytes, **pairs: str) -> dict[str, Any]:
        texts = [{"user": u, "assistant": a, "source": "x"} for u, a in pairs.items()]
        structs = [{"bytes": image, "path": None} for image in images]
        return {"images": structs, "texts": texts, "source": "x", "relevance_min": 4}

    parquet(
        folder,
        "finevision.parquet",
        record(png(), **{"What is it?": "A cat.", "And this?": " "}),
        record(png(), png(1), **{"Both <image> and <image>?": "Yes."}),
        record(Hello="Hi."),
    )


@layout("captions in tars", [chat("<image>", "A cat."), chat("<image>", "Ein Häuschen\n")])
def tar_captions(folder: Path) -> None:
    members = []
    for number, caption in enumerate(("A cat.", "Ein Häuschen\n")):
        key = f"00000000{number}"
        described = {"url": "http://x/a.jpg", "key": key, "status": "success", "width": 60}
        members.append((f"{key}.jpg", png(number)))
        members.append((f"{key}.txt", caption.encode()))
        if number:
            members.append((f"{key}.json", json.dumps(described).encode()))
    (folder / "00000.tar").write_bytes(tar_of(members))


@layout("LAION, img2dataset's Parquet", [chat("<image>", "A cat."), chat("<image>", "é")])
def laion(folder: Path) -> None:
    row = {"url": "http://x/a.jpg", "key": "000", "status": "success", "error_message": None}
    row |= {"width": 60, "height": 80, "original_width": 600, "exif": "{}", "sha256": "0"}
    rows = [{**row, "caption": "A cat.", "jpg": png()}, {**row, "caption": "é", "jpg": png(1)}]
    parquet(folder, "00000.parquet", *rows)


@layout("imagefolder", [chat("<image><image>Same?", "No.")])
def imagefolder(folder: Path) -> None:
    for name in ("train", "test"):
        put_images(folder / "photos" / name, "a.png", "deep/b.png")
    rows = [["a.png", "A cat."], ["deep/b.png", "Two, <b>cats</b>"]]
    table(folder / "photos" / "test", "metadata.csv", "file_name,text", *rows)
    names = ["a.png", "deep/b.png"]
    asked = {"question": "Same?", "answer": "No."}
    lines(folder / "photos" / "train", "metadata.jsonl", {"images_file_names": names, **asked})


@layout(
    "several answers",
    [
        chat("What is it?", "A cat."),
        chat("How many?", "2"),
        chat("Which?", "A cat."),
        chat("As JSON?", '["A cat."]'),
    ],
)
def answers(folder: Path) -> None:
    lines(
        folder,
        "answers.jsonl",
        {"question": "What is it?", "answers": ["A cat.", "A cat."]},
        {"question": "How many?", "answer": 2},
        {"question": "Which?", "answers": {"text": ["A cat."], "answer_start": [4]}},
        {"question": "As JSON?", "answer": '["A cat."]'},
    )


@layout("VQAv2", [chat("What is it?", "A cat.")])
def vqa2(folder: Path) -> None:
    answers = [{"answer": said, "answer_confidence": "yes"} for said in ("A cat.", "cat", "A pet.")]
    record = {"question": "What is it?", "answers": answers, "multiple_choice_answer": "A cat."}
    lines(folder, "vqa2.jsonl", record)


@layout("choices", [chat("Which?\nA. cat\nB. dog", said) for said in ("B", "A")])
def choices(folder: Path) -> None:
    asked = {"question": "Which?", "choices": ["cat", "dog"]}
    lines(folder, "choices.jsonl", {**asked, "answer": 1}, {**asked, "answer": 0})


@layout("choices in a TSV", [chat("<image>Which?\nA. cat\nB. dog", "B")])
def mmbench(folder: Path) -> None:
    image = base64.b64encode(png(1)).decode()
    rows = ["index\timage\tquestion\tA\tB\tanswer", f"7\t{image}\tWhich?\tcat\tdog\tB"]
    (folder / "bench.tsv").write_text("\n".join(rows))


@layout(
    "prompt and completion as turns",
    [
        chat("Hi", "Hello."),
        chat("Hi", "Hello.", "<image>What is it?", "A cat.").replace(
            "[[Hello.<|im_end|>]]", "Hello.<|im_end|>"
        ),
    ],
)
def prompt_turns(folder: Path) -> None:
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    put_images(folder, "a.png")
    question = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    completion = [{"role": "assistant", "content": "A cat."}]
    lines(
        folder,
        "turns.jsonl",
        {"prompt": [asked[0]], "completion": [asked[1]]},
        {
            "prompt": [*asked, {"role": "user", "content": question}],
            "completion": completion,
            "images": ["a.png"],
        },
    )


@layout(
    "OpenOrca", [chat("What is it?", "A cat.", system="<|im_start|>system\nBe brief.<|im_end|>\n")]
)
def orca(folder: Path) -> None:
    lines(
        folder,
        "orca.jsonl",
        {"system_prompt": "Be brief.", "question": "What is it?", "response": "A cat."},
    )


@layout("a video's frames", [chat("<video>\nWhat is it?", "A cat.")])
def frames(folder: Path) -> None:
    for number in range(2, 12, 2):
        put_images(folder, f"clip/frame{number}.png")
    turns = [{"role": "user", "content": "<video>\nWhat is it?"}]
    turns += [{"role": "assistant", "content": "A cat."}]
    lines(folder, "frames.jsonl", {"messages": turns, "videos": ["clip"]})


@layout("several images a row", [chat("<image><image>What is it?", "A cat."), FIRST])
def several_images(folder: Path) -> None:
    held = [{"bytes": png(number), "path": f"{number}.png"} for number in range(2)]
    asked = {"question": "What is it?", "answer": "A cat."}
    first = {**asked, "image_1": held[0], "image_2": held[1]}
    parquet(folder, "images.parquet", first, {**asked, "image_1": held[0], "image_2": None})


@layout("COCO", [chat("<image>", said) for said in ("A dog.", "A cat.", "Two.")])
def coco(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    images = [{"id": 7, "file_name": "a.png", "height": 80}, {"id": 9, "file_name": "b.png"}]
    annotations = [
        {"id": number, "image_id": image, "caption": said}
        for number, (image, said) in enumerate([(9, "A dog."), (7, "A cat."), (7, "Two.")])
    ]
    held = {"info": {"year": 2014}, "annotations": annotations, "images": images, "licenses": []}
    (folder / "captions_train.json").write_text(json.dumps(held))


@layout("records in an object", [FIRST, FIRST])
def in_an_object(folder: Path) -> None:
    put_images(folder, "a.png")
    record = {"question": "What is it?", "answer": "A cat.", "image": "a.png"}
    (folder / "vqa.json").write_text(
        json.dumps({"info": {"year": 2014}, "questions": [record, record]})
    )


@layout("documents", DOCUMENTS)
def documents(folder: Path) -> None:
    records = [{"text": text, "id": number} for number, text in enumerate(["It was.", *ODD])]
    lines(folder, "docs.jsonl", *records)


@layout("documents in Parquet", DOCUMENTS[::2])
def documents_in_parquet(folder: Path) -> None:
    row = {"id": "<urn:uuid:1>", "url": "http://x/a.html", "language_score": 0.9}
    rows = [{"text": text, **row} for text in ("It was.", ODD[1])]
    parquet(folder, "000_00000.parquet", *rows)


@layout("documents of another name", [f"def[[ f():\n    pass\n{END}"])
def other_name(folder: Path) -> None:
    lines(folder, "code.jsonl", {"content": "def f():\n    pass\n", "lang": "Python"})


@layout("documents in tars", [f"It[[ was.{END}", f"Ze[[ile\r\né{END}"])
def tar_documents(folder: Path) -> None:
    texts = ["It was.", "Zeile\r\né"]
    members = [(f"{number}.txt", text.encode()) for number, text in enumerate(texts)]
    (folder / "docs.tar").write_bytes(tar_of(members))


@layout(
    "OBELICS",
    [
        f"One[[:]]<image>[[Two.\n\n{END}",
        f"<image><image>[[ end]]<image>[[{END}",
        f"Al[[one{END}",
        f"<image>[[é{END}",
    ],
)
def obelics(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    lines(
        folder,
        "obelics.jsonl",
        {"texts": ["One:", None, "Two.\n\n"], "images": [None, "a.png", None], "metadata": "[]"},
        {"texts": [None, None, " end", None], "images": ["a.png", "b.png", None, "b.png"]},
        {"texts": ["Alone"], "images": [None]},
        {"texts": ["", "é"], "images": ["b.png", None]},
    )


@layout(
    "MMC4",
    [
        f"<image>[[One. ]]<image><image>[[Two.{END}",
        f"One[[.  Two.{END}",
    ],
)
def mmc4(folder: Path) -> None:
    put_images(folder, "a.png", "b.png")
    image = {"raw_url": "http://x/a.png", "matched_sim": 0.3, "face_detections": None}
    infos = [
        {**image, "image_name": "b.png", "matched_text_index": 1},
        {**image, "image_name": "a.png", "matched_text_index": 0},
        {**image, "image_name": "a.png", "matched_text_index": 1},
    ]
    lines(
        folder,
        "mmc4.jsonl",
        {"text_list": ["One.", "Two."], "image_info": infos, "url": "http://x"},
        {"text_list": ["One.", "", "Two."], "image_info": []},
    )


USER = {"role": "user", "content": "Which?"}
GOOD = {"role": "assistant", "content": "This."}
BAD = {"role": "assistant", "content": "That 漢字."}


_BRIEF = "<|im_start|>system\nBe brief.<|im_end|>\n"


@layout(
    "TRL, texts",
    [
        chat("Which?", "This."),
        chat("<image>Which?", "This."),
        chat("Which?\nSay.", "This.", system=_BRIEF),
    ],
)
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


@layout("TRL, turns", [chat("<image>Which?", "That 漢字."), chat("<image>Which?", "This.")])
def trl_turns(folder: Path) -> None:
    content = [{"type": "image", "text": None}, {"type": "text", "text": "Which?"}]
    asked = [{"role": "user", "content": content}]
    said = [[{"type": "text", "text": str(turn["content"])}] for turn in (GOOD, BAD)]
    good, bad = ([{"role": "assistant", "content": parts}] for parts in said)
    images = [{"bytes": png(), "path": None}]
    record: dict[str, Any] = {"prompt": asked, "chosen": good, "rejected": bad, "images": images}
    parquet(folder, "turns.parquet", record, {**record, "chosen": bad, "rejected": good})


@layout(
    "TRL, conversations", [chat("Which?", "That 漢字.")] * 3 + [chat(*["Which?", "That 漢字."] * 2)]
)
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


@layout("LLaMA-Factory's pairs", [chat(ASKED, "This.")])
def llama_factory(folder: Path) -> None:
    put_images(folder, "a.png")
    record = {
        "conversations": [{"from": "human", "value": "<image>\nWhat is it?"}],
        "chosen": {"from": "gpt", "value": "This."},
        "rejected": {"from": "gpt", "value": "That."},
    }
    (folder / "ranking.json").write_text(json.dumps([{**record, "images": ["a.png"]}]))


@layout(
    "ms-swift's pairs",
    [chat("Which?", "That."), chat("Which?", "That 漢字."), chat("Which?", "That.")],
)
def ms_swift(folder: Path) -> None:
    lines(
        folder,
        "swift.jsonl",
        {"messages": [USER, GOOD], "rejected_response": "That."},
        {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
        {"prompt": "Which?", "response": "This.", "rejected_response": "That."},
    )
