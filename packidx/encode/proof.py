"""Our counts beside the real processor's: only what was found equal may be called exact.

Some records of the data are built by transformers' own processor and by ours, and some samples that
are made up: what templates and processors treat in their own ways (white space, no text, special
tokens, images of several shapes) is seldom among the first records of a data set.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from packidx.encode.imports import transformers_class
from packidx.encode.media import info_of
from packidx.encode.probe.blanks import noise, random_tuples, shape_of
from packidx.encode.whole import NotBuilt, build_sample, ids_of, quiet
from packidx.errors import BadRecord, LimitError, MissingExtraError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import (
    DOCUMENT,
    INTERLEAVED,
    KINDS,
    NEEDS_TORCHVISION,
    TEXT,
    Compared,
    mixed_name,
)
from packidx.records.conversation import Conversation, Media, Turn

_TEXTS = ("hello", " \n What is it?\n\n", "漢字 한글 👩‍👩‍👧 naïve é", "word " * 700)
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


def compare(
    files: ProcessorFiles, talks: Sequence[Conversation], documents: bool = False
) -> Compared:
    """Compare our tokens with the real processor's, also on `talks`, whose images are opened.

    Args:
        documents: whether documents are compared, too.
    """
    with quiet():
        try:
            processor, by = _load(files)
        except MissingExtraError as error:
            return Compared(reason=str(error))
        except Exception as error:  # transformers raises whatever the folder makes it stumble over
            if isinstance(error, ImportError) and "torchvision" in str(error).lower():
                return Compared(reason=NEEDS_TORCHVISION)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return Compared(reason=f"transformers cannot load it: {reason}")
        made_up = [*_made_up(files), *(_documents(files) if documents else ())]
        return _compare(files, processor, by, [*made_up, *talks])


def _compare(
    files: ProcessorFiles, processor: Any, by: str, talks: Sequence[Conversation]
) -> Compared:
    counter = ConversationCounter(files)
    assert files.template is not None
    same: dict[str, list[bool]] = {}
    detail = refused = None
    records = 0
    for talk in talks:
        try:
            ours = _own_ids(counter, talk)
        except (BadRecord, LimitError, MemoryError):
            continue  # it becomes a rejected row, or ends the run where it is counted
        end = files.end_of_text
        try:
            real = ids_of(
                build_sample(processor, files.template, talk, end_of_text=end, every_frame=True)
            )
        except NotBuilt as error:  # nothing was built that could be compared
            refused = refused or str(error)
            if talk.is_document:  # it may be one that no processor of this kind builds
                same.setdefault(_name(talk), []).append(False)
                detail = detail or f"{_words(talk)} is not built by the processor ({error})"
            continue
        records += 1
        same.setdefault(_name(talk), []).append(ours == real)
        if ours != real and detail is None:
            detail = f"{_words(talk)} has {len(ours)} tokens, the processor's {len(real)}"
            if len(ours) == len(real):
                first = next(
                    at for at, pair in enumerate(zip(ours, real, strict=True)) if len({*pair}) > 1
                )
                detail += f", and another one at {first}"
    if not records:
        return Compared(reason=f"the processor builds no sample: {refused}")
    compared = sorted(same, key=_order)
    return Compared(
        by,
        records,
        equal=tuple(kind for kind in compared if all(same[kind])),
        unequal=tuple(kind for kind in compared if not all(same[kind])),
        detail=detail,
    )


def _name(talk: Conversation) -> str:
    """Of what kind of sample it is, as `Compared` has it."""
    if talk.is_document:
        return INTERLEAVED if talk.media else DOCUMENT
    return mixed_name({medium.kind for medium in talk.media}) or TEXT


def _order(kind: str) -> tuple[Any, ...]:
    """What kinds are sorted by: texts first, documents last."""
    return kind == INTERLEAVED, kind == DOCUMENT, kind != TEXT, kind.count("+"), _place(kind)


def _place(kinds: str) -> tuple[int, ...]:
    """Where samples with these kinds of media stand in a list."""
    return tuple(KINDS.index(kind) for kind in kinds.split("+") if kind in KINDS)


def _words(talk: Conversation) -> str:
    """A sample, so that it can be found and tried again."""
    text = next((part for turn in talk.turns for part in turn.parts if isinstance(part, str)), "")
    sizes = [f"{medium.kind} {shape_of(medium)}" for medium in talk.media]
    return f"a sample ({', '.join([*sizes, repr(text[:40])])})"


def _load(files: ProcessorFiles) -> tuple[Any, str]:
    """The real processor, and what it is of; nothing is fetched, no code of the folder is run."""
    name = "AutoTokenizer" if files.image_settings is None else "AutoProcessor"
    loader = transformers_class(name)
    import transformers

    made = getattr(files.vision, "processor", None)  # of `ProbedVision`
    if made is None:
        made = loader.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
    return made, f"transformers {transformers.__version__}"


def _own_ids(counter: ConversationCounter, talk: Conversation) -> list[int]:
    infos = [info_of(medium) for medium in talk.media]
    media = counter.count_media([talk], [infos])
    for error in media.errors.values():
        raise error
    _, batch, runs = counter.tokenize(talk, media)
    ids: list[int] = np.repeat(batch.ids, runs.repeats_of(batch)).tolist()
    return ids


def _made_up(files: ProcessorFiles) -> Iterator[Conversation]:
    """Samples of every form: text as string and as list, none at all, images of several shapes."""
    vision = files.vision
    for text in (*_TEXTS, "a".join(["", *_special(files), ""])):
        for text_as_list in (False, True):
            asked = Turn("user", (text,), text_as_list=text_as_list)
            yield Conversation((asked,))
            yield Conversation((asked, Turn("assistant", (text,), text_as_list=text_as_list)))
    yield Conversation((Turn("user", ()),))
    yield Conversation((Turn("system", ("Be brief.",)), Turn("user", ("?",))))
    if vision is not None and "image" in vision.placeholders:
        images = [Media("image", Image.new("RGB", size)) for size in _SIZES]
        for image in images:
            yield Conversation((Turn("user", (image, "\nWhat is it? ")),))
        yield Conversation((Turn("user", ("One: ", images[0], " two:\n", images[1])),))
    if vision is not None and not files.is_known:
        rate = getattr(vision, "sampling_rate", 0)
        tuples = {kind: random_tuples(kind, rate) for kind in vision.placeholders}
        for kind in tuples:
            yield from _random([[(kind, shape) for shape in shapes] for shapes in tuples[kind]])
        for num in range(2, len(tuples) + 1):
            for kinds in itertools.combinations(tuples, num):
                yield from _random(list(_mixed({kind: tuples[kind] for kind in kinds})))


def _documents(files: ProcessorFiles) -> Iterator[Conversation]:
    """Documents of text alone, and with images before, behind and beside each other."""
    assert files.template is not None
    special = _special(files)
    for text in (*_TEXTS, "a".join(["", *special, ""])):
        yield _document(text)
    vision = files.vision
    if vision is None or "image" not in vision.placeholders:
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
