"""What some trainers and models want to know of a batch's media, besides the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.torch.sample.encoded import Pack
from packidx.torch.sample.join_rules import fills

EXTRA = ("image_flags", "num_images", "num_videos")
"""Keys that `collate` adds where they are asked for."""

_PIXELS = "pixel_values"
_OF_NEMO = {"image": "n_images_per_sample", "video": "n_videos_per_sample"}


def check_extra(extra: Sequence[str]) -> None:
    """Raise an OptionError if a key is asked for that nobody knows."""
    unknown = [extra] if isinstance(extra, str) else [key for key in extra if key not in EXTRA]
    if unknown:
        raise OptionError(f"extra is {extra!r}: give a tuple of some of {', '.join(EXTRA)}")


def extra_keys(packs: Sequence[Pack], extra: Sequence[str], rows: int) -> dict[str, Tensor]:
    """The tensors that `extra` names, of a batch with `rows` rows of tokens.

    Raises:
        MismatchError: the packs do not say what they would hold.
    """
    keys: dict[str, Tensor] = {}
    for name in extra:
        if name == "image_flags":
            flags = _image_flags(packs)
            keys |= {} if flags is None else {name: flags}
            continue
        if any(name not in pack for pack in packs):
            raise MismatchError(
                f"collate was asked for {name}, and neither the plan nor the tensors of pack"
                f" {packs[0].get('pack_id')} say it: count the lengths with packidx estimate, or"
                " leave it out"
            )
        keys[name] = _per_row([pack[name] for pack in packs], rows)
    return keys


def nemo_counts(packs: Sequence[Pack], rows: int) -> dict[str, Tensor]:
    """``n_images_per_sample`` and ``n_videos_per_sample``, each where there are any.

    NeMo Automodel deals grids and pixels to pipeline micro-batches by them, so they count rows of
    ``image_grid_thw`` and ``video_grid_thw``, also the dummy image's; without grids, images.
    """
    keys = {}
    for kind, name in _OF_NEMO.items():
        counts = [_num_rows(pack, kind) for pack in packs]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and any(known):
            keys[name] = _per_row(known, rows)
    return keys


def _num_rows(pack: Pack, kind: str) -> int | None:
    grid = pack.get(f"{kind}_grid_thw")
    if grid is not None:
        return int(grid.shape[0])
    count = pack.get(f"num_{kind}s")
    if count is None or kind != "image":
        return count
    return int(count) + bool(pack.get("has_dummy"))


def _per_row(counts: Sequence[int], rows: int) -> Tensor:
    """int64 [rows]: a pack has a row of its own, or all are in one."""
    return torch.tensor(counts if rows == len(counts) else [sum(counts)], dtype=torch.int64)


def _image_flags(packs: Sequence[Pack]) -> Tensor | None:
    """int64 [tiles, 1], 1 for those of samples and 0 for the dummy image's; None without tiles."""
    flags = []
    for pack in packs:
        if "image_flags" in pack:
            raise MismatchError(
                "collate was asked for image_flags, which encode returns: ask for it in one place"
            )
        pixels = pack.get(_PIXELS)
        if pixels is None:
            continue
        if pixels.ndim != 4:
            raise MismatchError(
                f"collate was asked for image_flags, which are of tiles, and {_PIXELS} are"
                f" {list(pixels.shape)}, not [tiles, channels, height, width]: leave it out"
            )
        flags.append(torch.full((pixels.shape[0], 1), 0 if pack.get("has_dummy") else 1))
    return torch.cat(flags) if flags else None


def without_dummy_tokens(pack: Pack, pad_token_id: int) -> Pack:
    """`pack` with pad tokens in place of the dummy image's.

    A model that reads flags takes no features of what is flagged 0 and must find no place for them.
    """
    if not pack.get("has_dummy"):
        return pack
    number = len(pack["sample_ids"])
    start, stop = pack["cu_seqlens"][number : number + 2].tolist()
    padded: dict[str, Any] = dict(pack)
    for key, fill in {**fills(pack.get("join")), "input_ids": pad_token_id}.items():
        if key in pack:
            padded[key] = pack[key].clone()
            padded[key][start:stop] = fill
    return padded
