"""Documents beside the real processors and tokenizers: the same ids, all text trained on."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from family_processors import family_processor
from other_processors import molmo2
from PIL import Image
from processors import FEW_RANKS, qwen_folders
from tokenizers.processors import TemplateProcessing

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord

IMAGES = [Image.new("RGB", size, (9, 90, 0)) for size in ((90, 60), (120, 80), (57, 99))]
TEXTS = ["It was.\n\n", "  \n", "漢字 한글 é\u0301", " <im", "the end"]


def qwen(tmp: Path) -> Any:
    folder = qwen_folders(tmp, FEW_RANKS)["qwen2.5-vl"]
    return transformers.AutoProcessor.from_pretrained(folder)


PROCESSORS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "qwen2.5-vl": (qwen, "<|vision_start|><|image_pad|><|vision_end|>"),
    "internvl": (lambda tmp: family_processor("internvl-small", tmp)[0], "<IMG_CONTEXT>"),
    "llava": (tiles.llava, "<image>"),
    "gemma3": (lambda tmp: tiles.gemma3(tmp, 224), "<start_of_image>"),
    "idefics3": (tiles.idefics3, "<image>"),
    "molmo2": (molmo2, "<|image|>"),  # which no family of ours knows
}
"""Processors, and what stands for an image in a document."""


@pytest.fixture(scope="module", params=list(PROCESSORS))
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, Path]:
    make, written = PROCESSORS[request.param]
    tmp = tmp_path_factory.mktemp(request.param)
    processor = make(tmp)
    processor.save_pretrained(tmp / "saved")
    return processor, written, tmp / "saved"


DOCUMENTS: list[tuple[Any, ...]] = [
    tuple(TEXTS),
    (IMAGES[0], *TEXTS[:2], IMAGES[1], IMAGES[2], TEXTS[2]),
    (TEXTS[4], IMAGES[2]),
]


def test_ids_are_the_processors_and_all_text_is_trained(made: tuple[Any, str, Path]) -> None:
    processor, written, folder = made
    encode = ProcessorEncoder(str(folder))
    tokenizer = processor.tokenizer
    end = tokenizer.eos_token_id
    for parts in DOCUMENTS:
        text = "".join(part if isinstance(part, str) else written for part in parts)
        images = [part for part in parts if not isinstance(part, str)]
        given: dict[str, Any] = {"images": [images]} if images else {}
        real = [int(ident) for ident in processor(text=[text], **given)["input_ids"][0]]
        texts = [part if isinstance(part, str) else None for part in parts]
        record = {"texts": texts, "images": [None if isinstance(p, str) else p for p in parts]}
        sample = encode(record)
        assert sample["input_ids"].tolist() == [*real, *([] if real[-1] == end else [end])]
        assert encode.count(record) == len(sample["input_ids"])
        labels = sample["labels"].tolist()
        trained = [ident for ident in labels if ident != -100]
        assert trained[-1] == end
        assert not {*encode.media_token_ids.values()} & set(trained)
        expected = unicodedata.normalize("NFC", "".join(p for p in parts if isinstance(p, str)))
        first = tokenizer.decode(real[:1])  # which nothing predicts
        kept = tokenizer.decode(trained[:-1])
        if not images or written != "<start_of_image>":  # whose line breaks join the text's
            assert kept == expected.removeprefix(first)


@pytest.mark.parametrize("text", [*TEXTS, "a<|im_end|>", "<|im_end|>b", "x" * 3000])
def test_a_tokenizer_alone(text: str, processors: Path) -> None:
    """With a BOS or an EOS of its own, and without either."""
    folder = processors / "qwen2.5-vl"
    for name, single in {"": "", "bos": "<|im_start|> $A", "eos": "$A <|im_end|>"}.items():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if single:
            ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in single.split()]
            special = [(token, ident) for token, ident in ids if token != "$A"]
            processing = TemplateProcessing(single=single, special_tokens=special)
            tokenizer.backend_tokenizer.post_processor = processing
        expected = list(tokenizer(text)["input_ids"])
        if expected[-1] != tokenizer.eos_token_id:
            expected.append(tokenizer.eos_token_id)
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
        sample = ProcessorEncoder(tokenizer)({"text": text})
        assert sample["input_ids"].tolist() == expected, name
        assert sample["labels"].tolist() == [-100, *expected[1:]]


def test_label_policies(processors: Path) -> None:
    """The end is an end of turn; what is said of turns is not about documents."""
    folder = processors / "qwen2.5-vl"
    record = {"text": "<think>It was.</think> So"}
    plain = ProcessorEncoder(folder)(record)["labels"].tolist()
    assert ProcessorEncoder(folder, "last")(record)["labels"].tolist() == plain
    assert ProcessorEncoder(folder, "no-eot")(record)["labels"].tolist() == [*plain[:-1], -100]


def test_what_is_refused(processors: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(processors / "qwen2.5-vl")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.eos_token = None
    with pytest.raises(BadRecord, match="has no eos_token, with which a document must end"):
        ProcessorEncoder(tokenizer)({"text": "a"})
    with pytest.raises(BadRecord, match="media_token_in_text"):
        ProcessorEncoder(processors / "qwen2.5-vl").count({"text": "a <|image_pad|> b"})
