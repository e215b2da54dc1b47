"""Learning how a processor treats media: what it replaces, by what, and what that depends on."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from packidx.digests import digest
from packidx.encode.blanks import (
    TRIED_SECONDS,
    medium_of,
    num_values,
    random_tuples,
    sound_shape,
)
from packidx.encode.imports import builders
from packidx.encode.media import sampling_rate_of
from packidx.encode.whole import ARGUMENTS, NotBuilt, build_sample, ids_of, tensors_of
from packidx.errors import BadRecord, SourceError
from packidx.io import cache
from packidx.io.cache import kept
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Media, Turn

_FORMAT = "3"

EACH, INDEX, TUPLE = "each", "index", "tuple"
"""What a medium's text depends on: itself alone; also its number among the sample's media of its
kind; all of these."""


def keys_of(by: str, shapes: Sequence[str]) -> list[str]:
    """Return what a sample's media of one kind are learnt by: one key for each, or for all."""
    if by == INDEX:
        return [f"{shape} #{number}" for number, shape in enumerate(shapes)]
    return list(shapes) if by == EACH else [",".join(shapes)]


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


class Table(dict[str, tuple[Learnt, ...]]):
    """Media that were probed, by kind and key.

    Args:
        identity: what tells a processor, its release and settings from all others; None keeps
            nothing.
    """

    def __init__(self, identity: Iterable[str] | None) -> None:
        self._read = 0
        self._identity = None if identity is None else [_FORMAT, *builders(), *identity]
        self._path = ""
        if self._identity is not None:
            name = digest(*map(str.encode, self._identity))
            self._path = os.path.join(cache.folder(), "probes", f"{name}.jsonl")

    def profile(self, make: Callable[[], Profile]) -> Profile:
        """Return the processor's profile; `make` learns it where nobody has yet."""
        if self._identity is None:
            return make()
        return msgspec.convert(kept("probes", self._identity, lambda: asdict(make())), Profile)

    def find(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that nobody has learnt yet."""
        missing = [key for key in keys if key not in self]
        if missing and self._path:
            with contextlib.suppress(OSError), open(self._path, "rb") as file:
                file.seek(self._read)
                lines = file.read().rpartition(b"\n")[0]
                self._read += len(lines)
                for line in lines.splitlines():
                    with contextlib.suppress(msgspec.DecodeError):  # somebody died writing it
                        key, media = msgspec.json.decode(line, type=_Entry)
                        self[key] = media
        return [key for key in missing if key not in self]

    def share(self, key: str, learnt: tuple[Learnt, ...]) -> None:
        """Remember these, and let other processes know."""
        self[key] = learnt
        if self._path:
            # A line begins anew also where another process died in the middle of its own.
            line = b"\n" + msgspec.json.encode((key, learnt)) + b"\n"
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                with open(self._path, "ab", buffering=0) as file:
                    file.write(line)  # at once: lines of several processes do not mix


_Entry = tuple[str, tuple[Learnt, ...]]


_NUM_SAMPLES = 6
"""With media, of which it is learnt what an expansion depends on; more of them are compared."""
_LEAST = 5
"""Rows and columns of an image that are never taken for channels, as fewer may be beside others."""
_MOST_VALUES = 1 << 27
"""Of a sample's blank media, at some 16 bytes each; PIL refuses images of not many more pixels."""


class Learner:
    """Probes one processor.

    Args:
        processor: a transformers processor; it is not changed.
        template: renders as the processor's own does, and knows of no placeholders.
    """

    def __init__(self, processor: Any, template: ChatTemplate) -> None:
        self.processor = processor
        self.template = template
        self._values_matter = False  # to what it makes of videos
        backend = getattr(processor.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise SourceError(f"the tokenizer of {type(processor).__name__} has no tokenizer.json")
        added = backend.get_added_tokens_decoder()
        self._plain = {
            str(token.content): int(ident)
            for ident, token in added.items()
            if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        }

    # -- once ------------------------------------------------------------------------------------

    def profile(self) -> Profile:
        """All that does not depend on a medium's shape."""
        import transformers

        settings = digest(self.processor.to_json_string().encode())
        around = self._around()
        kinds = {}
        for kind in ARGUMENTS:
            try:
                kinds[kind] = self._kind(kind, around)
            except (Unreadable, NotBuilt, BadRecord) as error:
                kinds[kind] = Kind(problem=str(error))
        placeholders = {kind.placeholder for kind in kinds.values()}
        named = (getattr(self.processor, f"{kind}_token", None) for kind in ARGUMENTS)
        tokens = {str(token) for token in named if token is not None and str(token)}
        return Profile(
            name=type(self.processor).__name__,
            settings={"processor": settings, "transformers": transformers.__version__},
            around=around,
            reserved=tuple(sorted(tokens - placeholders)),
            kinds=kinds,
        )

    def _around(self) -> Around:
        """Return what is put around text alone; what is done to it else shows when samples are
        compared.

        A processor that takes no text alone puts nothing there, or is refused.
        """
        try:
            written = write(self.processor, self.template, probe(()))
        except (NotBuilt, Unreadable, BadRecord):
            return "", ""
        head, _, tail = written.text.partition(written.rendered)
        return (head, tail) if written.text == head + written.rendered + tail else ("", "")

    def _kind(self, kind: str, around: Around) -> Kind:
        samples: list[tuple[tuple[str, ...], Written]] = []
        first: NotBuilt | None = None
        rate = sampling_rate_of(self.processor) if kind == "audio" else 0
        for seed, shapes in enumerate(random_tuples(kind, rate)[:_NUM_SAMPLES]):
            if first is not None and not samples and seed > 2:
                break  # it takes none
            media = [medium_of(kind, shape, seed + at) for at, shape in enumerate(shapes)]
            try:
                written = write(self.processor, self.template, probe(media))
                samples.append((shapes, written))
            except NotBuilt as error:
                first = first or error
        if not samples:
            raise NotBuilt(f"it builds no sample with one {kind}: {first}")
        only_one = all(len(shapes) == 1 for shapes, _ in samples)
        # Where not all of its media make samples together, it is tried which do.
        stacked = [pair for pair in samples if self._stacks(pair[1])]
        is_apart = 0 < len(stacked) < len(samples)
        samples = stacked if is_apart else samples
        placeholder = self._placeholder(kind, samples[0][1], around)
        texts = [_texts(written, placeholder, around, len(shapes)) for shapes, written in samples]
        feature = self._feature(kind, "".join(text for each in texts for text in each))
        known = Kind(placeholder, feature, only_one=only_one, rate=rate)
        for by in (TUPLE,) if is_apart else (EACH, INDEX, TUPLE):
            known = replace(known, by=by)
            if all(
                self._agrees(kind, known, shapes, own, around)
                for (shapes, _), own in zip(samples, texts, strict=True)
            ):
                return replace(known, rises=kind == "audio" and self._rises(known, around))
        raise Unreadable(f"two samples whose {kind}s have the same shapes differ")

    def _agrees(
        self, kind: str, known: Kind, shapes: Sequence[str], texts: Sequence[str], around: Around
    ) -> bool:
        """Return whether media of these shapes become by probes what a sample has for them."""
        keys = keys_of(known.by, shapes)
        learnt = [each for key in keys for each in self.learn(kind, known, key, around)]
        return [(each.text, each.runs) for each in learnt] == [
            (_learnt(text, known.feature).text, _runs(text, known.feature)) for text in texts
        ]

    def _stacks(self, written: Written) -> bool:
        """Return whether all that a model takes of a sample is tensors."""
        try:
            return bool(tensors_of(written.outputs, type(self.processor).__name__))
        except NotBuilt:
            return False

    def _rises(self, known: Kind, around: Around) -> bool:
        lengths = [int(seconds * known.rate) for seconds in TRIED_SECONDS]
        learnt = [
            self.learn("audio", known, sound_shape(length, known.rate), around)[0]
            for length in lengths
        ]
        numbers = [sum(each.runs) for each in learnt if each.problem is None]
        return numbers == sorted(numbers)

    def _placeholder(self, kind: str, written: Written, around: Around) -> str:
        """The shortest text that the template writes for a medium and all of the change is in."""
        rendered = written.rendered
        start = rendered.find(word(0)) + len(word(0))
        end = rendered.find(word(1), start)
        between = rendered[start:end] if start <= end else ""
        named = [
            str(value)
            for name, value in vars(self.processor).items()
            if kind in name and name.endswith("token") and value is not None
        ]
        for token in (*named, *sorted(self._plain, key=len), between):
            if token and rendered.count(token) == 1:
                place = rendered.index(token)
                if replaced(written, [(place, place + len(token))], around):
                    return token
        if not between and not any(token in rendered for token in named if token):
            raise Unreadable(f"its chat template writes nothing for {kind}s")
        raise Unreadable(f"it changes the text around {kind}s")

    def _feature(self, kind: str, text: str) -> str:
        ident = getattr(self.processor, f"{kind}_token_id", None)
        named = [token for token, own in self._plain.items() if own == ident]
        named.append(str(getattr(self.processor, f"{kind}_token", None)))
        for token in named:
            if token in self._plain and token in text:
                return token
        if not self._plain:
            raise Unreadable("its tokenizer has no plain added tokens")
        token = max(self._plain, key=text.count)
        if token not in text:
            raise Unreadable(f"no plain added token of its tokenizer stands for {kind}s")
        return token

    # -- for each shape --------------------------------------------------------------------------

    def learn(self, kind: str, known: Kind, key: str, around: Around) -> tuple[Learnt, ...]:
        """Return what media of these shapes become.

        Args:
            key: a shape; with `INDEX`, and ``" #2"``; with `TUPLE`, all of a sample's with commas.
        """
        shape, _, number = key.partition(" #")
        shapes = shape.split(",") if known.by == TUPLE else [shape] * (int(number or 0) + 1)
        try:
            if kind == "image" and min(int(n) for own in shapes for n in own.split("x")) < _LEAST:
                raise NotBuilt(f"rows or columns fewer than {_LEAST} may be taken for channels")
            written = self._written(kind, shapes)
            texts = _texts(written, known.placeholder, around, len(shapes))
            if known.by == TUPLE and len({*shapes}) > 1:
                tensors_of(written.outputs, type(self.processor).__name__)
        except (NotBuilt, Unreadable, BadRecord) as error:
            return (Learnt(problem=str(error)),) * (len(shapes) if known.by == TUPLE else 1)
        if known.by != TUPLE:
            texts = texts[-1:]
        grid = grid_of(written.outputs, kind) if len(shapes) == 1 else (0, 0, 0)
        return tuple(_learnt(text, known.feature, grid) for text in texts)

    def _written(self, kind: str, shapes: Sequence[str]) -> Written:
        """A sample with blank media; videos are tensors without values where these will do."""
        if kind == "video" and not self._values_matter:
            abstract = [medium_of(kind, shape, is_abstract=True) for shape in shapes]
            try:
                return write(self.processor, self.template, probe(abstract))
            except NotBuilt:
                pass  # for whatever reason: it is told when it gets values
        if sum(num_values(kind, shape) for shape in shapes) > _MOST_VALUES:
            raise NotBuilt(f"its {kind}s are too large to try them out")
        media = [medium_of(kind, shape) for shape in shapes]
        written = write(self.processor, self.template, probe(media))
        self._values_matter = self._values_matter or kind == "video"
        return written


def _texts(written: Written, placeholder: str, around: Around, num: int) -> list[str]:
    """Return what stands in the place of each of `num` media."""
    starts = [match.start() for match in re.finditer(re.escape(placeholder), written.rendered)]
    places = [(start, start + len(placeholder)) for start in starts]
    texts = replaced(written, places, around) if len(places) == num else None
    if texts is None:
        raise Unreadable("it changes the text around its media")
    return texts


def _learnt(text: str, feature: str, grid: tuple[int, int, int] = (0, 0, 0)) -> Learnt:
    runs = _runs(text, feature)
    if not runs:
        return Learnt(problem=f"it has no token {feature} in the sample")
    return Learnt(re.sub(f"(?:{re.escape(feature)})+", lambda _: feature, text), runs, grid)


def _runs(text: str, feature: str) -> tuple[int, ...]:
    found = re.finditer(f"(?:{re.escape(feature)})+", text)
    return tuple(len(match.group()) // len(feature) for match in found)


class Unreadable(Exception):
    """What a processor wrote for its media cannot be told from its text."""


@dataclass(frozen=True, slots=True)
class Written:
    """One sample as the processor has it."""

    rendered: str
    """What the chat template wrote."""
    text: str
    """What the processor gave its tokenizer."""
    outputs: Mapping[str, Any]
    """All that the processor returned."""


class _Recorder:
    """A tokenizer that notes what it is given, and is in all else the one it stands for."""

    def __init__(self, tokenizer: Any) -> None:
        object.__setattr__(self, "_own", (tokenizer, []))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own[0], name, value)

    def __len__(self) -> int:
        return len(self._own[0])

    def __call__(self, *args: Any, **options: Any) -> Any:
        tokenizer, notes = self._own
        built = tokenizer(*args, **options)
        given = args[0] if args else options.get("text")
        texts = [given] if isinstance(given, str) else given
        if isinstance(texts, list) and len(texts) == 1 and isinstance(texts[0], str):
            notes.append((texts[0], ids_of(built)))
        return built


def write(processor: Any, template: ChatTemplate, conversation: Conversation) -> Written:
    """Let `processor` build one sample and see what it writes.

    Raises:
        NotBuilt: it builds none.
        BadRecord: as `ChatTemplate.render`.
        Unreadable: no text that it tokenized has the sample's tokens.
    """
    recorded = copy.copy(processor)
    recorded.tokenizer = _Recorder(processor.tokenizer)
    _, notes = recorded.tokenizer._own
    outputs = build_sample(recorded, template, conversation, every_frame=True)
    ids = ids_of(outputs)
    text = next((text for text, own in reversed(notes) if own == ids), None)
    if text is None:
        raise Unreadable("it puts tokens into the sample that are not in the text it tokenizes")
    return Written(template.render(conversation).text, text, outputs)


# -- probes ----------------------------------------------------------------------------------------

_WORDS = ("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india")


def probe(media: Sequence[Media]) -> Conversation:
    """A question with these media, a word before, between and after them, and its answer."""
    parts: list[str | Media] = [word(0)]
    for number, medium in enumerate(media):
        parts += [medium, word(number + 1)]
    asked = Turn("user", tuple(parts), text_as_list=True)
    return Conversation((asked, Turn("assistant", ("zulu",), text_as_list=True)))


def word(number: int) -> str:
    return _WORDS[number % len(_WORDS)] + "x" * (number // len(_WORDS))


Around = tuple[str, str]
"""What a processor puts before and after a rendered text."""


def replaced(
    written: Written, places: Sequence[tuple[int, int]], around: Around
) -> list[str] | None:
    """Return what stands in `written.text` for the characters ``[start, end)`` of what was
    rendered.

    None where the text beside them is not what was rendered, with `around` it, byte for byte.
    """
    text, pattern, at = around[0] + written.rendered + around[1], "", 0
    for start, end in places:
        pattern += re.escape(text[at : start + len(around[0])]) + "(.*?)"
        at = end + len(around[0])
    match = re.fullmatch(pattern + re.escape(text[at:]), written.text, re.DOTALL)
    return None if match is None else list(match.groups())


def grid_of(outputs: Mapping[str, Any], kind: str) -> tuple[int, int, int]:
    """(t, h, w) in patches of the one medium of a sample; zeros where the processor states none.

    Shapes of pixels do not say it: a vision tower may cut them otherwise.
    """
    stated = outputs.get(f"{kind}_grid_thw")
    rows = np.asarray([] if stated is None else stated).reshape(-1, 3).tolist()
    return (rows[0][0], rows[0][1], rows[0][2]) if len(rows) == 1 else (0, 0, 0)
