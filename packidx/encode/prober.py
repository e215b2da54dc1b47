"""Media of processors that no family of ours knows, counted with blank media.

A processor builds a sample with one blank medium of a shape. The sample has so many tokens more
than the same text with the medium's placeholder, and that is what a medium of this shape adds to
any record. Whether it does is tried once: with white space beside a medium of noise, and with many
media. Where lengths are not such sums, every record is built (`packidx.estimate.compare`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from packidx.arrays import Int64s
from packidx.digests import digest_parts
from packidx.encode.imports import Keywords, load_real
from packidx.encode.media import NotBuilt, blank_medium, sampling_rate_of
from packidx.encode.whole import ARGUMENTS, bare_tokenizer, build_sample, ids_of
from packidx.errors import BadRecord, PackidxError, SourceError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import MediaCounts, MediaModel
from packidx.processor.families.base import unusable_size
from packidx.processor.kinds import DOCUMENT, INTERLEAVED, TEXT
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn
from packidx.records.media.clips import resampled_length
from packidx.software import installed_version

MEDIA_PARTS = ("image_processor", "video_processor", "feature_extractor", "audio_processor")
"""Attributes of processors that take media."""
_LEAST = 5
"""Rows and columns of an image that no processor takes for channels."""
_MOST_VALUES = 1 << 27
"""Values of a blank medium; PIL refuses images of not many more pixels."""
_SHAPES = {
    "image": [
        MediaInfo(height, width)
        for height, width in ((48, 64), (211, 337), (100, 300), (400, 90), (1400, 1600))
    ],
    "video": [
        MediaInfo(48, 64, 9, 10.0),
        MediaInfo(100, 60, 40, 29.97),
        MediaInfo(64, 64, 64, 8.0),
    ],
    "audio": [MediaInfo(0, 0, num_samples=n, sampling_rate=16000) for n in (16001, 3201, 48001)],
}
_EVERYTHING = (TEXT, DOCUMENT, INTERLEAVED, *_SHAPES)
_BESIDE = ("", "alfa", " \n", "\n\nWhere?\n", "1 ", " 漢", "<", "> and this\t")
_TEXT = (
    " \n What is it?\n\ntwo  spaces\t\tand\r\nlines \n\n\n\nmore 漢字 한글 👩‍👩‍👧 é \xa0\u200b½ﬁ"
    ' I\'m 1234567 + 89.01 = x!...?!--==>> <b> {"a": [1]}' + " A long text of many words." * 400
)
"""Text that a processor may change before it tokenizes it."""
_MANY = 12
"""Media of the largest sample that is tried: numbers of two digits are written otherwise."""


class Added(NamedTuple):
    """The tokens that a medium of one shape adds to a sample."""

    tokens: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    """(t, h, w) in patches; zeros if the processor states none."""
    is_apart: bool = True
    """True if its tokens stand apart (`ProbedMedia.is_apart`)."""
    problem: str | None = None
    """The reason why the processor builds no sample with it."""


class ProbedMedia(MediaModel):
    """A `MediaModel` that asks a transformers processor; picklable.

    Args:
        template: the processor's, without placeholders.
        processor: the processor, or the folder that it is loaded from.
        trusts_code: True to run code of the folder.
        settings: in place of the folder's own (`load_real`).

    Attributes:
        problems: why media of a kind cannot be counted, by kind.

    Raises:
        MissingExtraError: torch, or what else the processor needs, is not installed.
        SourceError: transformers cannot load the processor, or it takes no media.
    """

    def __init__(
        self,
        template: ChatTemplate,
        processor: Any,
        trusts_code: bool = False,
        settings: Keywords | None = None,
    ) -> None:
        self._template, self._source, self._options = template, processor, (trusts_code, settings)
        self._added: dict[tuple[str, MediaInfo], Added] = {}
        self.placeholders: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.unpredictable: set[str] = set()
        self._reserved: set[str] = set()
        self._rendered: set[str] = set()  # tokens that the template writes
        try:
            self.name = type(self.processor).__name__
            content = digest_parts(self.processor.to_json_string().encode())
            self.settings = {
                "processor": content,
                "transformers": str(installed_version("transformers")),
            }
            self._probe_kinds()
        except (PackidxError, MemoryError):
            raise
        except Exception as error:  # a foreign class raises anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise SourceError(f"its processor cannot be probed: {reason}") from error
        kinds = self.placeholders.keys() - self.unpredictable
        self.feature_tokens = {kind: self.placeholders[kind] for kind in kinds}
        named = (getattr(self.processor, f"{kind}_token", None) for kind in ARGUMENTS)
        self._reserved.update(str(token) for token in named if token is not None)
        self._reserved.difference_update(self.placeholders.values(), self._rendered, [""])
        self.written_tokens = {token: token for token in self._reserved} | self.placeholders

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if isinstance(self._source, str):
            state.pop("processor", None)
        return state

    @cached_property
    def processor(self) -> Any:
        """The transformers processor."""
        if not isinstance(self._source, str):
            return self._source
        made = load_real(self._source, "AutoProcessor", *self._options)
        if not any(hasattr(made, part) for part in MEDIA_PARTS):
            raise SourceError(
                f"transformers makes {type(made).__name__} of processor folder {self._source}, "
                "which takes no media"
            )
        return made

    @cached_property
    def _tokenizer(self) -> Any:
        return bare_tokenizer(self.processor)

    def _probe_kinds(self) -> None:
        """Find each kind's placeholder, and try whether lengths are sums."""
        talk = Conversation((Turn("user", (_TEXT,)), Turn("assistant", (_TEXT,))))
        with contextlib.suppress(NotBuilt, BadRecord):  # it may take no text alone
            if ids_of(self._build_talk(talk)) != self._own_ids(
                talk
            ):  # it changes texts, or adds some
                self.unpredictable.update(_EVERYTHING)
        for kind, every in _SHAPES.items():
            shapes = [self._shape_of(kind, shape) for shape in every]
            try:
                self.placeholders[kind] = self._find_placeholder(
                    kind, blank_medium(kind, shapes[0])
                )
                problems = [self._count_added(kind, shape).problem for shape in shapes]
                if None not in problems:
                    raise NotBuilt(problems[0])
            except (NotBuilt, BadRecord) as error:
                self.placeholders.pop(kind, None)
                self.problems[kind] = f"it builds no sample with one {kind}: {error}"
                continue
            shapes = [shape for shape in shapes if self._count_added(kind, shape).problem is None]
            for gap in (" ", "\n"):
                self._try_sums(kind, shapes[:1], (gap, gap))
            self._try_sums(kind, (shapes * _MANY)[:_MANY], _BESIDE)

    def _try_sums(self, kind: str, shapes: Sequence[MediaInfo], beside: Sequence[str]) -> None:
        """Note a kind as unpredictable if a sample's length is not the sum of what media add."""
        is_one = len(shapes) == 1
        media = [blank_medium(kind, shape, noise=is_one) for shape in shapes]
        talk = _make_conversation(media, beside)
        with contextlib.suppress(NotBuilt, BadRecord):  # such records are not built, either
            excess = len(ids_of(self._build_talk(talk))) - len(self._own_ids(talk))
            if excess != sum(self._count_added(kind, shape).tokens for shape in shapes):
                self.unpredictable.add(kind if is_one else f"several {kind}s")

    def _find_placeholder(self, kind: str, medium: Media) -> str:
        """Return what the template writes for a medium: an added token, or text."""
        texts = ("alfa", "bravo")
        without, rendered = (
            self._template.render(_make_conversation(media, texts)).text
            for media in ((), (medium,))
        )
        named = str(getattr(self.processor, f"{kind}_token", None))
        tokens = sorted(plain_tokens(self._tokenizer), key=lambda each: (each != named, len(each)))
        for token in tokens:
            if rendered.count(token) == 1 + without.count(token):
                return token
        start = rendered.find("alfa") + 4
        between = rendered[start : rendered.find("bravo", start)].strip()
        if not between:
            raise NotBuilt(f"its chat template writes nothing for {kind}s")
        self.unpredictable.add(kind)
        return between

    def _build_talk(self, talk: Conversation, every_frame: bool = True) -> Mapping[str, Any]:
        return build_sample(self.processor, self._template, talk, every_frame=every_frame)

    def _own_ids(self, talk: Conversation) -> list[int]:
        text = self._template.render(talk).text
        adds = self._template.adds_special_tokens(text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=adds).ids
        return ids

    def _shape_of(self, kind: str, info: MediaInfo) -> MediaInfo:
        """Return a medium's shape as the processor gets it: of sound at its sampling rate."""
        if kind != "audio":
            return info
        rate = sampling_rate_of(self.processor)
        num = resampled_length(info.num_samples, info.sampling_rate, rate)
        return replace(info, num_samples=num, sampling_rate=rate)

    def _count_added(self, kind: str, info: MediaInfo) -> Added:
        """Return what a medium of a shape adds, tried once per shape."""
        key = kind, self._shape_of(kind, info)
        if key not in self._added:
            try:
                self._added[key] = self._try_shape(*key)
            except (NotBuilt, BadRecord) as error:
                self._added[key] = Added(problem=str(error))
        return self._added[key]

    def _try_shape(self, kind: str, info: MediaInfo) -> Added:
        if kind == "image" and min(info.height, info.width) < _LEAST:
            raise NotBuilt(f"rows or columns fewer than {_LEAST} may be taken for channels")
        values = info.num_samples or math.prod((info.num_frames, info.height, info.width))
        is_large = values > _MOST_VALUES
        if is_large and kind != "video":
            raise NotBuilt(f"this {kind} is too large to try it out")
        talk = _make_conversation((blank_medium(kind, info),), ("alfa", "bravo"))
        built = self._build_talk(talk, every_frame=not is_large)
        own, real = self._own_ids(talk), ids_of(built)
        grids = np.asarray(built.get(f"{kind}_grid_thw", [])).reshape(-1, 3).tolist()
        grid = tuple(grids[0]) if len(grids) == 1 else (0, 0, 0)
        return Added(len(real) - len(own), grid, self._stands_apart(kind, own, real))

    def _stands_apart(self, kind: str, own: list[int], real: list[int]) -> bool:
        """Return True if what a processor writes in a placeholder's place begins and ends with
        added tokens; note those that it repeats, and those that the template writes."""
        place = self._tokenizer.token_to_id(self.placeholders[kind])
        if own.count(place) != 1:
            return False
        plain = {ident: token for token, ident in plain_tokens(self._tokenizer).items()}
        self._rendered.update(plain[ident] for ident in plain.keys() & {*own})
        repeated = max(sorted(plain.keys() - {*own}), key=real.count, default=None)
        if repeated is not None and real.count(repeated) > 1:
            self._reserved.add(plain[repeated])
        at, stop = own.index(place), len(real) - len(own) + own.index(place) + 1
        if real[:at] != own[:at] or real[stop:] != own[at + 1 :] or at >= stop:
            return False
        return {real[at], real[stop - 1]} <= plain.keys()

    def is_apart(self, kind: str, info: MediaInfo) -> bool:
        """Return True if text beside a medium of this shape never merges with what the processor
        writes for it."""
        return kind in self.problems or self._count_added(kind, info).is_apart

    def expand(
        self, kind: str, media: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        """See `MediaModel.expand`."""
        errors: dict[int, BadRecord] = {}
        added = [Added()] * len(media)
        for number, info in enumerate(media):
            if kind in self.problems:
                text = f"{kind}s of {self.name} cannot be counted: {self.problems[kind]}"
                errors[number] = BadRecord("unsupported_media", text)
            elif kind != "audio" and min(info.height, info.width) <= 0:
                errors[number] = unusable_size(info.height, info.width)
            else:
                each = added[number] = self._count_added(kind, info)
                if each.problem is not None:
                    text = f"{self.name} builds no sample with this {kind}: {each.problem}"
                    errors[number] = BadRecord("media_not_counted", text)
        grids = np.array([each.grid for each in added], np.int64).reshape(-1, 3)
        tokens = np.array([1 + each.tokens for each in added], np.int64)  # with the placeholder
        return MediaCounts(grids, tokens, errors=errors)


def _make_conversation(media: Sequence[Media], beside: Sequence[str]) -> Conversation:
    """Return a question with these media, texts beside them in turn, and its answer."""
    parts: list[str | Media] = [beside[0]] if beside[0] else []
    for number, medium in enumerate(media):
        text = beside[(number + 1) % len(beside)]
        parts += [medium, text] if text else [medium]
    asked = Turn("user", tuple(parts), text_as_list=True)
    return Conversation((asked, Turn("assistant", ("zulu",), text_as_list=True)))


def plain_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the added tokens that are one token whatever stands beside them, with their ids."""
    return {
        str(token.content): int(ident)
        for ident, token in tokenizer.get_added_tokens_decoder().items()
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    }
