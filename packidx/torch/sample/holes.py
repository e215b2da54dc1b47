"""Holes: what stands for a sample that cannot be had, in the shape that a healthy read has.

Ranks that read the same pack for tensor, context or pipeline parallelism each read it by
themselves. If one of them fails, its tensors must have the others' shapes, or the next collective
operation hangs; and the model must find as many media tokens as it gets media.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from packidx.errors import MismatchError
from packidx.index import Index, Sample
from packidx.torch.sample.encoded import IGNORE, Encoded, PlanMismatch, normalise
from packidx.torch.sample.fitting import made_up
from packidx.torch.sample.join_rules import ROWS, SEQUENCE_FILL, rule_of, rules_of
from packidx.torch.sample.joining import join_media
from packidx.torch.sample.media_rows import TYPES, MediaTensor, Planned, grid_of, media_tensor

_SEARCHED = 64  # packs that are looked through for samples of the same kind
_TRIED = 16  # such samples

Read = Callable[[Sample], Encoded]


class NoHole(MismatchError):
    """The shape of a sample cannot be known without reading it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What `encode` returns for samples with media of one kind, or without any.

    Attributes:
        has_mrope: whether with mRoPE positions.
        sequence: dtypes of the per-token tensors.
        media: the media tensors.
        token: id of the token that media features replace; None without media.
        share: so many such tokens for so many patches.
        problem: why the shape of other media cannot be told; None where it can.
    """

    has_mrope: bool
    sequence: Mapping[str, torch.dtype]
    media: Mapping[str, MediaTensor]
    token: int | None = None
    share: tuple[int, int] = (0, 1)
    problem: str | None = None

    def tokens_of(self, medium: Mapping[str, Any], length: int) -> slice:
        """Where in a sample of `length` tokens the feature tokens of a medium go.

        Raises:
            PlanMismatch: the plan does not say, or they do not fit.
        """
        grid, at = grid_of(medium), medium["at"]
        tokens, patches = self.share
        count, rest = divmod(tokens * math.prod(grid or (0,)), patches)
        if at is None or at < 0 or not count or rest:
            raise PlanMismatch(f"the plan does not say how large and where a {medium['kind']} is")
        if at + count > length:
            raise PlanMismatch(
                f"a {medium['kind']} of {count} tokens at {at} does not fit its {length} tokens"
            )
        return slice(at, at + count)


def learn_shape(encoded: Encoded, planned: Planned, token: int | None) -> Shape:
    """The shape of healthy samples like `encoded`, whose `planned` media are of one kind.

    Args:
        token: id of its media's feature tokens, None: the one that stands where the first begins.
    """
    sequence = {key: value.dtype for key, value in encoded.sequence.items()}
    if not planned:
        return Shape(encoded.mrope_positions is not None, sequence, {})
    grids = [grid_of(medium) for medium in planned]
    known = [grid for grid in grids if grid is not None]
    kind, at = planned[0]["kind"], planned[0]["at"]
    problem, media = None, {}
    if len(known) < len(grids) or at is None or not 0 <= at < encoded.length:
        problem = f"the plan does not say how large and where each {kind} is"
    else:
        for key, value in encoded.media.items():
            rule = rule_of(key, value, encoded.media, encoded.rules)
            tensor = media_tensor(key, value, known) if rule == ROWS else None
            if tensor is None:
                problem = f"what {key} of shape {list(value.shape)} is for other {kind}s is unknown"
            else:
                media[key] = tensor
        token = int(encoded.input_ids[at]) if token is None else token
    tokens = 0 if token is None else int((encoded.input_ids == token).sum())
    patches = sum(map(math.prod, known))
    if problem is None and (kind not in TYPES or not tokens):
        problem = f"which tokens are those of a {kind} is unknown"
    share = tokens, max(patches, 1)
    return Shape(encoded.mrope_positions is not None, sequence, media, token, share, problem)


class Holes:
    """Makes holes, by ``encode.hole(length, media)`` if there is one, else after healthy samples.

    Args:
        read: reads and encodes one sample as planned, or raises.
    """

    def __init__(self, index: Index, encode: Any, read: Read, pad_token_id: int) -> None:
        self._index, self._encode, self._read = index, encode, read
        self._pad_token_id = pad_token_id
        self._shapes: dict[str, Shape] = {}  # by kind of media, '' without any

    def learn(self, encoded: Encoded, sample: Sample) -> None:
        """Remember the shape of a healthy sample, if it is the first of its kind."""
        media = sample.media
        kind = _only_kind(media or ())
        if kind is None or self._knows(kind) or (media is None and encoded.media):
            return
        self._shapes[kind] = learn_shape(encoded, media or (), self._media_ids.get(kind))

    def expects_media(self, sample: Sample) -> bool:
        """Whether healthy samples with such media bring tensors of them.

        Asked of others of the plan, not of what this process happened to read before: all ranks
        that read the pack must answer alike.
        """
        try:
            kinds = {medium["kind"] for medium in sample.media or ()}
            return any(self._shape(kind, sample).media for kind in sorted(kinds))
        except NoHole:
            return False

    def build(self, sample: Sample) -> Encoded:
        """The hole of `sample`: pad and media tokens, labels -100, pixels of zero.

        Raises:
            NoHole: plan and encoder do not tell enough.
        """
        planned = sample.media
        stats = self._index.pack(sample.pack_id).stats
        if planned is None and (stats["num_images"] != 0 or stats["num_videos"] != 0):
            raise NoHole(
                "the plan does not say which media this sample has: plan again with this packidx,"
                " from lengths that have a column media"
            )
        media = planned or ()
        if hasattr(self._encode, "hole"):
            return self._asked(sample, media)
        kinds = list(dict.fromkeys(medium["kind"] for medium in media)) or [""]
        shapes = {kind: self._shape(kind, sample) for kind in kinds}
        ids = torch.full((sample.length,), self._pad_token_id, dtype=torch.int64)
        types = torch.zeros_like(ids)
        for medium in media:
            where = shapes[medium["kind"]].tokens_of(medium, sample.length)
            ids[where] = shapes[medium["kind"]].token or 0
            types[where] = TYPES[medium["kind"]]
        sequence = {
            key: torch.full_like(ids, SEQUENCE_FILL.get(key, 0), dtype=dtype)
            for shape in shapes.values()
            for key, dtype in shape.sequence.items()
        }
        if "mm_token_type_ids" in sequence:
            sequence["mm_token_type_ids"] += types
        has_mrope = any(shape.has_mrope for shape in shapes.values())
        positions = torch.arange(sample.length).expand(3, -1) if has_mrope else None
        labels = torch.full_like(ids, IGNORE)
        return Encoded(ids, labels, positions, sequence, _blank(shapes, media))

    def _asked(self, sample: Sample, media: Planned) -> Encoded:
        given = self._encode.hole(sample.length, [dict(medium) for medium in media])
        encoded = normalise(given, rules_of(self._encode))
        if encoded.length != sample.length:
            raise NoHole(
                f"encode.hole returned {encoded.length} tokens, asked for were {sample.length}"
            )
        encoded.labels.fill_(IGNORE)
        return encoded

    def _shape(self, kind: str, sample: Sample) -> Shape:
        """The shape of samples with such media; reads others of the plan until it is known."""
        for other in islice(self._others(sample, kind), _TRIED):
            if self._knows(kind):
                break
            with contextlib.suppress(Exception):  # when its own turn comes it is told
                self.learn(self._read(other), other)
        if kind not in self._shapes:
            with contextlib.suppress(Exception):  # an encoder for records of another kind
                self._shapes[kind] = self._shape_of_made_up(kind)
        if kind not in self._shapes:
            raise NoHole(
                f"no other sample {'with a ' + kind if kind else 'without media'} could be read to"
                " learn its shape from: give encode a method hole(length, media)"
            )
        problem = self._shapes[kind].problem
        if problem is not None:
            raise NoHole(f"{problem}: give encode a method hole(length, media)")
        return self._shapes[kind]

    def _knows(self, kind: str) -> bool:
        """Whether the shape is known; one that says too little is learnt again from another."""
        return kind in self._shapes and self._shapes[kind].problem is None

    def _shape_of_made_up(self, kind: str) -> Shape:
        """The shape of a record of our own, which `encode` may or may not understand."""
        encoded = normalise(self._encode(made_up(kind)), rules_of(self._encode))
        if not kind:
            return learn_shape(encoded, (), None)
        token = self._media_ids[kind]
        ((t, h, w),) = encoded.media[f"{kind}_grid_thw"].tolist()
        at = int((encoded.input_ids == token).nonzero()[0])
        return learn_shape(encoded, [{"kind": kind, "t": t, "h": h, "w": w, "at": at}], token)

    @property
    def _media_ids(self) -> Mapping[str, int]:
        ids: Mapping[str, int] = getattr(self._encode, "media_token_ids", None) or {}
        return ids

    def _others(self, sample: Sample, kind: str) -> Iterator[Sample]:
        """Other samples of the kind, of this pack and of those after it."""
        for step in range(min(_SEARCHED, self._index.num_packs)):
            pack = self._index.pack((sample.pack_id + step) % self._index.num_packs)
            for other in pack.samples:
                same_kind = _only_kind(other.media or ()) == kind
                if same_kind and other.sample_id != sample.sample_id:
                    yield other


def _only_kind(media: Planned) -> str | None:
    """The kind of all of a sample's media, '' where there are none, None where they differ."""
    kinds = {medium["kind"] for medium in media}
    return None if len(kinds) > 1 else next(iter(kinds), "")


def _blank(shapes: Mapping[str, Shape], media: Planned) -> dict[str, torch.Tensor]:
    parts = []
    for kind, shape in shapes.items():
        grids = [grid_of(medium) for medium in media if medium["kind"] == kind]
        known = [grid for grid in grids if grid is not None]  # all, or tokens_of had raised
        parts.append({key: tensor.blank(known) for key, tensor in shape.media.items()})
    return join_media(parts)
