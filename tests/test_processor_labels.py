"""Label ranges equal the rule applied to every token's offsets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processors import qwen_folders
from random_records import WORDS
from tokenizers import Tokenizer, processors

from packidx.processor.labels import count_labels, expand_ranges, label_ranges
from packidx.processor.template import Rendered


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = qwen_folders(tmp_path_factory.getbasetemp() / "processors")["qwen3-vl"]
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def oracle(encoding, spans, media=()) -> list[int]:
    """Tokens wholly in a span, by all offsets."""
    inside = []
    for token, (start, end) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[token] or token in media:
            continue
        if any(low <= start and end <= high and start < high for low, high in spans):
            inside.append(token)
    return inside


def tokens_of(ranges: list[tuple[int, int]]) -> list[int]:
    return [token for start, end in ranges for token in range(start, end)]


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False))
def test_ranges_equal_the_rule(tokenizer: Tokenizer, rng: random.Random) -> None:
    text = "".join(rng.choices(WORDS, k=rng.randrange(0, 30)))
    cuts = sorted(rng.choices(range(len(text) + 1), k=2 * rng.randrange(0, 5)))
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=True))
    encoding = tokenizer.encode(text)
    ranges = label_ranges(encoding, Rendered(text, spans))
    got = tokens_of(ranges)
    assert got == sorted(set(got))
    # A composed character has its first character's offsets: cuts inside one are out of scope.
    covered = {at for start, end in encoding.offsets for at in range(start, end)}
    if all(cut in covered or cut == len(text) for cut in cuts):
        assert got == oracle(encoding, spans)
    assert count_labels(ranges) == len([token for token in got if token != 0])


@pytest.mark.parametrize(
    ("text", "span", "labels"),
    [
        ("<|im_start|>assistant\n\n\nfoo<|im_end|>\n", (22, 37), ["foo", "<|im_end|>"]),
        ("a🦜🏽<|im_end|>", (1, 13), None),
        ("x<|im_end|>", (1, 11), ["<|im_end|>"]),
        ("abc", (3, 3), []),
        ("hello", (0, 5), ["hello"]),
        ("hello world", (2, 11), ["Ġworld"]),
        ("hello world", (0, 9), ["hello"]),
    ],
)
def test_borders(tokenizer: Tokenizer, text: str, span: tuple[int, int], labels: list[str]) -> None:
    encoding = tokenizer.encode(text)
    got = tokens_of(label_ranges(encoding, Rendered(text, (span,))))
    assert got == oracle(encoding, [span])
    if labels is not None:
        assert [encoding.tokens[token] for token in got] == labels
    else:  # one character, several tokens: all of them
        assert len(got) == len(encoding) - 1 > 3


def test_media_and_added_tokens_never_count(tokenizer: Tokenizer) -> None:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 151643)]
    )
    text = "one <|image_pad|> two"
    encoding = copy.encode(text)
    at = encoding.char_to_token(4)
    ranges = label_ranges(encoding, Rendered(text, ((0, len(text)),)), [at])
    assert [encoding.tokens[token] for token in tokens_of(ranges)] == ["one", "Ġ", "Ġtwo"]
    assert ranges == [(1, 3), (4, 5)]
    assert expand_ranges(ranges, [at], [7]) == [(1, 3), (10, 11)]


def test_the_first_token_is_never_predicted() -> None:
    assert count_labels([(0, 5)]) == 4
    assert count_labels([(0, 1)]) == 0
    assert count_labels([(1, 3), (7, 9)]) == 4
