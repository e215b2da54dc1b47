"""Packs -> exactly what ``model(**batch)`` takes, samples isolated from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.torch.packs import NOTHING, Pack, Segment, join_segments
from packidx.torch.pixels import TABLE

# UnlimitedOCR splits by lists of numbers, and by no tensors of them.
_OF_LISTS = "patches_grid"
_ONE_ROW = ("flash", "thd")
_OWN_PADDING = ("indexed", "thd")
_LISTS = (_OF_LISTS, "num_local_patches")


def collate(
    packs: Pack | Sequence[Pack] | Sequence[Mapping[str, Pack]],
    attention: str = "sdpa",
    *,
    pad_token_id: int = 0,
    sample_table: bool = False,
    max_samples: int | None = None,
) -> dict[str, Any]:
    """Return the model's arguments for one pack or several.

    Returns ``input_ids`` and ``labels`` int64 [B, T], ``position_ids`` int64 [4, B, T] (mRoPE) or
    [B, T], the media tensors of all packs joined, ``use_cache`` False, and what keeps the
    samples apart:

    - ``'sdpa'`` (also right for ``eager``): each pack is a row, padded on the right to the longest;
      the padding is a segment of its own with labels -100. There is no ``attention_mask``:
      transformers isolates samples where positions restart, and only when it gets neither a mask
      nor a cache.
    - ``'flex'``: the same rows; ``attention_mask`` is a BlockMask [B, 1, T, T].
    - ``'flash'``: all packs in one row (B = 1), nothing is padded; ``cu_seq_lens_q`` and
      ``cu_seq_lens_k`` int32, ``max_length_q`` and ``max_length_k`` state where the samples are, so
      that no layer has to derive it.
    - ``'thd'``, for Transformer Engine: all packs in one row; ``cu_seqlens`` int32 counts the
      samples' true lengths, ``cu_seqlens_padded`` int32 the same with alignment padding,
      ``max_seqlen`` int32 [] the longest, ``padding_mask`` bool [1, T] is True on padding,
      ``qkv_format`` ``'thd'``. mRoPE positions are [3, 1, T].
    - ``'indexed'``, for NeMo Automodel: the rows of ``'sdpa'`` with ``attention_mask`` int64
      [B, T] = 1, 1, 2, 2, 2 … the number of each token's segment, 0 on padding. mRoPE positions
      are [3, B, T]. A model that turns this mask into bool merges the samples: those of
      transformers do, take another mode for them.

    A batch with padding has ``padding_mask`` bool [B, T], True on padding (``'indexed'`` has it in
    its mask): `prepare_model` keeps padding out of the router losses and expert counts by it.

    Packs whose pixels are bytes give ``pixel_table``, too: call `normalise_pixels` on the batch.

    Args:
        packs: or rows of `as_hf_dataset`.
        pad_token_id: what stands in the rows' padding.
        sample_table: add ``sample_table`` for `StepLog`, int64 [samples of all packs, 4]: first
            token in the flattened batch, pack, position in the pack, sample id. No model takes it:
            leave it out of the model's arguments.
        max_samples: for CUDA graphs, with ``'flash'`` and ``'thd'``: bounds of samples get
            `max_samples` + 1 entries, empty samples at the end; the longest sample is stated as the
            whole row, and ``padding_mask`` is always there. Padding at the end of a pack counts
            to its last sample, a dummy image is a sample.

    Raises:
        OptionError: an unknown `attention`, no pack, or more samples than `max_samples`.
        MismatchError: the packs do not go together or lack keys, or a token is masked out.
    """
    if attention not in _LAYOUTS:
        raise OptionError(
            f"attention {attention!r} is not one of {', '.join(_LAYOUTS)}: give the one that the"
            " model was loaded with ('sdpa' serves eager too)"
        )
    given: Sequence[Any] = [packs] if isinstance(packs, Pack) else packs
    packs = [row["pack"] if isinstance(row, Mapping) and "pack" in row else row for row in given]
    _check_packs(packs)
    if max_samples is not None and attention not in _ONE_ROW:
        raise OptionError(
            f"max_samples pads the bounds of samples, which attention {attention!r} does not have:"
            f" leave it out, or use {' or '.join(map(repr, _ONE_ROW))}"
        )
    if attention in _ONE_ROW:
        rows = [[segment for pack in packs for segment in pack.segments]]
    else:
        sizes = [sum(segment.slot for segment in pack.segments) for pack in packs]
        missing = [max(sizes) - size for size in sizes]
        padding = [[Segment(NOTHING, size, pad_token_id)] if size else [] for size in missing]
        rows = [[*pack.segments, *more] for pack, more in zip(packs, padding, strict=True)]
    batch: dict[str, Any] = dict(join_segments(rows, packs[0].rules))
    batch.pop("attention_mask", None)  # all ones
    if _OF_LISTS in batch:
        batch |= {key: batch[key].tolist() for key in _LISTS if key in batch}
    batch |= _LAYOUTS[attention](rows, batch["position_ids"])
    if attention not in _OWN_PADDING:
        is_padding = torch.stack([_segment_numbers(row, padding=True) for row in rows]) == 0
        if max_samples is not None or bool(is_padding.any()):
            batch["padding_mask"] = is_padding
    if max_samples is not None:
        batch |= _pad_bounds(batch, rows[0], max_samples)
    tables = [pack.pixel_table for pack in packs if pack.pixel_table is not None]
    if any(not np.array_equal(tables[0], table) for table in tables[1:]):
        raise MismatchError("collate got packs whose pixels two processors scale: use one encoder")
    if tables:
        batch[TABLE] = torch.from_numpy(tables[0])
    if sample_table:
        width = None if attention in _ONE_ROW else batch["labels"].shape[1]
        batch["sample_table"] = _sample_table(packs, width)
    batch["use_cache"] = False
    return batch


def _check_packs(packs: Sequence[Pack]) -> None:
    if not packs:
        raise OptionError("collate got no pack: give it one or more")
    for pack in packs:
        if not isinstance(pack, Pack):
            raise MismatchError(
                f"collate got {type(pack).__name__}, not a pack: give it what dataset[k] returns"
            )
        masks = [sample["attention_mask"] for sample in pack.samples if "attention_mask" in sample]
        if not all(bool(mask.all()) for mask in masks):
            raise MismatchError(
                f"pack {pack.pack_id}: encode masks tokens out by attention_mask, which a packed"
                " sequence cannot carry: leave them out in encode instead"
            )


Rows = Sequence[Sequence[Segment]]


def _lay_out_flash(rows: Rows, positions: Tensor) -> dict[str, Any]:
    slots = [segment.slot for segment in rows[0]]
    bounds, longest = _cumulative_sums(slots), max(slots)
    bounds_of = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    return {**bounds_of, "max_length_q": longest, "max_length_k": longest}


def _lay_out_flex(rows: Rows, positions: Tensor) -> dict[str, Any]:
    from packidx.torch.prepare import block_mask, causal_within

    numbers = torch.stack([_segment_numbers(row, padding=False) for row in rows])
    return {"attention_mask": block_mask(causal_within(numbers))}


def _lay_out_indexed(rows: Rows, positions: Tensor) -> dict[str, Any]:
    mask = torch.stack([_segment_numbers(row, padding=True) for row in rows])
    return {"attention_mask": mask, **_for_nemo(rows, positions)}


def _slots(row: Sequence[Segment]) -> tuple[list[int], list[int]]:
    """Lengths and slots of a row's samples. Padding alone is part of the slot before it: not every
    kernel takes an empty sample."""
    starts = [at for at, segment in enumerate(row) if segment.length or not at]
    slots = [sum(each.slot for each in row[a:b]) for a, b in pairwise([*starts, len(row)])]
    return [row[at].length for at in starts], slots


def _pad_bounds(batch: dict[str, Any], row: Sequence[Segment], max_samples: int) -> dict[str, Any]:
    """Bounds of a batch in one row with `max_samples` + 1 entries, and the longest as the row."""
    lengths, slots = _slots(row)
    if len(slots) > max_samples:
        raise OptionError(
            f"the batch has {len(slots)} samples and max_samples is {max_samples}: give the most"
            " that a batch holds, dummy images included"
        )
    empty = [0] * (max_samples - len(slots))
    bounds, total = _cumulative_sums([*slots, *empty]), sum(slots)
    if "cu_seqlens" not in batch:
        keys = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
        return {**keys, "max_length_q": total, "max_length_k": total}
    longest = torch.tensor(total, dtype=torch.int32)
    own = {"cu_seqlens": _cumulative_sums([*lengths, *empty]), "cu_seqlens_padded": bounds}
    return {**own, "max_seqlen": longest}


def _lay_out_thd(rows: Rows, positions: Tensor) -> dict[str, Any]:
    row = rows[0]
    own, slots = _slots(row)
    lengths = _cumulative_sums(own)
    return {
        "cu_seqlens": lengths,
        "cu_seqlens_padded": _cumulative_sums(slots),
        "max_seqlen": lengths.diff().max(),
        "padding_mask": _segment_numbers(row, padding=True)[None] == 0,
        "qkv_format": "thd",
        **_for_nemo(rows, positions),
    }


_LAYOUTS: dict[str, Callable[[Rows, Tensor], dict[str, Any]]] = {
    "flash": _lay_out_flash,
    "sdpa": lambda rows, positions: {},  # positions say it
    "flex": _lay_out_flex,
    "indexed": _lay_out_indexed,
    "thd": _lay_out_thd,
}


def _for_nemo(rows: Rows, positions: Tensor) -> dict[str, Tensor]:
    """Positions without the row that restarts, which transformers alone reads, and counts of media.

    ``n_images_per_sample`` and ``n_videos_per_sample``, int64 [rows], each where there are any:
    NeMo Automodel deals grids and pixels to pipeline micro-batches by them, so they count rows of
    ``image_grid_thw`` and ``video_grid_thw``, also the dummy image's.
    """
    keys = {"position_ids": positions[1:] if positions.ndim == 3 else positions}
    for kind in ("image", "video"):
        grids = [[each.tensors.get(f"{kind}_grid_thw", ()) for each in row] for row in rows]
        counts = [sum(map(len, row)) for row in grids]
        if any(counts):
            keys[f"n_{kind}s_per_sample"] = torch.tensor(counts, dtype=torch.int64)
    return keys


def _segment_numbers(row: Sequence[Segment], *, padding: bool) -> Tensor:
    """1, 1, 2, 2, 2 …: each token's segment, int64 [T]; with `padding` alignment padding is 0."""
    numbers = [torch.full((segment.slot,), n) for n, segment in enumerate(row, start=1)]
    for segment, own in zip(row, numbers if padding else (), strict=False):
        own[segment.length :] = 0
    return torch.cat(numbers)


def _cumulative_sums(counts: Sequence[int]) -> Tensor:
    """0 and the sums of the first 1, 2, … counts, int32 [len(counts) + 1]."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


def _sample_table(packs: Sequence[Pack], width: int | None) -> Tensor:
    """Return where each sample of a batch begins, its pack, its position there and its id.

    Args:
        width: tokens of a pack's row; None if all packs are in one row.
    """
    parts, first = [], 0
    for pack in packs:
        starts = [*accumulate((segment.slot for segment in pack.segments), initial=first)]
        ids = pack.sample_ids
        columns = [torch.tensor(starts[: len(ids)], dtype=torch.int64)]
        columns += [torch.full_like(ids, pack.pack_id), pack.positions, ids]
        parts.append(torch.stack(columns, 1))
        first = starts[-1] if width is None else first + width
    return torch.cat(parts)
