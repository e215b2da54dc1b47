"""Small tokenizers of every make, saved for the classes that read them in their own ways, with
tokens named beside them; their counts against the ids that training makes.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from random_records import WORDS
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
from packidx.errors import SourceError

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
    *WORDS,
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
    train(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)
    return tokenizer


def train(tokenizer: Tokenizer, trainer: Any, **options: Any) -> None:
    made = trainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False, **options)
    tokenizer.train_from_iterator(CORPUS, made)


def metaspace_bpe() -> Tokenizer:
    """BPE over words that begin with ``▁``, with a token for each byte, as Llama 2's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(tokenizer, trainers.BpeTrainer, initial_alphabet=list("abcdefghijklmnopqrstuvwxyz"))
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
    train(tokenizer, trainers.UnigramTrainer, unk_token="<unk>")
    ends = [("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", None, ends)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(tokenizer, trainers.WordPieceTrainer)
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


def write(folder: Path, make: str, kind: str, stated: dict[str, Any], rng: random.Random) -> None:
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


def run(folder: Path, num: int, num_texts: int) -> Counter[str]:
    """Count rows that training builds, exact ones, and those that are exact and wrong."""
    tally = Counter[str]()
    for number, (make, kind, stated, rng) in enumerate(combinations(num)):
        place, source = folder / str(number), folder / f"{number}.jsonl"
        lengths = folder / f"{number}.lengths"
        write(place, make, kind, stated, rng)
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
