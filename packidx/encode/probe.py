"""`ProbedMedia`: media of processors that no family of ours knows, counted by trying them.

A processor is given blank media of a shape, and what it writes for them is read off and kept in the
cache. So torch and transformers are loaded for shapes that nobody has seen yet, and for no others.
What is read off is what the processor does; that whole samples come out of it is compared before
anything is called exact (`packidx.encode.proof`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.digests import digest
from packidx.encode.blanks import image_shape, length_of, sound_shape, video_shape
from packidx.encode.imports import load_real
from packidx.encode.learn import EACH, INDEX, TUPLE, Learner, Learnt, Profile, Table, keys_of
from packidx.errors import BadRecord, PackidxError, SourceError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import Expansion, MediaCounts, MediaModel
from packidx.processor.families.base import no_pixels
from packidx.records.conversation import MediaInfo
from packidx.records.media.audio import resampled_length

MEDIA_PARTS = ("image_processor", "video_processor", "feature_extractor", "audio_processor")
"""Attributes of processors that take media."""


class ProbedMedia(MediaModel):
    """A `MediaModel` learnt from a transformers processor.

    Args:
        template: of the processor, without placeholders.
        processor: the processor, or the folder that it is loaded from when it is needed.
        identity: what tells it from all others, for the cache; None keeps nothing.
        trusts_code: whether code of the folder is run.

    Raises:
        MissingExtraError: transformers is not installed or cannot be used.
        SourceError: transformers cannot load the processor, or it takes no media.
    """

    def __init__(
        self,
        template: ChatTemplate,
        processor: Any,
        identity: Sequence[str] | None,
        trusts_code: bool = False,
    ) -> None:
        self._given = (template, processor, identity, trusts_code)
        if trusts_code and identity is not None:
            identity = [*identity, "its code is run"]
        self._table = Table(identity)
        self.profile = self._table.profile(self._profile)
        kinds = {name: kind for name, kind in self.profile.kinds.items() if kind.problem is None}
        self.placeholders = {name: kind.placeholder for name, kind in kinds.items()}
        self.feature_tokens = {name: kind.feature for name, kind in kinds.items()}
        self.written_tokens = {token: token for token in self.profile.reserved} | self.placeholders
        self.around_text = self.profile.around
        self.settings = self.profile.settings
        self.counted_by = f"probing {self.profile.name}"
        self.sampling_rate = kinds["audio"].rate if "audio" in kinds else 0
        """Samples of sound per second; 0 where it takes none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ProbedMedia, self._given

    def _profile(self) -> Profile:
        try:
            return self._learner.profile()
        except (PackidxError, MemoryError):
            raise
        except Exception as error:  # a foreign class: whatever it raises, it cannot be probed
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise SourceError(f"its processor cannot be probed: {reason}") from error

    @cached_property
    def processor(self) -> Any:
        """The transformers processor."""
        _, processor, _, trusts_code = self._given
        return _load(processor, trusts_code) if isinstance(processor, str) else processor

    @cached_property
    def _learner(self) -> Learner:
        return Learner(self.processor, self._given[0])

    def expand(
        self, kind: str, media: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """See `MediaModel.expand`; the processor is asked once per distinct shape."""
        shapes = [self._shape(kind, info) for info in media]
        owners = range(len(shapes)) if samples is None else samples.tolist()
        errors = {n: shape for n, shape in enumerate(shapes) if isinstance(shape, BadRecord)}
        learnt: list[Learnt] = [Learnt()] * len(shapes)
        known = self.profile.kinds[kind]
        if known.problem is not None:
            problem = f"{kind}s of {self.profile.name} cannot be counted: {known.problem}"
            errors = dict.fromkeys(range(len(shapes)), BadRecord("unsupported_media", problem))
        members: dict[int, list[int]] = {}
        for number, owner in enumerate(owners):
            members.setdefault(owner, []).append(number)
        keys: dict[tuple[int, ...], str] = {}
        for numbers in members.values():
            good = [number for number in numbers if number not in errors]
            if good and (good == numbers or known.by == EACH):
                parts = [tuple(good)] if known.by == TUPLE else [(number,) for number in good]
                own = keys_of(known.by, [str(shapes[number]) for number in good])
                keys.update(zip(parts, own, strict=True))
            else:  # what the others become depends on the one that is not to be had
                bad = next(number for number in numbers if number in errors)
                errors |= dict.fromkeys(good, errors[bad])
        self._learn(kind, set(keys.values()))
        for together, key in keys.items():
            for number, each in zip(together, self._table[f"{kind} {key}"], strict=True):
                learnt[number] = each
        for number, each in enumerate(learnt):
            if each.problem is not None:
                text = f"{self.profile.name} builds no sample with this {kind} ({shapes[number]})"
                errors[number] = BadRecord("media_not_counted", f"{text}: {each.problem}")
        if known.only_one:
            text = f"{self.profile.name} builds no sample with several {kind}s"
            for numbers in members.values():
                if len(numbers) > 1:
                    errors[numbers[0]] = BadRecord("unsupported_media", text)
        return MediaCounts(
            np.array([each.grid for each in learnt], np.int64).reshape(-1, 3),
            np.array([sum(each.runs) for each in learnt], np.int64),
            [Expansion(each.text, each.runs) if each.runs else None for each in learnt],
            errors,
        )

    def _shape(self, kind: str, info: MediaInfo) -> str | BadRecord:
        """Return a medium's shape, or why it has none."""
        if kind == "video":
            return video_shape(info)
        if kind == "audio":
            rate = self.sampling_rate or 1  # where it takes none, that is told
            return sound_shape(resampled_length(info.num_samples, info.sampling_rate, rate), rate)
        if min(info.height, info.width) <= 0:
            return no_pixels(info.height, info.width)
        return image_shape(info.height, info.width)

    def _learn(self, kind: str, keys: Iterable[str]) -> None:
        """Probe what nobody has probed yet."""
        known = self.profile.kinds[kind]
        missing = self._table.find([f"{kind} {key}" for key in keys])
        if kind == "audio" and known.rises and known.by != INDEX:
            alone = [key for key in missing if "," not in key]
            self._learn_sounds(alone)
            missing = [key for key in missing if "," in key]
        for key in sorted(missing):
            self._probe(kind, key)

    def _probe(self, kind: str, key: str) -> tuple[Learnt, ...]:
        known, own = self.profile.kinds[kind], key[len(kind) + 1 :]
        learnt: tuple[Learnt, ...]
        learnt = self._learner.learn(kind, known, own, self.profile.around)
        self._table.share(key, learnt)
        return learnt

    def _learn_sounds(self, keys: Iterable[str]) -> None:
        missing = {length_of(key): key for key in keys}
        steps = Steps()
        for key, media in self._table.items():
            if key.startswith("audio ") and len(media) == 1:
                steps.add(length_of(key), media[0])
        for length in outside_in(missing):
            between = steps[length]
            if between is None:
                [learnt] = self._probe("audio", missing[length])
                steps.add(length, learnt)
            else:
                self._table[missing[length]] = (between,)


def _load(folder: str, trusts_code: bool) -> Any:
    processor = load_real(folder, "AutoProcessor", trusts_code)
    if not any(hasattr(processor, part) for part in MEDIA_PARTS):
        raise SourceError(
            f"transformers makes {type(processor).__name__} of processor folder {folder}, which "
            "takes no media"
        )
    return processor


def identity_of(processor: Any, template: ChatTemplate) -> list[str]:
    """Return what tells a processor object from all others."""
    return [
        processor.to_json_string(),
        digest(processor.tokenizer.backend_tokenizer.to_str().encode()),
        template.source,
        repr(sorted(template.special_tokens.items())),
    ]


class Steps:
    """Lengths of sound that were probed."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._learnt: dict[int, Learnt] = {}

    def add(self, length: int, learnt: Learnt) -> None:
        """Remember what a sound of so many samples became."""
        if length not in self._learnt:
            bisect.insort(self._lengths, length)
        self._learnt[length] = learnt

    def __getitem__(self, length: int) -> Learnt | None:
        """Return what a sound becomes; None where it must be probed."""
        if length in self._learnt:
            return self._learnt[length]
        at = bisect.bisect(self._lengths, length)
        if not 0 < at < len(self._lengths):
            return None
        below, above = (self._learnt[self._lengths[n]] for n in (at - 1, at))
        return below if below == above and below.problem is None else None


def outside_in(lengths: Iterable[int]) -> list[int]:
    """The same lengths in an order that soon has some around the others: both ends, the middle, the
    middles of the halves …"""
    ascending = sorted(set(lengths))
    order = [ascending[0], ascending[-1]] if ascending else []
    spans = [(0, len(ascending) - 1)]
    for low, high in spans:  # it grows
        middle = (low + high) // 2
        if low < middle:
            order.append(ascending[middle])
            spans += [(low, middle), (middle, high)]
        elif high - low > 1:
            spans.append((low + 1, high))
    return list(dict.fromkeys([*order, *ascending]))
