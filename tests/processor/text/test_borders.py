"""Tokens that lie wholly in a span are the ones that the tokenizer's own offsets say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors import qwen_folders
from random_records import WORDS
from tokenizers import Tokenizer, processors

from packidx.processor.text.encoder import TextEncoder
from packidx.processor.text.sequence import Expanded, locate_runs, trained_tokens
from packidx.processor.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = qwen_folders(tmp_path_factory.getbasetemp() / "processors")["qwen3-vl"]
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=["by what ids spell", "by offsets"])
def encoder(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> TextEncoder:
    made = TextEncoder(tokenizer)
    if request.param == "by what ids spell":
        made.warm()
    else:
        made.vocabulary = Lazy(tokenizer)
    return made


class Lazy(Vocabulary):
    """One that never has a table of all tokens."""

    @property
    def token_bytes(self) -> None:  # type: ignore[override]
        return None


def oracle(encoding, spans) -> list[int]:
    """Tokens wholly in a span, by all offsets."""
    return [
        token
        for token, (start, end) in enumerate(encoding.offsets)
        if any(low <= start and end <= high and start < high for low, high in spans)
    ]


def inside(encoder: TextEncoder, text: str, spans) -> list[int]:
    batch = encoder.encode([text], [False])
    starts, ends = encoder.borders(batch, [text], [spans])
    return [n for a, b in zip(starts.tolist(), ends.tolist(), strict=True) for n in range(a, b)]


@given(st.randoms(use_true_random=False))
def test_borders_equal_the_rule(
    encoder: TextEncoder, tokenizer: Tokenizer, rng: random.Random
) -> None:
    text = "".join(rng.choices(WORDS, k=rng.randrange(0, 30)))
    cuts = sorted(rng.choices(range(len(text) + 1), k=2 * rng.randrange(0, 5)))
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=True))
    got = inside(encoder, text, spans)
    assert got == sorted(set(got))
    # A composed character has its first character's offsets: cuts inside one are out of scope.
    encoding = tokenizer.encode(text)
    covered = {at for start, end in encoding.offsets for at in range(start, end)}
    if all(cut in covered or cut == len(text) for cut in cuts):
        assert got == oracle(encoding, spans)


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
def test_borders(
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    text: str,
    span: tuple[int, int],
    labels: list[str] | None,
) -> None:
    encoding = tokenizer.encode(text)
    got = inside(encoder, text, [span])
    assert got == oracle(encoding, [span])
    if labels is not None:
        assert [encoding.tokens[token] for token in got] == labels
    else:  # one character, several tokens: all of them
        assert len(got) == len(encoding) - 1 > 3


def test_what_is_never_trained(tokenizer: Tokenizer) -> None:
    """A sample's first token, feature tokens, and what the tokenizer puts around a text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 151643)]
    )
    encoder = TextEncoder(copy)
    text = "one <|image_pad|> two"
    items = [Expanded(text, ((0, len(text)),), ((7,),))] * 2
    batch = encoder.encode([text] * 2, [True, False])
    runs = locate_runs(batch, items, [copy.token_to_id("<|image_pad|>")])
    trained = batch.ids[np.flatnonzero(trained_tokens(batch, encoder, items, runs))]
    words = [copy.id_to_token(ident) for ident in trained.tolist()]
    assert words == ["one", "Ġ", "Ġtwo"] + ["Ġ", "Ġtwo"]


def test_few_tokens_are_found_without_a_table_and_many_with_one(tokenizer: Tokenizer) -> None:
    encoder = TextEncoder(tokenizer)
    encoder.vocabulary = Vocabulary(tokenizer)
    text = "one two three\n" * 20
    expected = inside(encoder, text, [(4, 200)])
    assert not encoder.vocabulary.knows_bytes
    for _ in range(1000):
        if encoder.vocabulary.knows_bytes:
            break
        assert inside(encoder, text, [(4, 200)]) == expected
    assert encoder.vocabulary.knows_bytes
    assert inside(encoder, text, [(4, 200)]) == expected
