"""What was found equal of a processor's kinds of samples, kept in the cache: to load transformers
and a processor takes seconds.

<cache>/compared/<digest>.json    what came of one kind

The digest is of all files that the real processor may read, of the versions of all that built the
samples, of the kind and, of a processor where nothing else speaks for it, of the data's records.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from packidx import digests
from packidx.io import cache, files
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import NEEDS_TORCHVISION, Compared, kind_of
from packidx.processor.folder import content_of
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.media.audio import media_sound
from packidx.records.media.paths import ANYWHERE
from packidx.records.media.video import media_info
from packidx.software import installed

_BUILDERS = ("packidx", "transformers", "torch", "torchvision", "tokenizers", "pillow")


def judged(
    processor: ProcessorFiles, kinds: Iterable[str], talks: Sequence[Conversation] = ()
) -> Compared:
    """What comes, or came, of comparing samples of some kinds with the real processor's.

    Args:
        talks: records of the data, media opened, of these kinds; without any it depends on the
            processor and the kind alone, whichever process asks.
    """
    whose = None
    if processor.folder is not None:
        versions = [f"{name} {installed(name)}" for name in _BUILDERS]
        whose = [processor.fingerprint(), *versions, *content_of(processor.folder)]
    compared = Compared()
    for kind in sorted(kinds):
        given = [talk for talk in talks if kind_of(talk) == kind]
        path = None
        if whose is not None:
            stated = map(_words, given if processor.needs_proof else ())
            name = digests.digest(*map(str.encode, (*whose, kind, *stated)))
            path = os.path.join(cache.folder(), "compared", f"{name}.json")
        found = _kept(path)
        if found is None:
            found = _keep(path, _compared(processor, kind, given), processor, bool(given))
        if found.by is None:
            return found
        compared = compared.plus(found)
    if compared.by is not None and not compared.records:
        reason = next(iter(compared.unequal.values()), "none was made up")
        return Compared(reason=f"the processor builds no sample: {reason}")
    return compared


def _compared(processor: ProcessorFiles, kind: str, talks: Sequence[Conversation]) -> Compared:
    compared: Compared = import_module("packidx.encode.proof").compare(processor, talks, [kind])
    return compared


def _words(talk: Conversation) -> str:
    """All that a processor's tokens of it depend on."""
    turns = [
        (turn.role, turn.text_as_list, turn.extra)
        + tuple(part if isinstance(part, str) else (part.kind, facts(part)) for part in turn.parts)
        for turn in talk.turns
    ]
    return repr((turns, talk.tools))


def facts(medium: Media) -> MediaInfo:
    """What is known of a medium that was opened."""
    if medium.kind == "image":
        width, height = medium.ref.size
        return MediaInfo(height, width)
    return (media_sound if medium.kind == "audio" else media_info)(medium, ANYWHERE)


def _kept(path: str | None) -> Compared | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            stated = json.load(file)
        lists: dict[str, Any] = {name: tuple(stated[name]) for name in ("equal", "unbuilt")}
        return Compared(**{**stated, **lists, "unequal": dict(stated["unequal"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _keep(
    path: str | None, compared: Compared, processor: ProcessorFiles, has_records: bool
) -> Compared:
    """What stands at `path` from now on: of several processes, the first one's. What could not be
    compared may be another time, and what differs on one's data says nothing of another's.

    A cache that cannot be written costs the next run some seconds, and this one nothing.
    """
    is_certain = compared.by is not None or compared.reason == NEEDS_TORCHVISION
    if has_records and compared.unequal and not processor.needs_proof:
        is_certain = False
    if path is None or not is_certain:
        return compared
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if _kept(path) is None:
            files.write_json(path, asdict(compared))
    return _kept(path) or compared
