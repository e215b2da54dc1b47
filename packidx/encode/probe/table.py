"""What was learnt of a processor by probing it, in the cache, for all processes to share.

<cache>/probes/<digest>/profile.json     what holds for all media (`Profile`)
<cache>/probes/<digest>/media.jsonl      one medium a line, and its digest; appended to

The digest is of all files that the processor may read, and of the versions of what ran it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packidx.digests import digest
from packidx.io import cache, files
from packidx.software import installed

_BUILDERS = ("packidx", "transformers", "torch", "torchvision", "tokenizers", "pillow")
_FORMAT = "2"

EACH, INDEX, TUPLE = "each", "index", "tuple"
"""What a medium's text depends on: itself alone; also its number among the sample's media of its
kind; all of these."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a processor treats one kind of media."""

    placeholder: str = ""
    """What the chat template writes, of which the processor makes something else."""
    feature: str = ""
    """The token that is repeated for a medium's features."""
    by: str = EACH
    only_one: bool = False
    """Whether it builds no sample with several."""
    rate: int = 0
    """Samples of sound per second that it takes; 0 for other media."""
    rises: bool = False
    """Whether of the sounds that were tried no longer one became fewer tokens."""
    problem: str | None = None
    """Why it cannot be counted; the rest says nothing then."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a processor treats text and media, learnt once."""

    name: str
    """Of its class."""
    settings: dict[str, str]
    """What a fingerprint must hold, besides the tokenizer: the arithmetic is not ours."""
    around: tuple[str, str] = ("", "")
    """What it puts before and after a rendered text."""
    reserved: tuple[str, ...] = ()
    """Tokens that it may take for media wherever they stand."""
    kinds: dict[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one medium, or each of a sample's, becomes."""

    text: str = ""
    runs: tuple[int, ...] = ()
    grid: tuple[int, int, int] = (0, 0, 0)
    problem: str | None = None
    """Why a processor builds no sample with it."""


class Table:
    """Media that were probed, by their keys.

    Args:
        identity: what tells a processor, its release and settings from all others; None keeps
            nothing.
    """

    def __init__(self, identity: Iterable[str] | None) -> None:
        self._media: dict[str, tuple[Learnt, ...]] = {}
        self._read = 0
        self._folder: str | None = None
        if identity is not None:
            versions = [f"{name} {installed(name)}" for name in _BUILDERS]
            name = digest(*map(str.encode, [_FORMAT, *versions, *identity]))
            self._folder = os.path.join(cache.folder(), "probes", name)

    def profile(self) -> Profile | None:
        """The profile that was kept, if one was."""
        if self._folder is None:
            return None
        try:
            with open(os.path.join(self._folder, "profile.json"), encoding="utf-8") as file:
                stated = json.load(file)
            kinds = {kind: Kind(**value) for kind, value in stated.pop("kinds").items()}
            lists = {name: tuple(stated[name]) for name in ("around", "reserved")}
            return Profile(**{**stated, **lists, "kinds": kinds})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def keep_profile(self, profile: Profile) -> None:
        """A cache that cannot be written costs the next run some seconds, and this one nothing."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.makedirs(self._folder, exist_ok=True)
                files.write_json(os.path.join(self._folder, "profile.json"), asdict(profile))

    def find(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that nobody has learnt yet."""
        missing = [key for key in keys if key not in self._media]
        if missing:
            self._read_more()
        return [key for key in missing if key not in self._media]

    def of_kind(self, kind: str) -> dict[str, tuple[Learnt, ...]]:
        """All that is known of a kind's media."""
        own = f"{kind} "
        return {key: media for key, media in self._media.items() if key.startswith(own)}

    def __getitem__(self, key: str) -> tuple[Learnt, ...]:
        return self._media[key]

    def add(self, learnt: Mapping[str, tuple[Learnt, ...]]) -> None:
        """Remember these, and let others know."""
        self._media.update(learnt)
        if self._folder is None:
            return
        # A line begins anew also where another process died in the middle of its own.
        lines = b"\n" + b"".join(_line(key, media) for key, media in learnt.items())
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
            path = os.path.join(self._folder, "media.jsonl")
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, lines)  # at once: lines of several processes do not mix
            finally:
                os.close(descriptor)

    def take(self, key: str, learnt: Learnt) -> None:
        """Remember what follows from what was probed; others find it as quickly."""
        self._media[key] = (learnt,)

    def _read_more(self) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            with open(os.path.join(self._folder, "media.jsonl"), "rb") as file:
                file.seek(self._read)
                whole = file.read()
            end = whole.rfind(b"\n") + 1
            self._read += end
            for line in whole[:end].splitlines():
                self._media.update(_entry(line))


def _line(key: str, media: tuple[Learnt, ...]) -> bytes:
    content = json.dumps([key, [asdict(each) for each in media]], ensure_ascii=True).encode()
    return digest(content).encode() + b" " + content + b"\n"


def _entry(line: bytes) -> dict[str, tuple[Learnt, ...]]:
    """What a line says; nothing where it is not as it was written."""
    stated, _, content = line.partition(b" ")
    if digest(content).encode() != stated:
        return {}
    key, media = json.loads(content)
    return {key: tuple(_learnt(each) for each in media)}


def _learnt(stated: dict[str, Any]) -> Learnt:
    runs, grid = tuple(stated["runs"]), tuple(stated["grid"])
    return Learnt(stated["text"], runs, (grid[0], grid[1], grid[2]), stated["problem"])
