"""Counts where not everything is known, and the ways a sample is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from counting import count_row as count
from counting import count_rows, is_row

from packidx.encode.loading import load_processor
from packidx.errors import BadRecord
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import Conversation, Media, Turn

IMAGE, VIDEO = Media("image"), Media("video")


def chat(*parts: str | Media, answer: str = "Yes.", **more: Any) -> Conversation:
    return Conversation((Turn("user", parts), Turn("assistant", (answer,))), **more)


def test_an_exact_row(processors: Path) -> None:
    counter = ConversationCounter(load_processor(processors / "qwen2.5-vl"))
    row = count(counter, chat("hi ", IMAGE, "what?", IMAGE), (300, 400), (56, 56))
    assert is_row(row)
    assert row.method == "exact"
    assert row.media == [
        {"kind": "image", "tokens": 154, "patches": 616, "t": 1, "h": 22, "w": 28, "at": 17},
        {"kind": "image", "tokens": 4, "patches": 16, "t": 1, "h": 4, "w": 4, "at": 175},
    ]
    assert (row.vision_patches, row.vision_cost) == (632, 616**2 + 16**2)
    assert (row.image_tokens, row.video_tokens, row.audio_tokens) == (158, 0, 0)
    assert row.length == row.text_tokens + 158
    assert row.label_tokens == 3  # Yes . <|im_end|>


def test_a_batch_is_its_samples(processors: Path) -> None:
    counter = ConversationCounter(load_processor(processors / "qwen3-vl"))
    samples = [
        (chat("a", IMAGE), [(100, 100)]),
        (chat("b <|image_pad|>"), []),
        (chat("c", IMAGE, IMAGE), [(1, 201), (50, 60)]),
        (chat("d"), []),
        (chat(IMAGE, "e"), [(640, 480)]),
    ]
    together = count_rows(counter, [c for c, _ in samples], [tuple(s) for _, s in samples])
    alone = [count(counter, c, *s) for c, s in samples]
    assert [repr(row) for row in together] == [repr(row) for row in alone]
    kinds = [row.reason if isinstance(row, BadRecord) else row.method for row in together]
    assert kinds == ["exact", "media_token_in_text", "aspect_ratio", "exact", "exact"]
    assert count_rows(counter, [], []) == []


def test_unknown_sizes_weaken_the_method(processors: Path) -> None:
    counter = ConversationCounter(load_processor(processors / "qwen3-vl"))
    exact = count(counter, chat("x", IMAGE), (320, 320))
    stated = count(counter, chat("x", Media("image", stated={"n_tokens": 77})), None)
    guessed = count(counter, chat("x", Media("image", stated={"n_tokens": 77}), IMAGE), None, None)
    video = count(counter, chat("x", VIDEO), None)
    assert is_row(exact) and is_row(stated) and is_row(guessed) and is_row(video)
    assert (stated.method, stated.image_tokens) == ("precomputed", 77)
    assert stated.text_tokens == exact.text_tokens
    assert (stated.vision_patches, stated.vision_cost) == (None, None)
    assert stated.media[0]["at"] is None and stated.media[0]["h"] is None
    assert (guessed.method, guessed.image_tokens) == ("heuristic", 577)
    assert (video.method, video.video_tokens) == ("heuristic", 500)
    assert video.label_tokens == exact.label_tokens == 3


@pytest.mark.parametrize(
    ("talk", "sizes", "expected"),
    [
        (chat("12345678", IMAGE, answer="9"), (None,), ("heuristic", 3, 503, None)),
        (chat("12345678", text_tokens=40), (), ("precomputed", 40, 40, 0)),
        (
            chat("1", Media("image", stated={"n_tokens": 9}), text_tokens=40),
            ((8, 8),),
            ("precomputed", 40, 49, None),
        ),
    ],
)
def test_without_a_processor(talk: Conversation, sizes: Any, expected: tuple[Any, ...]) -> None:
    counter = ConversationCounter(None)
    assert counter.fingerprint() is None
    row = count(counter, talk, *sizes)
    assert is_row(row) and row.label_tokens is None
    assert (row.method, row.text_tokens, row.length, row.vision_patches) == expected


@pytest.mark.parametrize("image", [IMAGE, Media("image", stated={"n_tokens": 9})])
def test_a_tokenizer_alone_takes_no_media(processors: Path, tmp_path: Path, image: Media) -> None:
    """Also where its tokens are stated: the text around it cannot be built."""
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(processors / "qwen2.5-vl" / file, tmp_path)
    row = count(ConversationCounter(load_processor(tmp_path)), chat("x", image), (64, 64))
    assert isinstance(row, BadRecord)
    assert row.reason == "unsupported_media" and str(tmp_path) in row.detail


@pytest.mark.parametrize(
    ("size", "reason"), [((1, 201), "aspect_ratio"), ((0, 5), "broken_media"), ((1, 200), None)]
)
def test_impossible_sizes(processors: Path, size: tuple[int, int], reason: str | None) -> None:
    row = count(
        ConversationCounter(load_processor(processors / "qwen3-vl")), chat("x", IMAGE), size
    )
    assert (row.reason if isinstance(row, BadRecord) else None) == reason
    if isinstance(row, BadRecord):
        assert f"{size[1]}x{size[0]}" in row.detail
