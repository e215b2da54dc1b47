"""Small tokenizers of every make, saved with classes that read them in their own ways and tokens
named beside them in every form, and texts that show it; counted, and what training makes of them.

    python tests/helpers/tokenizer_trials.py FOLDER 200 50
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
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

CORPUS = [
    "the quick brown fox jumps over the lazy dog, it's 12345 times 67.89 and they'll see it",
    "Wer reitet so spät durch Nacht und Wind? naïve café — «garçon» 漢字 かな 한글 👩‍👩‍👧 🏳️‍🌈",
    "def f(x):\n\treturn x == 1 or x >= 2  # comment\r\n{'key': [1, 2, 3]}; /usr/bin/env ... -- !",
] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
SPECIAL += ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<mask>"]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATES = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}{{ bos_token }}[INST] {{ m.content | trim }} [/INST]{{ eos_token }}"
    "{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {{ eos_token }}{% endfor %}",
]
CLASSES = [
    *["PreTrainedTokenizerFast"] * 5,
    *("Qwen2Tokenizer", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast"),
    *("Qwen2Tokenizer", "Qwen2TokenizerFast", "CohereTokenizer", "CohereTokenizerFast"),
    *("GPTNeoXTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer"),
    *("GemmaTokenizerFast", "T5Tokenizer", "T5TokenizerFast", "BertTokenizer", "BertTokenizerFast"),
    *("XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "RobertaTokenizerFast", "CLIPTokenizer"),
    *("CodeGenTokenizerFast", "BloomTokenizerFast", "MBartTokenizerFast", "NoSuchTokenizer"),
]
BY_MAKE = {
    "unigram": ("PreTrainedTokenizerFast", "T5Tokenizer", "XLMRobertaTokenizer", "T5TokenizerFast"),
    "wordpiece": ("PreTrainedTokenizerFast", "BertTokenizer", "BertTokenizerFast"),
}
"""What others cannot be loaded as."""
NAMED = [*[""] * 4, "decoder", "additional", "extra list", "extra dict", "added", "map", "own name"]


def byte_level(split: str | None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(split), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)
    return tokenizer


def train(tokenizer: Tokenizer, trainer: Any, **options: Any) -> None:
    made = trainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False, **options)
    tokenizer.train_from_iterator(CORPUS, made)


def metaspace_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, trainers.BpeTrainer, initial_alphabet=list("abcdefghijklmnopqrstuvwxyz"))
    tokenizer.pre_tokenizer = None
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    for token in fallback:
        vocabulary.setdefault(token, len(vocabulary))
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
    "qwen2": lambda: with_nfc(
        byte_level(QWEN2, continuing_subword_prefix="", end_of_word_suffix="")
    ),
    "threes": lambda: byte_level(r"\p{N}{1,3}|[^\s\p{N}]+|\s+"),
    "metaspace": metaspace_bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


def with_nfc(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def name_tokens(tokenizer: Tokenizer, form: str, rng: random.Random) -> dict[str, Any]:
    """Files that name tokens beside the tokenizer's, by their names."""
    config: dict[str, Any] = {}
    files: dict[str, Any] = {"tokenizer_config.json": config}
    first = tokenizer.get_vocab_size(with_added_tokens=True)
    flags = {"lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3}
    flags |= {"single_word": rng.random() < 0.3, "normalized": rng.random() < 0.5}
    if form == "decoder":
        named = {"<x1>": True, "<x2>": False}
        config["added_tokens_decoder"] = {
            str(first + at): {"content": token, "special": special, **flags}
            for at, (token, special) in enumerate(named.items())
        }
    elif form == "additional":
        config["additional_special_tokens"] = ["<x1>", "<x2>"]
    elif form == "extra list":
        config["extra_special_tokens"] = ["<x1>", "<x2>"]
    elif form == "extra dict":
        config["extra_special_tokens"] = {"image_token": "<x1>", "other_token": "<x2>"}
    elif form == "added":
        files["added_tokens.json"] = {"<x1>": first, "<x2>": first + 1}
    elif form == "map":
        flagged = {"content": "<x1>", **flags}
        files["special_tokens_map.json"] = {"sep_token": flagged, "eos_token": "<x2>"}
    elif form == "own name":
        config["image_token"] = "<x1>"
        config["mask_token"] = "<x2>"
    return files


def combinations(num: int) -> Iterator[dict[str, Any]]:
    """So many, the same ones each time."""
    rng = random.Random(27)
    for number in range(num):
        make = list(MAKES)[number % len(MAKES)]
        yield {
            "make": make,
            "class": rng.choice(BY_MAKE.get(make, CLASSES)),
            "template": rng.randrange(len(TEMPLATES)),
            "named": rng.choice(NAMED),
            "within": rng.random() < 0.5,
            "stated": {
                key: value
                for key, value in {
                    "bos_token": "<s>",
                    "eos_token": rng.choice(["</s>", "<|endoftext|>", "<|im_end|>"]),
                    "unk_token": rng.choice(["<unk>", None]),
                    "pad_token": rng.choice(["<pad>", None]),
                    "add_prefix_space": rng.choice([True, False]),
                    "add_bos_token": rng.choice([True, False]),
                    "model_max_length": 64,
                    "model_type": rng.choice(["llama", "qwen2", "gpt2"]),
                }.items()
                if rng.random() < (0.15 if key.startswith(("add_", "model_type")) else 0.7)
            },
        }


def write(folder: Path, given: dict[str, Any], number: int) -> None:
    rng = random.Random(number)
    tokenizer = MAKES[given["make"]]()
    files = name_tokens(tokenizer, given["named"], rng)
    if given["within"]:  # the file has them, too, in its own way
        tokenizer.add_tokens(
            [AddedToken("<x1>", single_word=True), AddedToken("<x2>", lstrip=True)]
        )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    stated = dict(given["stated"])
    if model_type := stated.pop("model_type", None):
        files["config.json"] = {"model_type": model_type}
    files["tokenizer_config.json"] |= {"tokenizer_class": given["class"], **stated}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATES[given["template"]])


PIECES = [
    *(
        "1234567890",
        "3.14159",
        "²³½",
        "٣٤٥",
        "Ⅷ",
        "!!!???...",
        "——«»--==>>",
        "\t\t",
        "\r\n",
        "\n\n\n",
    ),
    *(
        "  ",
        " ",
        "e\u0301",
        "é",
        "o\u0308\u0323",
        "\u1100\u1161\u11a8",
        "각",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "🇩🇪",
    ),
    *("\ue000", "\U000f0000", "\U000323b0", "\u088f", "\U00011db1", "\u0378", "İıſß", "ﬁ"),
    *("Antidisestablishmentarianism" * 8, "漢字かな交じり文", "한글", "नमस्ते", "ไทย", "مرحبا"),
    *("I'm", "they'LL", "DON'T", "snake_case", "CamelCase", "a", "b", "the quick", "word"),
    *("<x1>", "<x2>", "<s>", "</s>", "<unk>", "[UNK]", "<|im_end|>", "<0x0A>", "▁", "Ġ", "\u00a0"),
    *("\u2028", "\u200b", "\ufeff", "\x00", "\x7f", "\u3000", "\x85", "\x1c"),
]


def texts(num: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    made = [" a <x1> b<x2>c <x1>\n<x2>", "", "  leading", "trailing \n"]
    while len(made) < num:
        made.append("".join(rng.choices(PIECES, k=rng.randrange(1, 12))))
    return made[:num]


def real_ids(folder: Path, talks: list[Any]) -> list[list[int] | None] | None:
    """What training has; None where that cannot be loaded, or cannot build a sample."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception:
        return None
    made: list[list[int] | None] = []
    for talk in talks:
        try:
            built = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True)
            made.append(list(built["input_ids"]))
        except Exception:
            made.append(None)
    return made


def judge(lengths: Path, real: list[list[int] | None] | None, tally: Counter[str]) -> list[int]:
    """Count what stands in a table; rows that are exact and wrong."""
    wrong = []
    for number, row in enumerate(pq.read_table(next(lengths.glob("part-*"))).to_pylist()):
        ids = None if real is None else real[number]
        tally["rows"] += ids is not None
        if row["status"] == "ok" and row["method"] == "exact":
            tally["exact"] += 1
            if ids is not None and len(ids) != row["length"]:
                wrong.append(number)
    tally["wrong"] += len(wrong)
    return wrong


def run(folder: Path, num: int, num_texts: int) -> Counter[str]:
    """Count rows, rows that are exact, and rows that are exact and wrong."""
    import packidx
    from packidx.errors import SourceError

    tally = Counter[str]()
    for number, combination in enumerate(combinations(num)):
        place = folder / str(number)
        write(place, combination, number)
        talks = [
            [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
            for text in texts(num_texts, number)
        ]
        source, lengths = folder / f"{number}.jsonl", folder / f"{number}.lengths"
        source.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        real = real_ids(place, talks)
        try:
            packidx.estimate_lengths(str(source), lengths, processor=str(place), workers=1)
        except SourceError as error:
            tally["not loaded"] += 1
            assert real is None, (combination, error)
            continue
        if wrong := judge(lengths, real, tally):
            print("WRONG", number, combination, wrong, file=sys.stderr)
    return tally


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
