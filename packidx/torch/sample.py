"""One sample, a dict of tensors: as `encode` gave it, compared with its plan, cut.

- ``input_ids``, ``labels`` int64 [T]; the first label is never trained
- ``position_ids`` int64 [T] from 0, or [3, T] of mRoPE
- further tensors of its tokens, [T]
- tensors of its media, whose first dimension counts media, tiles (or frames) or patches: which of
  them is seen by the number of rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.joining import IGNORE, Rules, rule_of, token_fills

Sample = dict[str, Tensor]
"""The tensors of one sample: those that count its tokens, and those of its media."""

Planned = Sequence[Mapping[str, Any]]
"""`Sample.media` of the index: ``kind``, ``t``, ``h``, ``w`` (0 or None: unknown), ``at``."""

TYPES = {"image": 1, "video": 2, "audio": 3}
"""Values of transformers' ``mm_token_type_ids``."""

OF_A_PACK = frozenset(
    ("cu_seqlens", "max_seqlen", "lengths", "pack_id", "sample_ids", "source_ids")
    + ("events", "join", "pixel_table", "sample_table")
)

ADVICE = "the data or the encoder is another: restore it, or estimate and plan again"
GUESSED = (
    "not all lengths of the plan are exact: read it with on_mismatch='fit', or count with the"
    " processor"
)


class PlanMismatch(MismatchError):
    """A sample is not what was planned: the data's fault, or the plan's, and a policy's to decide.

    What an encoder may never return is a plain `MismatchError`.
    """


def normalise_sample(encoded: Any, rules: Rules | None = None) -> Sample:
    """Return what `encode` gave (tensors, arrays or lists, [T] or [1, T]) as a sample.

    Args:
        rules: how it says that its tensors are joined.

    Raises:
        MismatchError: a key is missing, its shape does not fit `input_ids`, or it holds whole
            numbers that no rule joins.
    """
    if not isinstance(encoded, Mapping):
        raise MismatchError(
            f"encode returned {type(encoded).__name__}, not a dict of tensors with input_ids"
        )
    values = {key: _to_tensor(key, value) for key, value in encoded.items() if value is not None}
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
    sample = {"input_ids": ids, "labels": labels}
    sample["position_ids"] = _normalise_positions(values.pop("position_ids", None), length)
    for key in token_fills(rules):
        if key in values:
            sample[key] = _per_token(key, values.pop(key), length)
    for key, value in values.items():
        if key in OF_A_PACK:
            raise MismatchError(
                f"encode returned {key}, which is a pack's own: leave it out or name it otherwise"
            )
        if value.ndim == 0:
            raise MismatchError(f"encode returned a scalar for {key}: media tensors have rows")
        rule_of(key, value, values, rules)
    return sample | values


def _to_tensor(key: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise MismatchError(
            f"encode returned {key} as {type(value).__name__}, which is not a tensor ({error});"
            " return tensors, arrays or lists of numbers only"
        ) from None


def _per_token(key: str, value: Tensor, length: int | None) -> Tensor:
    if value.ndim == 2 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 1 or (length is not None and value.shape[0] != length):
        wanted = "[T] or [1, T]" if length is None else f"[{length}] or [1, {length}]"
        raise MismatchError(f"encode returned {key} of shape {list(value.shape)}, not {wanted}")
    return value


def _normalise_positions(positions: Tensor | None, length: int) -> Tensor:
    """The three mRoPE rows out of [3, t], [4, t] (row 0 is rebuilt), or [t] that counts from 0."""
    if positions is None:
        return torch.arange(length)
    if positions.ndim == 3 and positions.shape[1] == 1:  # [3, 1, T], as models return it
        positions = positions[:, 0]
    if positions.ndim == 2 and positions.shape[0] in (3, 4) and positions.shape[1] == length:
        return positions[-3:].long()
    plain, count = _per_token("position_ids", positions, length), torch.arange(length)
    if not torch.equal(plain - plain[:1], count.to(plain)):
        # transformers takes a jump in these positions for the start of another sample.
        raise MismatchError(
            "encode returned 1-D position_ids that do not count up by one;"
            " return [3, T] mRoPE positions, or none"
        )
    return count


def length_of(sample: Sample) -> int:
    """Return the number of a sample's tokens."""
    return len(sample["input_ids"])


def media_of(sample: Sample, rules: Rules | None) -> Sample:
    """Return the tensors of a sample that do not count its tokens."""
    own = {"position_ids", *token_fills(rules)}
    return {key: value for key, value in sample.items() if key not in own}


def up_to(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def check_media(media: Mapping[str, Tensor], planned: Planned | None) -> None:
    """Compare the grids among `media` with the planned ones, as far as both are known.

    A video's grid may be one row, or one for each frame.

    Raises:
        PlanMismatch: they differ.
    """
    for kind in TYPES if planned is not None else ():
        found = media.get(f"{kind}_grid_thw")
        stated = [
            [one[side] or 0 for side in "thw"] for one in planned or () if one["kind"] == kind
        ]
        if found is None or not all(map(all, stated)):
            continue
        frames = [[1, h, w] for t, h, w in stated for _ in range(t)]
        if found.tolist() != stated and (kind != "video" or found.tolist() != frames):
            here, wanted = (
                ", ".join("x".join(map(str, grid)) for grid in grids) or "none"
                for grids in (found.tolist(), stated)
            )
            raise PlanMismatch(
                f"encoded to {kind}s of {here} patches (t x h x w) but planned as {wanted};"
                f" {ADVICE}"
            )


def cut_piece(sample: Sample, start: int, stop: int, rules: Rules | None = None) -> Sample:
    """Return tokens [start, stop) of `sample`, which hold all of its media.

    Positions start again at the piece, whose first label is never trained.

    Raises:
        PlanMismatch: by ``mm_token_type_ids`` a medium would be cut off.
    """
    types = sample.get("mm_token_type_ids")
    if types is not None and types.count_nonzero() != types[start:stop].count_nonzero():
        raise PlanMismatch(
            f"the plan cuts this sample to tokens {start} to {stop}, and it has media outside of"
            f" them; {ADVICE}"
        )
    media = media_of(sample, rules)
    piece = {key: value[..., start:stop] for key, value in sample.items() if key not in media}
    piece["labels"] = piece["labels"].clone()
    piece["labels"][:1] = IGNORE  # its predictor is in another piece
    if stop > start:
        piece["position_ids"] = piece["position_ids"] - piece["position_ids"][..., :1].min()
    return piece | media
