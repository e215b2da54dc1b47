"""One encoded sample as tensors of known shapes: shifted, padded, cut to a range of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.joining import Rules, fills, rule_of

IGNORE = -100  # label of positions that do not contribute to the loss, as in transformers

OF_A_PACK = frozenset(
    ("cu_seqlens", "max_seqlen", "lengths", "pack_id", "sample_ids", "source_ids")
    + ("shifted", "events", "join", "pair_ids")
)

ADVICE = "the data or the encoder is another: restore it, or estimate and plan again"


class PlanMismatch(MismatchError):
    """A sample is not what was planned: the data's fault, or the plan's, and a policy's to decide.

    What an encoder may never return is a plain `MismatchError`.
    """


@dataclass
class Encoded:
    """One sample, or a piece of one.

    Attributes:
        input_ids, labels: int64 [T]; the first label is never trained.
        mrope_positions: int64 [3, T], or None for plain positions.
        sequence: other per-token tensors [T].
        media: tensors of media or patches, each joined as `join_rules.rule_of` says.
        rules: how the encoder says that its own tensors are joined.
    """

    input_ids: Tensor
    labels: Tensor
    mrope_positions: Tensor | None
    sequence: dict[str, Tensor] = field(default_factory=dict)
    media: dict[str, Tensor] = field(default_factory=dict)
    rules: Rules | None = None

    @property
    def length(self) -> int:
        return self.input_ids.shape[0]

    def between(self, start: int, stop: int) -> Encoded:
        """Tokens [start, stop) with all media."""
        positions = self.mrope_positions
        return Encoded(
            self.input_ids[start:stop],
            self.labels[start:stop],
            None if positions is None else positions[:, start:stop],
            {key: value[start:stop] for key, value in self.sequence.items()},
            self.media,
            self.rules,
        )


def normalise(encoded: Any, rules: Rules | None = None) -> Encoded:
    """Return what `encode` gave (tensors, arrays or lists, [T] or [1, T]) as an `Encoded`.

    Args:
        rules: how it says that its tensors are joined.

    Raises:
        MismatchError: a key is missing, its shape does not fit `input_ids`, or it holds whole
            numbers that nobody knows how to join.
        OptionError: one of `rules` is none.
    """
    if not isinstance(encoded, Mapping):
        raise MismatchError(
            f"encode returned {type(encoded).__name__}, not a dict of tensors with input_ids"
        )
    values = {key: _tensor(key, value) for key, value in encoded.items() if value is not None}
    if "input_ids" not in values:
        raise MismatchError(
            f"encode returned the keys {', '.join(map(str, encoded)) or 'none'} but not input_ids"
        )
    ids = _per_token("input_ids", values.pop("input_ids"), None)
    length = ids.shape[0]
    labels = _per_token("labels", values.pop("labels", ids), length)
    for key, value in (("input_ids", ids), ("labels", labels)):
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            raise MismatchError(f"encode returned {key} of type {value.dtype}, not integers")
    ids = ids.long()
    labels = labels.to(torch.int64, copy=True)  # a smaller type would not hold -100
    labels[:1] = IGNORE  # nothing in the sample predicts its first token
    mrope = _mrope_positions(values.pop("position_ids", None), length)
    sequence = {
        key: _per_token(key, values.pop(key), length) for key in fills(rules) if key in values
    }
    for key, value in values.items():
        if key in OF_A_PACK:
            raise MismatchError(
                f"encode returned {key}, which is a pack's own: leave it out or name it otherwise"
            )
        if value.ndim == 0:
            raise MismatchError(f"encode returned a scalar for {key}: media tensors have rows")
        rule_of(key, value, values, rules)
    return Encoded(ids, labels, mrope, sequence, values, rules)


def _tensor(key: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise MismatchError(
            f"encode returned {key} as {type(value).__name__}, which is no tensor ({error});"
            " return tensors, arrays or lists of numbers only"
        ) from None


def _per_token(key: str, value: Tensor, length: int | None) -> Tensor:
    if value.ndim == 2 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 1 or (length is not None and value.shape[0] != length):
        wanted = "[T] or [1, T]" if length is None else f"[{length}] or [1, {length}]"
        raise MismatchError(f"encode returned {key} of shape {list(value.shape)}, not {wanted}")
    return value


def _mrope_positions(positions: Tensor | None, length: int) -> Tensor | None:
    """The three mRoPE rows out of [3, t], [4, t] (row 0 is rebuilt), or None out of [t]."""
    if positions is None:
        return None
    if positions.ndim == 3 and positions.shape[1] == 1:  # [3, 1, T], as models return it
        positions = positions[:, 0]
    if positions.ndim == 2 and positions.shape[0] in (3, 4) and positions.shape[1] == length:
        return positions[-3:].long()
    plain = _per_token("position_ids", positions, length)
    if not torch.equal(plain - plain[:1], torch.arange(length).to(plain)):
        # transformers takes a jump in these positions for the start of another sample.
        raise MismatchError(
            "encode returned 1-D position_ids that do not count up by one;"
            " return [3, T] mRoPE positions, or none"
        )
    return None


def shift(sample: Encoded) -> Encoded:
    """`sample` for trainers that do not shift: position t is labelled with token t + 1."""
    return replace(sample.between(0, sample.length - 1), labels=sample.labels[1:])


def up_to(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple
