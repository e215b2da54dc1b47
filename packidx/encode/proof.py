"""Our counts beside the real processor's: only what was found equal may be called exact.

Some records of the data are built by transformers' own processor and by ours, and some samples that
are made up: what templates and processors treat in their own ways (white space, no text, special
tokens, images of several shapes) is seldom among the first records of a data set.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from packidx.encode.imports import transformers_class
from packidx.errors import BadRecord, LimitError, MissingExtraError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import IMAGE, TEXT, Compared
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn

_TEXTS = ("hello", " \n What is it?\n\n", "漢字 한글 👩‍👩‍👧 naïve é", "word " * 700)
_SIZES = ((64, 48), (337, 211), (300, 100), (90, 400))  # width, height


def compare(files: ProcessorFiles, talks: Sequence[Conversation]) -> Compared:
    """Compare our tokens with the real processor's, also on `talks`, whose images are opened."""
    with _quiet():
        try:
            processor, by = _load(files)
        except MissingExtraError as error:
            return Compared(reason=str(error))
        except Exception as error:  # transformers raises whatever the folder makes it stumble over
            return Compared(reason=f"transformers cannot load it: {_words(error)}")
        return _compare(files, processor, by, [*_made_up(files), *talks])


def _compare(
    files: ProcessorFiles, processor: Any, by: str, talks: Sequence[Conversation]
) -> Compared:
    counter = ConversationCounter(files)
    same: dict[str, list[bool]] = {TEXT: [], IMAGE: []}
    detail = refused = None
    for talk in talks:
        kind = IMAGE if talk.media else TEXT
        try:
            ours = _own_ids(counter, talk)
        except (BadRecord, LimitError, MemoryError):
            continue  # it becomes a rejected row, or ends the run where it is counted
        try:
            real = _real_ids(files, processor, talk)
        except Exception as error:  # nothing was built that could be compared
            refused = refused or _words(error)
            continue
        # An unknown family's images are a number of tokens, and nobody says which.
        is_same = ours == real if kind == TEXT or files.is_known else len(ours) == len(real)
        same[kind].append(is_same)
        if not is_same and detail is None:
            detail = f"a sample of kind {kind} has {len(ours)} tokens, the processor's {len(real)}"
    records = sum(map(len, same.values()))
    if not records:
        return Compared(reason=f"the processor builds no sample: {refused}")
    return Compared(
        by,
        records,
        equal=tuple(kind for kind, results in same.items() if results and all(results)),
        unequal=tuple(kind for kind, results in same.items() if not all(results)),
        detail=detail,
    )


def _load(files: ProcessorFiles) -> tuple[Any, str]:
    """The real processor, and what it is of; nothing is fetched, no code of the folder is run."""
    name = "AutoTokenizer" if files.image_settings is None else "AutoProcessor"
    loader = transformers_class(name)
    import transformers

    made = getattr(files.vision, "processor", None)  # of `GenericVision`
    if made is None:
        made = loader.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
    return made, f"transformers {transformers.__version__}"


def _own_ids(counter: ConversationCounter, talk: Conversation) -> list[int]:
    infos = [MediaInfo(medium.ref.height, medium.ref.width) for medium in talk.media]
    media = counter.count_media([talk], [infos])
    for error in media.errors.values():
        raise error
    _, batch, runs = counter.tokenize(talk, media)
    ids: list[int] = np.repeat(batch.ids, runs.repeats_of(batch)).tolist()
    return ids


def _real_ids(files: ProcessorFiles, processor: Any, talk: Conversation) -> list[int]:
    assert files.template is not None
    messages = files.template.messages(talk)
    for turn, message in zip(talk.turns, messages, strict=True):
        if any(isinstance(part, Media) for part in turn.parts):
            for part, given in zip(turn.parts, message["content"], strict=True):
                if isinstance(part, Media):
                    given[part.kind] = part.ref
    tools = {} if talk.tools is None else {"tools": talk.tools}
    built = processor.apply_chat_template(messages, tokenize=True, return_dict=True, **tools)
    return [int(ident) for ident in np.asarray(built["input_ids"]).reshape(-1)]


def _made_up(files: ProcessorFiles) -> Iterator[Conversation]:
    """Samples of every form: text as string and as list, none at all, images of several shapes."""
    assert files.template is not None
    vision = files.vision
    kept = set() if vision is None else {*vision.placeholders.values()}
    kept |= set() if vision is None else {*vision.feature_tokens.values()}
    special = [token for token in files.template.control_tokens if token not in kept][:2]
    for text in (*_TEXTS, "a".join(["", *special, ""])):
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own warnings: what they are about is compared."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
