"""Our counts beside the real processor's: only what was found equal may be called exact.

Some records of the data are built by transformers' own processor and by ours, and some samples that
are made up: what templates and processors treat in their own ways (white space, no text, special
tokens, images of several shapes) is seldom among the first records of a data set.

What was found equal is kept in the cache: to load transformers and a processor takes seconds. The
name is of all files that the real processor may read, of the versions of all that built the
samples, of the kind and, of a processor where nothing else speaks for it, of the data's records.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np

from packidx.encode.blanks import medium_of, random_tuples, shape_of
from packidx.encode.imports import builders, load_real
from packidx.encode.media import info_of
from packidx.encode.whole import NotBuilt, build_sample, ids_of, quiet
from packidx.errors import BadRecord, MissingExtraError, SourceError
from packidx.io.cache import kept
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import (
    CALLS,
    DOCUMENT,
    EMPTY,
    INTERLEAVED,
    KINDS,
    LISTS,
    NEEDS_TORCHVISION,
    NO_TOOLS,
    REASONING,
    TEXT,
    TOOLS,
    TURNS,
    Compared,
    sample_kind,
)
from packidx.processor.folder import folder_content
from packidx.records.conversation import Conversation, Media, Turn
from packidx.records.dialects.parse import OF_TEMPLATES

_MOST_PATCHES = 1 << 17
"""Of a sample that is built to be compared: some 3 GB. A folder's `min_pixels` may ask for any."""


def judged(
    processor: ProcessorFiles, kinds: Iterable[str], talks: Sequence[Conversation] = ()
) -> Compared:
    """Return what comes, or came, of comparing samples of some kinds with the real processor's.

    Args:
        talks: records of the data, media opened, of these kinds; without any it depends on the
            processor and the kind alone, whichever process asks.
    """
    whose = None
    if processor.folder is not None:
        whose = [processor.fingerprint(), *builders(), *folder_content(processor.folder)]
    compared = Compared()
    for kind in sorted(kinds):
        given = [talk for talk in talks if sample_kind(talk) == kind]

        def is_certain(stated: dict[str, Any], has_records: bool = bool(given)) -> bool:
            """Return what could not be compared may be another time, and what differs on one's data
            says nothing of another's."""
            if has_records and stated["unequal"] and not processor.needs_proof:
                return False
            return stated["by"] is not None or stated["reason"] == NEEDS_TORCHVISION

        make = partial(_compared, processor, given, kind)
        if whose is None:
            stated = make()
        else:
            said = map(_stated, given if processor.needs_proof else ())
            stated = kept("compared", [*whose, kind, *said], make, is_certain)
        found = msgspec.convert(stated, Compared)
        if found.by is None:
            return found
        compared = compared.plus(found)
    if compared.by is not None and not compared.records:
        reason = next(iter(compared.unequal.values()), "none was made up")
        return Compared(reason=f"the processor builds no sample: {reason}")
    return compared


def _compared(
    processor: ProcessorFiles, talks: Sequence[Conversation], kind: str
) -> dict[str, Any]:
    return asdict(compare(processor, talks, [kind]))


def _stated(talk: Conversation) -> str:
    """All that a processor's tokens of it depend on."""
    turns = [
        (turn.role, turn.text_as_list, turn.extra)
        + tuple(
            part if isinstance(part, str) else (part.kind, info_of(part)) for part in turn.parts
        )
        for turn in talk.turns
    ]
    return repr((turns, talk.tools))


def compare(
    files: ProcessorFiles, talks: Sequence[Conversation], kinds: Iterable[str] = (TEXT,)
) -> Compared:
    """Compare our tokens with the real processor's, also on `talks`, whose media are opened.

    Args:
        kinds: kinds of which samples are made up and compared, besides those of `talks`.
    """
    with quiet():
        try:
            processor, by = _load(files)
        except (MissingExtraError, SourceError) as error:
            return Compared(reason=str(error))
        given: dict[str, list[Conversation]] = {kind: [] for kind in kinds}
        for talk in talks:
            given.setdefault(sample_kind(talk), []).append(talk)
        compared = Compared(by)
        for kind in sorted(given):
            samples = chain(made_up(files, kind), given[kind])
            compared = compared.plus(_compare(files, processor, by, kind, samples))
        return compared


def _compare(
    files: ProcessorFiles, processor: Any, by: str, kind: str, talks: Iterable[Conversation]
) -> Compared:
    """Return what came of samples of one kind."""
    counter = ConversationCounter(files)
    different = refused = too_large = None
    records = 0
    for talk in talks:
        try:
            ours = _own_ids(counter, talk)
        except NotBuilt as error:
            too_large = too_large or f"{_words(talk)} {error}"
            continue
        except Exception:  # tokenizers raises plain Exception
            continue  # it becomes a rejected row, or ends the run where it is counted
        end = files.end_of_text
        try:
            real = ids_of(
                build_sample(
                    processor, files.template_of(talk), talk, end_of_text=end, every_frame=True
                )
            )
        except (NotBuilt, BadRecord) as error:  # nothing was built that could be compared
            refused = refused or f"{_words(talk)} is not built by the processor ({error})"
            if talk.is_document:  # it may be one that no processor of this kind builds
                different = different or refused
            continue
        records += 1
        if ours != real and different is None:
            different = f"{_words(talk)} has {len(ours)} tokens, the processor's {len(real)}"
            if len(ours) == len(real):
                first = next(
                    at for at, pair in enumerate(zip(ours, real, strict=True)) if len({*pair}) > 1
                )
                different += f", and another one at {first}"
    different = different or (None if records else refused or too_large)
    if different is not None:
        return Compared(by, records, unequal={kind: different})
    if not records:
        return Compared(by, unbuilt=(kind,))
    return Compared(by, records, equal=(kind,))


def _words(talk: Conversation) -> str:
    """A sample, so that it can be found and tried again."""
    text = next((part for turn in talk.turns for part in turn.parts if isinstance(part, str)), "")
    sizes = [f"{medium.kind} {shape_of(medium)}" for medium in talk.media]
    return f"a sample ({', '.join([*sizes, repr(text[:40])])})"


def _load(files: ProcessorFiles) -> tuple[Any, str]:
    """The real processor, and what it is of; nothing is fetched."""
    name = "AutoTokenizer" if files.image_settings is None else "AutoProcessor"
    import transformers

    made = getattr(files.vision, "processor", None)  # of `ProbedMedia`
    made = made or load_real(str(files.folder), name, files.trusts_code)
    return made, f"transformers {transformers.__version__}"


def _own_ids(counter: ConversationCounter, talk: Conversation) -> list[int]:
    infos = [info_of(medium) for medium in talk.media]
    media = counter.count_media([talk], [infos])
    for error in media.errors.values():
        raise error
    patches = int(np.maximum(media.patches, media.tokens).clip(0).sum())
    if patches > _MOST_PATCHES:
        raise NotBuilt(f"is made into {patches:,} patches, too many to compare")
    _, batch, runs = counter.tokenize(talk, media)
    ids: list[int] = np.repeat(batch.ids, runs.repeats_of(batch)).tolist()
    return ids


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
_BEFORE, _BEHIND = (" ", "\n", "Where? ", "a\n\n"), (" ", "\n", " and this", "\n\nb")
"""White space that a processor may take away, directly beside a medium."""
_NUM_MIXED = 4
"""Samples of each combination of kinds."""


def made_up(files: ProcessorFiles, kind: str) -> Iterator[Conversation]:
    """Samples of one kind: texts of all sorts, or media of several shapes among texts."""
    base, *words = kind.split(", ")
    for number, talk in enumerate(_plain(files, base)):
        yield _with(talk, words, number)


def _plain(files: ProcessorFiles, base: str) -> Iterator[Conversation]:
    media = ["image"] if base == INTERLEAVED else [name for name in KINDS if name in base]
    talks = _with_texts(files)
    if media and files.vision is not None:
        rate = getattr(files.vision, "sampling_rate", 0)
        talks = _with_media({name: random_tuples(name, rate) for name in media})
    for talk in talks:
        if base.startswith((DOCUMENT, INTERLEAVED)):
            parts = tuple(part for turn in talk.turns for part in turn.parts if part)
            talk = Conversation((Turn("assistant", parts),), is_document=True)
        yield talk


def _with_texts(files: ProcessorFiles) -> Iterator[Conversation]:
    special = _special(files)
    texts = *_TEXTS, "a".join(["", *special, ""]), " ".join(["1", *special, "."])
    for text in texts:
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


def _special(files: ProcessorFiles) -> list[str]:
    """Two special tokens that stand for no medium."""
    assert files.template is not None
    vision = files.vision
    kept = set() if vision is None else {*vision.placeholders.values()}
    kept |= set() if vision is None else {*vision.feature_tokens.values()}
    return [token for token in files.template.control_tokens if token not in kept][:2]


def _with_media(tuples: Mapping[str, Sequence[tuple[str, ...]]]) -> Iterator[Conversation]:
    """Media of these kinds and shapes, in random order and with random contents, at random places
    of texts with all kinds of space."""
    rng = random.Random(repr(tuples))
    samples = zip(*tuples.values(), strict=False)
    for seed, shapes in enumerate(samples if len(tuples) == 1 else islice(samples, _NUM_MIXED)):
        media = [(kind, shape) for kind, own in zip(tuples, shapes, strict=True) for shape in own]
        rng.shuffle(media)
        parts: list[str | Media] = [
            medium_of(kind, shape, seed + at) for at, (kind, shape) in enumerate(media)
        ]
        for text in rng.choices(_BESIDE, k=rng.randrange(1, 5)):
            parts.insert(rng.randrange(len(parts) + 1), text)
        beside = rng.choice([at for at, part in enumerate(parts) if isinstance(part, Media)])
        parts[beside : beside + 1] = [rng.choice(_BEFORE), parts[beside], rng.choice(_BEHIND)]
        turns = [Turn("user", tuple(parts)), Turn("assistant", (rng.choice(_BESIDE),))]
        if seed % 3 == 0:
            turns.insert(0, Turn("system", ("Be brief.",)))
        if seed % 4 == 1:  # media in two turns
            cut = rng.randrange(len(parts))
            turns[0] = Turn("user", tuple(parts[cut:]), text_as_list=True)
            turns[:0] = [
                Turn("user", tuple(parts[:cut]), text_as_list=True),
                Turn("assistant", ("Yes.",)),
            ]
        yield Conversation(tuple(turns))
