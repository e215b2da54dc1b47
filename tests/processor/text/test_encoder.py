"""Token borders from ids alone, by either engine, against `tokenizers`' own offsets."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors import qwen_folders
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from packidx.encode.loading import load_processor
from packidx.processor.counter import Expanded, locate_runs, mask_trained_tokens
from packidx.processor.text import gigatoken as engines
from packidx.processor.text.encoder import TextEncoder
from packidx.processor.text.gigatoken import Gigatoken, choose_engine

WORDS = ["the cat ", "sat\n\n", " on", "é", "e\u0301", "北京", "🙂", "\u0301", "<|im_end|>", "\r\n"]
WORDS += ["  ", "def f(x):\n\t", "1234", "<think>", "ﬁ", "\x00", "K", "ẞ", "<s>"]


def spaced() -> Tokenizer:
    """A SentencePiece-like tokenizer: ▁ for a space, single bytes where nothing else fits."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [*"\u2581abcdeht", "he", "the", "at", "cat", "the\u2581", "the\u2581cat"]
    merges = [
        ("h", "e"),
        ("t", "he"),
        ("a", "t"),
        ("c", "at"),
        ("the", "\u2581"),
        ("the\u2581", "cat"),
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def lower() -> Tokenizer:
    """A tokenizer whose normaliser changes how many bytes a character has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat"] * 9, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = qwen_folders(tmp_path_factory.getbasetemp() / "processors")["qwen2.5-vl"]
    qwen = load_processor(folder).tokenizer
    assert qwen is not None
    return {"qwen": qwen, "spaced": spaced(), "lower": lower()}


@pytest.fixture(scope="module")
def encoder(tokenizers: dict[str, Tokenizer]) -> TextEncoder:
    return TextEncoder(tokenizers["qwen"], Gigatoken(tokenizers["qwen"]))


def texts_of(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(count)]


def reference(tokenizer: Tokenizer, text: str, span: tuple[int, int]) -> set[int]:
    """Tokens that lie wholly in a span, or begin with a space before it, by an `Encoding`."""
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    low, high = span
    spaced = text[low - 1 : low] == " " and not text[low : low + 1].isspace()
    return {
        number
        for number, (start, end) in enumerate(offsets)
        if low - spaced <= start < end <= high and end > low
    }


@pytest.mark.parametrize("name", ["qwen", "spaced", "lower"])
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_borders_are_those_of_the_offsets(
    tokenizers: dict[str, Tokenizer], name: str, engine: str
) -> None:
    tokenizer = tokenizers[name]
    made, record = choose_engine(tokenizer, ["a"] if engine == "gigatoken" else [])
    assert (made is None) == (engine == "tokenizers" or name == "lower"), record  # a normalizer
    encoder = TextEncoder(tokenizer, made)
    rng = random.Random(1)
    texts = texts_of(0, 400)
    spans = []
    for text in texts:
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text) + 1, 4)))
        spans.append([(cuts[0], cuts[1]), (cuts[2], cuts[3])] if len(cuts) == 4 else [])
    adds = [rng.random() < 0.5 for _ in texts]
    batch = encoder.encode(texts, adds)
    first, last = encoder.borders(batch, texts, spans)
    owners = np.repeat(np.arange(len(texts)), [len(ranges) for ranges in spans])
    flat = [span for ranges in spans for span in ranges]
    found = 0
    for owner, span, low, high in zip(owners, flat, first, last, strict=True):
        start = batch.offsets[owner] + batch.prefix[owner]
        got = set(range(low - start, high - start))
        assert got == reference(tokenizer, texts[owner], span), (texts[owner], span)
        found += len(got)
    assert found > 400
    for number, (text, add) in enumerate(zip(texts, adds, strict=True)):
        own = batch.ids[batch.offsets[number] : batch.offsets[number + 1]]
        assert own.tolist() == tokenizer.encode(text, add_special_tokens=add).ids


@given(text=st.text(max_size=40), data=st.data())
def test_borders_of_any_text(
    tokenizers: dict[str, Tokenizer], encoder: TextEncoder, text: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    batch = encoder.encode([text], [False])
    first, last = encoder.borders(batch, [text], [[(start, end)]])
    expected = reference(tokenizers["qwen"], text, (start, end))
    assert set(range(first[0], last[0])) == expected


def test_most_texts_need_no_second_tokenization(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    exact = TextEncoder._offsets_of
    monkeypatch.setattr(
        TextEncoder, "_offsets_of", lambda self, *args: asked.append(args[2]) or exact(self, *args)
    )
    texts = ["plain", "北京 🙂 é", "e\u0301 is not composed"]
    encoder.borders(encoder.encode(texts, [False] * 3), texts, [[(0, 4)]] * 3)
    assert asked == texts[2:]


def test_an_engine_that_disagrees_is_not_taken(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizers["qwen"]
    assert choose_engine(tokenizer, texts_of(3, 50))[0] is not None
    assert choose_engine(tokenizer, [])[1]["reason"] == "little data"
    other = Gigatoken(tokenizers["spaced"])
    monkeypatch.setattr(engines, "Gigatoken", lambda _: other)
    made, record = choose_engine(tokenizer, ["the cat"])
    assert made is None and "other ids" in record["reason"]


@pytest.mark.parametrize(
    "text", ["\U000330df'a", "\U00010946'a", "\u034c\u0d3b", "\U000105d2\u0307"]
)
def test_letters_and_marks_that_one_engine_does_not_know(
    tokenizers: dict[str, Tokenizer], encoder: TextEncoder, text: str
) -> None:
    """Of Unicode 17, and a mark of Unicode 10 that is reordered with the one before it."""
    expected = tokenizers["qwen"].encode(text, add_special_tokens=False).ids
    assert encoder.fast is not None
    assert encoder.fast.encode([text])[0].tolist() != expected
    assert not encoder.fast.knows(text)
    assert encoder.encode([text], [False]).ids.tolist() == expected


@pytest.mark.slow
def test_every_character_has_the_ids_of_the_reference(
    tokenizers: dict[str, Tokenizer], encoder: TextEncoder
) -> None:
    """Every assigned character beside every kind of neighbour."""
    rng = random.Random(4)
    points = [n for n in range(0x20, 0x33500) if not 0xD800 <= n < 0xE000]
    texts = [
        "".join(
            rng.choice(["a", "1", " ", "\u0301", "\n", chr(rng.choice(points))]) + chr(point)
            for point in points[at : at + 8]
        )
        for at in range(0, len(points), 8)
    ]
    batch = encoder.encode(texts, [False] * len(texts))
    for number, text in enumerate(texts):
        own = encoder.encode([text], [False]).ids
        expected = tokenizers["qwen"].encode(text, add_special_tokens=False).ids
        assert own.tolist() == expected, ascii(text)
        inside = batch.ids[batch.offsets[number] : batch.offsets[number + 1]]
        assert inside.tolist() == expected


def test_what_is_never_trained(tokenizers: dict[str, Tokenizer]) -> None:
    """A sample's first token, feature tokens, and what the tokenizer puts around a text."""
    copy = Tokenizer.from_str(tokenizers["qwen"].to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 151643)]
    )
    encoder = TextEncoder(copy)
    text = "one <|image_pad|> two"
    items = [Expanded(text, ((0, len(text)),), ((7,),))] * 2
    batch = encoder.encode([text] * 2, [True, False])
    runs = locate_runs(batch, items, [copy.token_to_id("<|image_pad|>")])
    trained = batch.ids[np.flatnonzero(mask_trained_tokens(batch, encoder, items, runs))]
    words = [copy.id_to_token(ident) for ident in trained.tolist()]
    assert words == ["one", "Ġ", "Ġtwo"] + ["Ġ", "Ġtwo"]
