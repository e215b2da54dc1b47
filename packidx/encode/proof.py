"""Our counts beside the real processor's: only what was found equal may be called exact.

Some records of the data are built by transformers' own processor and by ours, and some samples that
are made up: what templates and processors treat in their own ways (white space, no text, special
tokens, images of several shapes) is seldom among the first records of a data set.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from packidx.encode.imports import load_real
from packidx.encode.media import info_of
from packidx.encode.probe.blanks import shape_of
from packidx.encode.probe.samples import made_up
from packidx.encode.whole import NotBuilt, build_sample, ids_of, quiet
from packidx.errors import MissingExtraError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import NEEDS_TORCHVISION, TEXT, Compared
from packidx.processor.kinds import kind_of
from packidx.records.conversation import Conversation

_MOST_PATCHES = 1 << 17
"""Of a sample that is built to be compared: some 3 GB. A folder's `min_pixels` may ask for any."""


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
        except MissingExtraError as error:
            return Compared(reason=str(error))
        except Exception as error:  # transformers raises whatever the folder makes it stumble over
            if isinstance(error, ImportError) and "torchvision" in str(error).lower():
                return Compared(reason=NEEDS_TORCHVISION)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return Compared(reason=f"transformers cannot load it: {reason}")
        given: dict[str, list[Conversation]] = {kind: [] for kind in kinds}
        for talk in talks:
            given.setdefault(kind_of(talk), []).append(talk)
        compared = Compared(by)
        for kind in sorted(given):
            samples = itertools.chain(made_up(files, kind), given[kind])
            compared = compared.plus(_compare(files, processor, by, kind, samples))
        return compared


def _compare(
    files: ProcessorFiles, processor: Any, by: str, kind: str, talks: Iterable[Conversation]
) -> Compared:
    """What came of samples of one kind."""
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
        except NotBuilt as error:  # nothing was built that could be compared
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

    made = getattr(files.vision, "processor", None)  # of `ProbedVision`
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
