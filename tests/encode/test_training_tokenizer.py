"""What is counted is what training's own tokenizer and processor make, or is not called exact."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import transformers
from family_talks import WORDS as ODD
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer
from transformers.utils import logging

import packidx
from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.errors import BadRecord, SourceError

WORDS = (10, 50, 200)


@pytest.fixture
def folder(processors: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(processors / "qwen2.5-vl", tmp_path / "processor"))


def change(path: Path, **changes: Any) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))


def rows(source: Path, processor: Path, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """Of the table, and what came of comparing."""
    out = source.with_suffix(".lengths")
    options = {"workers": 1, **options}
    summary = estimate_lengths(str(source), out, processor=processor, **options)
    tables = [pq.read_table(path) for path in sorted(out.glob("part-*"))]
    return [row for table in tables for row in table.to_pylist()], summary.compared


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("num", "num_texts"), [(9, 12), pytest.param(60, 50, marks=pytest.mark.slow)]
)
def test_tokenizers_of_every_make_and_class(num: int, num_texts: int, tmp_path: Path) -> None:
    tally = run_trials(tmp_path / "trials", num, num_texts)
    assert tally["wrong"] == 0
    assert tally["exact"] >= 0.95 * tally["rows"] > 0


CUT = {
    "a window alone": ({"model_max_length": 70}, None, None),
    "truncation": ({"truncation": True, "model_max_length": 100}, None, 100),
    "a length": ({"max_length": 120}, None, 120),
    "both": ({"truncation": True, "max_length": 90}, None, 90),
    "in the file": (
        {},
        {"direction": "Right", "max_length": 80, "strategy": "LongestFirst", "stride": 0},
        80,
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_what_a_processor_cuts_is_rejected(case: str, folder: Path, tmp_path: Path) -> None:
    stated, in_file, limit = CUT[case]
    change(folder / "tokenizer_config.json", **stated)
    if in_file is not None:
        change(folder / "tokenizer.json", truncation=in_file)
    talks = [chat("word " * number) for number in WORDS]
    real = transformers.AutoProcessor.from_pretrained(folder)
    lengths = []
    for talk in talks:
        text = [{"type": "text", "text": talk["messages"][0]["content"]}]
        messages = [{"role": "user", "content": text}]
        built = real.apply_chat_template(messages, tokenize=True, return_dict=True)
        lengths.append(len(built["input_ids"][0]))
    found, _ = rows(write(tmp_path / "a.jsonl", talks), folder)
    kept = [row["length"] for row in found if row["method"] == "exact"]
    cut = [row["reason"] for row in found if row["status"] == "rejected"]
    assert load_processor(folder).limit == limit
    assert (kept, cut) == ((lengths, []) if limit is None else (lengths[:2], ["cut_off"]))
    fingerprints = {ProcessorEncoder(each).fingerprint() for each in (folder, real)}
    assert fingerprints == {load_processor(folder).fingerprint()}
    if limit is not None:
        with pytest.raises(BadRecord, match=f"leaves {limit}:"):
            ProcessorEncoder(folder)(talks[2])


PROCESSING = """
from transformers import Qwen2_5_VLProcessor
class MyProcessor(Qwen2_5_VLProcessor):
    def __call__(self, images=None, text=None, videos=None, **more):
        text = [text] if isinstance(text, str) else text
        text = [each + " and forty words more" * 8 for each in text]
        return super().__call__(images=images, text=text, videos=videos, **more)
"""


@pytest.mark.parametrize("family", ["Qwen2_5_VLProcessor", "MyProcessor"])
def test_code_of_its_own(family: str, folder: Path, tmp_path: Path) -> None:
    (folder / "processing_mine.py").write_text(PROCESSING)
    code = {"AutoProcessor": "processing_mine.MyProcessor"}
    change(folder / "preprocessor_config.json", auto_map=code, processor_class=family)
    (folder / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    source = write(tmp_path / "a.jsonl", [chat("Who?")])
    [row], compared = rows(source, folder)
    assert row["method"] == "heuristic" and "--trust-remote-code" in compared["reason"]
    alone = row["length"]
    [row], compared = rows(source, folder, trust_remote_code=True)
    assert (row["method"], row["length"]) == ("exact", alone + 40), compared
    built = ProcessorEncoder(folder, trust_remote_code=True)(chat("Who?"))
    assert len(built["input_ids"]) == row["length"]
    manifest = json.loads((source.with_suffix(".lengths") / "manifest.json").read_bytes())
    assert manifest["options"]["trust_remote_code"] is True
    assert rows(source, folder)[0][0]["method"] == "heuristic"  # nothing of it is taken over


TOKENIZING = """
from transformers import Qwen2Tokenizer
class MyTokenizer(Qwen2Tokenizer):
    def apply_chat_template(self, conversation, tools=None, **more):
        more_turns = [] if tools is None else [{"role": "user", "content": "You have tools."}]
        return super().apply_chat_template(conversation + more_turns, tools=tools, **more)
"""


def test_records_of_a_tokenizer_with_code_of_its_own_are_built(
    folder: Path, tmp_path: Path
) -> None:
    """A kind that comes behind all records that the parent reads, too."""
    for path in folder.glob("*processor_config.json"):
        path.unlink()
    (folder / "tokenization_mine.py").write_text(TOKENIZING)
    template = folder / "chat_template.jinja"
    template.write_text("{% if tools %}{{ tools | tojson }}{% endif %}" + template.read_text())
    code = {"AutoTokenizer": [None, "tokenization_mine.MyTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=code, tokenizer_class="MyTokenizer")
    real = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    plain = [chat(f"Who is number {number}?") for number in range(10)]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    for name, records in {
        "plain": plain,
        "tools": [{**record, "tools": tools} for record in plain],
        "behind": [*plain * 60, chat("What?", tools=tools)],
    }.items():
        source = write(tmp_path / f"{name}.jsonl", records)
        for workers in (1, 2):
            options = {"trust_remote_code": True, "workers": workers, "fresh": True}
            found, compared = rows(source, folder, **options)
            for row, record in zip(found, records, strict=True):
                built = real.apply_chat_template(
                    record["messages"], tools=record.get("tools"), return_dict=True
                )
                assert (row["length"], row["method"]) == (len(built["input_ids"]), "exact")
                assert row["detail"] == "built by the processor"
        if name != "plain":
            differing = {**compared.get("built", {}), **compared.get("rare", {})}
            assert "text, tools" in differing


CORPUS = [
    "the quick brown fox jumps over the lazy dog, it's 12345 times 67.89 and they'll see it",
    "Wer reitet so spät durch Nacht und Wind? naïve café — «garçon» 漢字 かな 한글 👩‍👩‍👧 🏳️‍🌈",
    "def f(x):\n\treturn x == 1 or x >= 2  # comment\r\n{'key': [1, 2, 3]}; /usr/bin/env ... -- !",
] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
SPECIAL += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATES = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}{{ bos_token }}[INST] {{ m.content | trim }} [/INST]{{ eos_token }}"
    "{% endfor %}",
]
BPE = ("PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2Tokenizer", "CohereTokenizer")
BPE += ("LlamaTokenizer", "GemmaTokenizerFast", "RobertaTokenizerFast", "NoSuchTokenizer")
CLASSES = {
    "unigram": ("PreTrainedTokenizerFast", "T5Tokenizer", "XLMRobertaTokenizer"),
    "wordpiece": ("PreTrainedTokenizerFast", "BertTokenizer"),
}
"""Make → the classes that can load it, where these are not those of `BPE`."""
PIECES = [
    *ODD,
    *("3.14159", "²³½", "٣٤٥", "Ⅷ", "!!!???...", "——«»--==>>", "\ue000", "\U000323b0", "İıſß"),
    *("Antidisestablishmentarianism" * 8, "they'LL", "snake_case", "CamelCase", "the quick"),
    *("<x1>", "<x2>", "<s>", "</s>", "<unk>", "[UNK]", "<0x0A>", "▁", "Ġ", "\u2028", "\x85"),
]


def byte_level(split: str | None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(split), "isolated"))
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train_tokenizer(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)
    return tokenizer


def train_tokenizer(tokenizer: Tokenizer, trainer: Any, **options: Any) -> None:
    made = trainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False, **options)
    tokenizer.train_from_iterator(CORPUS, made)


def metaspace_bpe() -> Tokenizer:
    """BPE over words that begin with ``▁``, with a token for each byte, as Llama 2's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train_tokenizer(
        tokenizer, trainers.BpeTrainer, initial_alphabet=list("abcdefghijklmnopqrstuvwxyz")
    )
    tokenizer.pre_tokenizer = None
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    return Tokenizer.from_str(json.dumps(data))


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train_tokenizer(tokenizer, trainers.UnigramTrainer, unk_token="<unk>")
    ends = [("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", None, ends)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train_tokenizer(tokenizer, trainers.WordPieceTrainer)
    return tokenizer


MAKES = {
    "gpt2": lambda: byte_level(None),
    "qwen2": lambda: byte_level(QWEN2, continuing_subword_prefix="", end_of_word_suffix=""),
    "metaspace": metaspace_bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


def combinations(num: int) -> Iterator[tuple[str, str, dict[str, Any], random.Random]]:
    """`num` makes, each with a class and what ``tokenizer_config.json`` states; always the same."""
    rng = random.Random(27)
    for number in range(num):
        make = list(MAKES)[number % len(MAKES)]
        stated = {
            "bos_token": "<s>",
            "eos_token": rng.choice(["</s>", "<|endoftext|>", "<|im_end|>"]),
            "unk_token": rng.choice(["<unk>", None]),
            "pad_token": rng.choice(["<pad>", None]),
            "add_prefix_space": rng.choice([True, False]),
            "add_bos_token": rng.choice([True, False]),
            "model_max_length": 64,
        }
        kept = {k: v for k, v in stated.items() if rng.random() < (0.15 if "add_" in k else 0.7)}
        yield make, rng.choice(CLASSES.get(make, BPE)), kept, rng


def write_tokenizer(
    folder: Path, make: str, kind: str, stated: dict[str, Any], rng: random.Random
) -> None:
    """Save a tokenizer; two more tokens may be named in its own file and beside it."""
    tokenizer = MAKES[make]()
    first = tokenizer.get_vocab_size(with_added_tokens=True)
    flags = {name: rng.random() < 0.3 for name in ("lstrip", "rstrip", "single_word", "normalized")}
    decoder = {
        str(first + at): {"content": token, "special": at == 0, **flags}
        for at, token in enumerate(("<x1>", "<x2>"))
    }
    named = [
        {},
        {"added_tokens_decoder": decoder},
        {"additional_special_tokens": ["<x1>", "<x2>"]},
        {"extra_special_tokens": {"image_token": "<x1>", "other_token": "<x2>"}},
        {"image_token": "<x1>", "mask_token": "<x2>"},
    ]
    if rng.random() < 0.5:
        tokenizer.add_tokens(
            [AddedToken("<x1>", single_word=True), AddedToken("<x2>", lstrip=True)]
        )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": kind, **stated, **rng.choice(named)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(rng.choice(TEMPLATES))


def real_lengths(folder: Path, talks: list[Any]) -> list[int | None] | None:
    """Lengths that training has. None if it cannot load the folder or build the sample."""
    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception:
        return None
    lengths: list[int | None] = []
    for talk in talks:
        try:
            built = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True)
            lengths.append(len(built["input_ids"]))
        except Exception:
            lengths.append(None)
    return lengths


def run_trials(folder: Path, num: int, num_texts: int) -> Counter[str]:
    """Count rows that training builds, exact ones, and those that are exact and wrong."""
    tally = Counter[str]()
    for number, (make, kind, stated, rng) in enumerate(combinations(num)):
        place, source = folder / str(number), folder / f"{number}.jsonl"
        lengths = folder / f"{number}.lengths"
        write_tokenizer(place, make, kind, stated, rng)
        texts = [" a <x1> b<x2>c <x1>\n<x2>", "", "  leading", "trailing \n"]
        texts += ["".join(rng.choices(PIECES, k=rng.randrange(1, 12))) for _ in range(num_texts)]
        talks = [
            [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
            for text in texts
        ]
        source.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        real = real_lengths(place, talks)
        try:
            packidx.estimate_lengths(str(source), lengths, processor=str(place), workers=1)
        except SourceError as error:
            assert real is None, (make, kind, stated, error)
            continue
        rows = pq.read_table(next(lengths.glob("part-*"))).to_pylist()
        for row, length in zip(rows, real or [None] * len(rows), strict=True):
            is_exact = row["status"] == "ok" and row["method"] == "exact"
            tally["rows"] += length is not None
            tally["exact"] += is_exact
            if is_exact and length is not None and length != row["length"]:
                tally["wrong"] += 1
                print("WRONG", number, make, kind, stated, row)
    return tally
