"""Packs -> exactly what ``model(**batch)`` takes, samples isolated from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.torch.encoded import IGNORE, OF_A_PACK, Pack
from packidx.torch.joining import fills, join_media, joined_pair_ids

# Where one of these is missing, a trainer has taken away keys that its model does not name, and
# with them, perhaps, the one that says that the labels are shifted.
_OF_EVERY_PACK = ("input_ids", "labels", "position_ids", "cu_seqlens")
# Vision towers of transformers would take cu_seqlens and max_seqlen for their own.
_NO_MEDIA = {"input_ids", "labels", "position_ids", *OF_A_PACK}
# UnlimitedOCR splits by lists of numbers, and by no tensors of them.
_OF_LISTS = "patches_grid"
_OF_NEMO = ("indexed", "thd")
_LISTS = (_OF_LISTS, "num_local_patches")


def collate(
    packs: Pack | Sequence[Pack],
    attention: str = "sdpa",
    *,
    pad_token_id: int = 0,
) -> dict[str, Any]:
    """The model's arguments for one pack or several.

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

    Packs of a plan made with ``--shift`` carry shifted labels, returned as ``shift_labels`` too:
    by these transformers' causal loss knows not to shift them again.

    Packs with preference pairs give ``pair_ids`` int64 [samples of all packs], counted on from pack
    to pack, -1 for samples of no pair: take it out of the batch for the loss, as no model takes it.

    Args:
        pad_token_id: what stands in the rows' padding.

    Raises:
        OptionError: an unknown `attention`, or no pack.
        MismatchError: the packs do not go together or lack keys, or a token is masked out.
    """
    if attention not in _LAYOUTS:
        raise OptionError(
            f"attention {attention!r} is none of {', '.join(_LAYOUTS)}: give the one that the"
            " model was loaded with ('sdpa' serves eager too)"
        )
    packs = [packs] if isinstance(packs, Mapping) else list(packs)
    _check(packs)
    batch = _LAYOUTS[attention](packs, pad_token_id)
    if packs[0].get("shifted"):
        batch["shift_labels"] = batch["labels"]
    batch |= join_media([media_of(pack) for pack in packs], packs[0].get("join"))
    if _OF_LISTS in batch:
        batch |= {key: batch[key].tolist() for key in _LISTS if key in batch}
    rows = batch["input_ids"].shape[0]
    if attention in _OF_NEMO:
        batch |= _nemo_counts(packs, rows)
    batch |= joined_pair_ids(packs)
    batch["use_cache"] = False
    return batch


def media_of(pack: Pack) -> dict[str, Tensor]:
    """The media tensors of a pack: whatever counts neither tokens nor samples."""
    no_media = _NO_MEDIA | fills(pack.get("join")).keys()
    return {key: value for key, value in pack.items() if key not in no_media}


def _check(packs: Sequence[Pack]) -> None:
    if not packs:
        raise OptionError("collate got no pack: give it one or more")
    for pack in packs:
        if missing := [key for key in _OF_EVERY_PACK if key not in pack]:
            raise MismatchError(
                f"collate got a pack without {', '.join(missing)}: hand on all that dataset[k]"
                " holds (transformers' Trainer takes keys away that the model's forward does not"
                " name: give it TrainingArguments(remove_unused_columns=False))"
            )
    if len({bool(pack.get("shifted")) for pack in packs}) > 1:
        raise MismatchError("collate got packs with shifted labels and packs without: use one plan")
    for pack in packs:
        mask = pack.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise MismatchError(
                f"pack {pack.get('pack_id')}: encode masks tokens out by attention_mask, which a"
                " packed sequence cannot carry: leave them out in encode instead"
            )


def _all_positions(packs: Sequence[Pack]) -> list[Tensor]:
    """`position_ids` of each pack, as [4, T] if one of them has mRoPE rows."""
    positions = [pack["position_ids"] for pack in packs]
    if all(each.ndim == 1 for each in positions):
        return positions
    return [each.expand(4, -1) if each.ndim == 1 else each for each in positions]


def _joined(
    packs: Sequence[Pack],
    positions: Tensor,
    join: Callable[[list[Tensor], int], Tensor],
    pad_token_id: int = 0,
) -> dict[str, Any]:
    """Join the tensors that count tokens by ``join(tensor of each pack, what fills it up)``."""
    batch = {
        "input_ids": join([pack["input_ids"] for pack in packs], pad_token_id),
        "labels": join([pack["labels"] for pack in packs], IGNORE),
        "position_ids": positions,
    }
    for key, fill in fills(packs[0].get("join")).items():
        if key != "attention_mask" and any(key in pack for pack in packs):
            absent = [torch.full_like(pack["input_ids"], fill) for pack in packs]
            given = zip(packs, absent, strict=True)
            batch[key] = join([pack.get(key, fills) for pack, fills in given], fill)
    return batch


def _one_row(packs: Sequence[Pack]) -> dict[str, Any]:
    positions = torch.cat(_all_positions(packs), dim=-1)
    return _joined(packs, positions.unsqueeze(-2), lambda tensors, _: torch.cat(tensors)[None])


def _rows(packs: Sequence[Pack], pad_token_id: int) -> dict[str, Any]:
    positions = []
    width = max(pack["input_ids"].shape[0] for pack in packs)
    for each in _all_positions(packs):
        pad = torch.arange(width - each.shape[-1])  # from 0 again: a sample of its own
        positions.append(torch.cat([each, pad.expand(*each.shape[:-1], -1)], dim=-1))
    return _joined(packs, torch.stack(positions, dim=-2), _padded, pad_token_id)


def _padded(tensors: Sequence[Tensor], fill: int) -> Tensor:
    """[T] tensors as rows [B, longest T], padded on the right."""
    width = max(tensor.shape[0] for tensor in tensors)
    pads = [tensor.new_full((width - tensor.shape[0],), fill) for tensor in tensors]
    return torch.stack([torch.cat(pair) for pair in zip(tensors, pads, strict=True)])


def _flash(packs: Sequence[Pack], _: int) -> dict[str, Any]:
    lengths = torch.cat([pack["cu_seqlens"].diff() for pack in packs])
    bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
    longest = int(lengths.max())
    bounds_of = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    return {**_one_row(packs), **bounds_of, "max_length_q": longest, "max_length_k": longest}


def _flex(packs: Sequence[Pack], pad_token_id: int) -> dict[str, Any]:
    from packidx.torch.masks import block_mask, causal_within, segment_numbers

    numbers = [segment_numbers(pack, padding=False) for pack in packs]
    mask = block_mask(causal_within(_padded(numbers, 0)))  # the rows' padding is a segment too
    return {**_rows(packs, pad_token_id), "attention_mask": mask}


def _indexed(packs: Sequence[Pack], pad_token_id: int) -> dict[str, Any]:
    from packidx.torch.masks import segment_numbers

    mask = _padded([segment_numbers(pack, padding=True) for pack in packs], 0)
    return {**_three_rows(_rows(packs, pad_token_id)), "attention_mask": mask}


def _thd(packs: Sequence[Pack], _: int) -> dict[str, Any]:
    from packidx.torch.masks import segment_numbers, thd_bounds

    lengths, slots = thd_bounds(packs)
    padding = torch.cat([segment_numbers(pack, padding=True) for pack in packs]) == 0
    return {
        **_three_rows(_one_row(packs)),
        "cu_seqlens": lengths,
        "cu_seqlens_padded": slots,
        "max_seqlen": lengths.diff().max(),
        "padding_mask": padding[None],
        "qkv_format": "thd",
    }


def _three_rows(batch: dict[str, Any]) -> dict[str, Any]:
    """Without the row of restarting positions, which transformers alone reads."""
    if batch["position_ids"].ndim == 3:
        batch["position_ids"] = batch["position_ids"][1:]
    return batch


_LAYOUTS: dict[str, Callable[[Sequence[Pack], int], dict[str, Any]]] = {
    "flash": _flash,
    "sdpa": _rows,
    "flex": _flex,
    "indexed": _indexed,
    "thd": _thd,
}


def _nemo_counts(packs: Sequence[Pack], rows: int) -> dict[str, Tensor]:
    """``n_images_per_sample`` and ``n_videos_per_sample``, int64 [rows], each where there are any.

    NeMo Automodel deals grids and pixels to pipeline micro-batches by them, so they count rows of
    ``image_grid_thw`` and ``video_grid_thw``, also the dummy image's.
    """
    keys = {}
    for kind in ("image", "video"):
        name = f"{kind}_grid_thw"
        counts = [len(pack[name]) if name in pack else 0 for pack in packs]
        if any(counts):  # a pack has a row of its own, or all are in one
            counts = counts if rows == len(counts) else [sum(counts)]
            keys[f"n_{kind}s_per_sample"] = torch.tensor(counts, dtype=torch.int64)
    return keys
