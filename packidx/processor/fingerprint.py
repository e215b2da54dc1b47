"""What of a processor decides a sample's tokens and pixels, for its fingerprint.

The same for a folder and for the transformers object loaded from it, however it was saved: what two
spellings of one processor differ in without any effect is taken out here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from packidx.digests import digest

# Settings that change tokens or pixels. Others (class names, return_metadata …) do not.
SETTINGS = (
    *("patch_size", "temporal_patch_size", "merge_size", "size", "image_mean", "image_std"),
    *("rescale_factor", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb", "resample"),
    *("do_center_crop", "crop_size", "do_pad", "pad_size"),
    *("do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_video_tokens"),
    *("cap_pixels_per_frame", "max_duration"),
)


def complete_settings(
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    names: Sequence[str] = (),
    older_names: bool = True,
) -> dict[str, Any]:
    """An image or video processor's settings, complete and in one spelling.

    Only those of `SETTINGS` and `names` are kept.

    With `older_names` ``min_pixels`` and ``max_pixels`` override ``size`` as in transformers 5.23
    (`Qwen2VLImageProcessor.__init__`); other families' processors ignore them.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    merged = {**(defaults or {}), **given}
    size = merged.get("size")
    if isinstance(size, Mapping):
        size = {key: value for key, value in size.items() if value is not None}
        for name, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
            if older_names and merged.get(old) is not None:
                size[name] = merged[old]
                size.pop(old, None)
        merged["size"] = size
    kept = dict.fromkeys((*SETTINGS, *names))
    return {key: _plain(merged[key]) for key in kept if merged.get(key) is not None}


def setting_differences(
    mine: Mapping[str, Mapping[str, Any] | None], theirs: Mapping[str, Mapping[str, Any] | None]
) -> list[str]:
    """Settings that two processors do not share, in words.

    Args:
        mine, theirs: ``image``, ``video`` … → settings as `complete_settings` gives them.
    """
    differences = []
    for part in mine:
        ours, others = mine[part] or {}, theirs[part] or {}
        for name in sorted({*ours, *others}):
            if ours.get(name) != others.get(name):
                differences.append(f"{part} {name} {ours.get(name)} is not {others.get(name)}")
    return differences


def _plain(value: Any) -> Any:
    """`value` as JSON with one spelling per number: 2.0 is 2, an enum is its value."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) or float(value).is_integer():
        return int(value)
    return float(value)


def normalise_tokenizer(tokenizer_json: str) -> dict[str, Any]:
    """What of a tokenizer's serialisation decides ids and offsets.

    Left out: padding and truncation (state that transformers changes with each call) and the
    decoder (not used). A ``ByteLevel`` post-processor that does not trim offsets does nothing, so
    it equals none, and so does a ``null`` or empty option equal an absent one. Merges are pairs;
    older files write ``"a b"``.
    """
    data = orjson.loads(tokenizer_json)
    model = {key: value for key, value in data["model"].items() if value not in (None, "")}
    if isinstance(model.get("merges"), list):
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        model["merges"] = digest("\n".join(merges).encode())
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = digest(orjson.dumps(model["vocab"], option=orjson.OPT_SORT_KEYS))
    post = data.get("post_processor")
    if post and post.get("type") == "ByteLevel" and post.get("trim_offsets") is False:
        post = None
    return {
        "model": model,
        "normalizer": data.get("normalizer"),
        "pre_tokenizer": data.get("pre_tokenizer"),
        "post_processor": post,
        "added_tokens": sorted(data.get("added_tokens", []), key=lambda token: token["id"]),
    }
