"""Samples that are made up, to compare a processor on: what templates and processors treat in their
own ways (white space, no text, special tokens, images of several shapes) is seldom in any one data
set.

They are a function of the processor and of the kind of sample alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from packidx.encode.probe.blanks import noise, random_tuples
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import DOCUMENT, INTERLEAVED, KINDS
from packidx.processor.kinds import CALLS, EMPTY, LISTS, NO_TOOLS, REASONING, TOOLS, TURNS
from packidx.records.conversation import Conversation, Media, Turn
from packidx.records.dialects.parse import OF_TEMPLATES

_TEXTS = (
    "hello",
    " \n What is it?\n\n",
    "漢字 한글 👩‍👩‍👧 naïve é",
    "word " * 700,
    "In 2026, 1234567 + 89.01 = ٣٤५! \t\tx\r\ny\r\n\r\n  z...?!——«--==>>",
    "e\u0301o\u0308 \u1100\u1161\u11a8 \u00a0\u2009\u200b\u200d\ufeff\u2028\x00\x7f \ue000"
    "\U000f0000 ﬁ Ⅷ ½",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U000323b0\u088f\U00011db1 لا नि ไทย İıſßẞ " + "x" * 300,
    "I'm we'LL don't _under__score CamelCase/path\\x {\"a\": [1]} ▁ Ġ </s> [UNK] ",
)
"""What tokenizers differ in: digits, punctuation, white space of all kinds, marks that combine,
letters of the latest Unicode, what joins and what is of nobody, long words."""
_BESIDE = (
    "\n",
    " ",
    "\n\n",
    "What is this?",
    "\nWhere?\n\n",
    " and this ",
    "漢字",
    "1\n2",
    "<",
    ">",
)
_NUM_MIXED = 4
"""Samples of each combination of kinds."""
_SIZES = ((64, 48), (337, 211), (300, 100), (90, 400))  # width, height


def made_up(files: ProcessorFiles, kind: str) -> Iterator[Conversation]:
    """Samples of one kind: texts of all sorts, or media of several shapes among texts."""
    base, *words = kind.split(", ")
    for number, talk in enumerate(_plain(files, base)):
        yield _with(talk, words, number)


def _plain(files: ProcessorFiles, base: str) -> Iterator[Conversation]:
    vision = files.vision
    media = [name for name in KINDS if name in base]
    if files.is_known:  # videos of its family are compared in the project's tests
        media = [name for name in media if name == "image"]
    if base.startswith((DOCUMENT, INTERLEAVED)):
        yield from _documents(files, media)
    elif vision is not None and media and files.is_known:
        images = [Media("image", Image.new("RGB", size)) for size in _SIZES]
        for image in images:
            yield Conversation((Turn("user", (image, "\nWhat is it? ")),))
        yield Conversation((Turn("user", ("One: ", images[0], " two:\n", images[1])),))
    elif vision is not None and media:
        rate = getattr(vision, "sampling_rate", 0)
        tuples = {name: random_tuples(name, rate) for name in media}
        if len(media) > 1:
            yield from _random(list(_mixed(tuples)))
        else:
            [(name, several)] = tuples.items()
            yield from _random([[(name, shape) for shape in shapes] for shapes in several])
    else:
        for text in _texts(files):
            yield Conversation((Turn("user", (text,)),))
            yield Conversation((Turn("user", (text,)), Turn("assistant", (text,))))
        yield Conversation((Turn("system", ("Be brief.",)), Turn("user", ("?",))))


def _with(talk: Conversation, words: Sequence[str], number: int) -> Conversation:
    """A sample with what else a kind's messages have; by its number in one or another way."""
    turns = list(talk.turns)
    if REASONING in words or CALLS in words:
        extra: dict[str, Any] = {}
        if REASONING in words:
            extra["reasoning_content"] = "Let me think.\n"
        if CALLS in words:
            asked = {"name": "look", "arguments": {"place": "Łódź", "n": 2}}
            extra["tool_calls"] = [{"type": "function", "function": asked}]
        turns.append(Turn("assistant", ("One moment.",) if number % 2 else (), extra))
    for word in words:
        if word.endswith(TURNS):
            role = word.removesuffix(TURNS)
            own = {"role": role} if role in OF_TEMPLATES else {}
            turns.append(Turn(OF_TEMPLATES.get(role, role), ('{"sun": true}',), own))
    if len(turns) > len(talk.turns):
        turns.append(Turn("assistant", ("Done.",)))
    if EMPTY in words:
        turns.append(Turn("user", ("",) if number % 2 else ()))
    if LISTS in words:
        listed = turns[: 1 + number % 2] if number % 3 == 2 else turns
        turns = [replace(turn, text_as_list=any(turn is each for each in listed)) for turn in turns]
    tools = None if NO_TOOLS not in words else list[Any]()
    if TOOLS in words:
        shape = {"type": "object", "properties": {"place": {"type": "string"}}}
        tool = {"name": "look", "description": "Looks.", "parameters": shape}
        tools = [{"type": "function", "function": tool}]
    return replace(talk, turns=tuple(turns), tools=tools)


def _texts(files: ProcessorFiles) -> list[str]:
    special = _special(files)
    return [*_TEXTS, *("a".join(["", *special, ""]), " ".join(["1", *special, "."]))]


def _documents(files: ProcessorFiles, media: Sequence[str]) -> Iterator[Conversation]:
    """Documents of text alone, or with images before, behind and beside each other."""
    if not media:
        for text in _texts(files):
            yield _document(text)
        return
    first, second, third, last = (Media("image", Image.new("RGB", size)) for size in _SIZES)
    yield _document(first, "One.")
    yield _document("One:\n", first, second, " and two.\n\n", third)
    yield _document(" \n漢字", last, "\nof it ", "all.")


def _document(*parts: str | Media) -> Conversation:
    return Conversation((Turn("assistant", parts),), is_document=True)


def _special(files: ProcessorFiles) -> list[str]:
    """Two special tokens that stand for no medium."""
    assert files.template is not None
    vision = files.vision
    kept = set() if vision is None else {*vision.placeholders.values()}
    kept |= set() if vision is None else {*vision.feature_tokens.values()}
    return [token for token in files.template.control_tokens if token not in kept][:2]


def _mixed(tuples: Mapping[str, Sequence[tuple[str, ...]]]) -> Iterator[list[tuple[str, str]]]:
    """(kind, shape) of the media of samples that have all of these kinds, in random order."""
    rng = random.Random(len(tuples))
    for number in range(_NUM_MIXED):
        media = [(kind, shape) for kind in tuples for shape in tuples[kind][number]]
        rng.shuffle(media)
        yield media


def _random(samples: Sequence[Sequence[tuple[str, str]]]) -> Iterator[Conversation]:
    """Media of these kinds and shapes with random contents at random places of texts with all kinds
    of space."""
    rng = random.Random(repr(samples))
    for seed, media in enumerate(samples):
        parts: list[str | Media] = [
            noise(kind, shape, seed + at) for at, (kind, shape) in enumerate(media)
        ]
        for text in rng.choices(_BESIDE, k=rng.randrange(1, 5)):
            parts.insert(rng.randrange(len(parts) + 1), text)
        turns = [Turn("user", tuple(parts)), Turn("assistant", (rng.choice(_BESIDE),))]
        if seed % 3 == 0:
            turns.insert(0, Turn("system", ("Be brief.",)))
        if seed % 4 == 1:  # media in two turns
            cut = rng.randrange(len(parts))
            turns[0] = Turn("user", tuple(parts[cut:]), text_as_list=True)
            turns[:0] = [
                Turn("user", tuple(parts[:cut]), text_as_list=True),
                Turn("assistant", ("",)),
            ]
        yield Conversation(tuple(turns))
