"""Packs -> exactly what ``model(**batch)`` takes, samples isolated from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.torch.pieces import IGNORE, SEQUENCE_FILL

ATTENTIONS = ("flash", "sdpa", "flex", "indexed", "thd")
AVAILABLE = ("flash", "sdpa")
# Vision towers of transformers take cu_seqlens and max_seqlen for their own; the rest is no input.
_NOT_INPUTS = {"cu_seqlens", "max_seqlen", "pack_id", "sample_ids", "source_ids", "shifted"}
_PER_TOKEN = {"input_ids", "labels", "position_ids", *SEQUENCE_FILL}

Pack = Mapping[str, Any]


def collate(
    packs: Pack | Sequence[Pack], attention: str = "sdpa", *, pad_token_id: int = 0
) -> dict[str, Any]:
    """The model's arguments for one pack or several.

    Returns ``input_ids`` and ``labels`` int64 [B, T], ``position_ids`` int64 [4, B, T] (mRoPE) or
    [B, T], the media tensors of all packs concatenated, and ``use_cache`` False. There is no
    ``attention_mask``: transformers isolates samples where positions restart, and only when it
    gets neither a mask nor a cache.

    - ``'sdpa'`` (also right for ``eager``): each pack is a row, padded on the right to the longest;
      the padding is a segment of its own with labels -100.
    - ``'flash'``: all packs in one row (B = 1), nothing is padded; ``cu_seq_lens_q`` and
      ``cu_seq_lens_k`` int32, ``max_length_q`` and ``max_length_k`` state where the samples are, so
      that no layer has to derive it.

    Packs of a plan made with ``--shift`` carry shifted labels, returned as ``shift_labels`` too:
    by these transformers' causal loss knows not to shift them again.

    Raises:
        OptionError: an unknown or not yet available `attention`.
        MismatchError: the packs do not go together, or a token is masked out.
    """
    if attention not in ATTENTIONS:
        raise OptionError(f"attention {attention!r} is none of {', '.join(ATTENTIONS)}")
    if attention not in AVAILABLE:
        raise OptionError(
            f"attention {attention!r} is not available yet: use {' or '.join(AVAILABLE)}"
        )
    packs = [packs] if isinstance(packs, Mapping) else list(packs)
    _check(packs)
    batch = _one_row(packs) if attention == "flash" else _rows(packs, pad_token_id)
    if packs[0].get("shifted"):
        batch["shift_labels"] = batch["labels"]
    media = dict.fromkeys(key for pack in packs for key in pack)
    for key in media:
        if key not in _PER_TOKEN and key not in _NOT_INPUTS:
            batch[key] = torch.cat([pack[key] for pack in packs if key in pack])
    batch["use_cache"] = False
    return batch


def _check(packs: Sequence[Pack]) -> None:
    if not packs:
        raise OptionError("collate got no pack: give it one or more")
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


def _extra(packs: Sequence[Pack]) -> list[tuple[str, int]]:
    """Per-token inputs beside ids and labels that some pack has, and what stands for the absent."""
    return [
        (key, fill)
        for key, fill in SEQUENCE_FILL.items()
        if key != "attention_mask" and any(key in pack for pack in packs)
    ]


def _one_row(packs: Sequence[Pack]) -> dict[str, Any]:
    positions = torch.cat(_all_positions(packs), dim=-1)
    batch = {
        "input_ids": torch.cat([pack["input_ids"] for pack in packs])[None],
        "labels": torch.cat([pack["labels"] for pack in packs])[None],
        "position_ids": positions.unsqueeze(-2),
    }
    for key, fill in _extra(packs):
        parts = [pack.get(key, torch.full_like(pack["input_ids"], fill)) for pack in packs]
        batch[key] = torch.cat(parts)[None]
    lengths = torch.cat([pack["cu_seqlens"].diff() for pack in packs])
    bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])
    longest = max(int(pack["max_seqlen"]) for pack in packs)
    batch.update(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    return {**batch, "max_length_q": longest, "max_length_k": longest}


def _rows(packs: Sequence[Pack], pad_token_id: int) -> dict[str, Any]:
    width = max(pack["input_ids"].shape[0] for pack in packs)

    def padded(tensors: Sequence[Tensor], fill: int) -> Tensor:
        pads = [each.new_full((width - each.shape[0],), fill) for each in tensors]
        return torch.stack([torch.cat(pair) for pair in zip(tensors, pads, strict=True)])

    positions = []
    for each in _all_positions(packs):
        pad = torch.arange(width - each.shape[-1])  # from 0 again: a sample of its own
        positions.append(torch.cat([each, pad.expand(*each.shape[:-1], -1)], dim=-1))
    batch = {
        "input_ids": padded([pack["input_ids"] for pack in packs], pad_token_id),
        "labels": padded([pack["labels"] for pack in packs], IGNORE),
        "position_ids": torch.stack(positions, dim=-2),
    }
    for key, fill in _extra(packs):
        parts = [pack.get(key, torch.full_like(pack["input_ids"], fill)) for pack in packs]
        batch[key] = padded(parts, fill)
    return batch
