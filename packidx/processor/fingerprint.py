"""The fingerprint of all in a processor that decides a sample's tokens and pixels.

The same for a folder and for the transformers object loaded from it, however it was saved: what two
spellings of one processor differ in without any effect is taken out here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from packidx.digests import digest_parts

OF_IMAGES = (
    *("size", "image_mean", "image_std", "rescale_factor", "do_resize", "do_rescale"),
    *("do_normalize", "do_convert_rgb", "resample"),
    *("do_center_crop", "crop_size", "do_pad", "pad_size"),
)
"""Settings of every image or video processor that change tokens or pixels. Others (class names,
return_metadata …) do not."""
OF_VIDEOS = ("do_sample_frames", "fps", "num_frames")
"""Of every video processor, besides."""
SETTINGS = (
    *(*OF_IMAGES, *OF_VIDEOS, "patch_size", "temporal_patch_size", "merge_size", "min_frames"),
    *("max_frames", "max_video_tokens", "cap_pixels_per_frame", "max_duration"),
)
EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
"""Limits of pixels in a size, and what some processors call them outside of it."""


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
        for name, old in EDGES.items():
            if older_names and merged.get(old) is not None:
                size[name] = merged[old]
                size.pop(old, None)
        merged["size"] = size
    kept = dict.fromkeys((*SETTINGS, *names))
    return {key: to_plain_json(merged[key]) for key in kept if merged.get(key) is not None}


def named_settings(
    part: str, settings: Mapping[str, Any] | None, older_names: bool
) -> dict[str, Any]:
    """Complete settings as users write them: ``{"images.size.height": 224}``; with `older_names`
    ``images.max_pixels``, which is the same as ``images.size.longest_edge``."""
    named = {}
    for name, value in (settings or {}).items():
        for key, one in value.items() if isinstance(value, Mapping) else [("", value)]:
            path = f"{name}.{key}" if key else name
            if older_names and name == "size":
                path = EDGES.get(key, path)
            named[f"{part}.{path}" if part else path] = one
    return named


def to_plain_json(value: Any) -> Any:
    """`value` as JSON with one spelling per number: 2.0 is 2, an enum is its value."""
    if isinstance(value, enum.Enum):
        return to_plain_json(value.value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, int) or float(value).is_integer():
        return int(value)
    return float(value)


def normalise_tokenizer(tokenizer_json: str) -> dict[str, Any]:
    """Return what of a tokenizer's serialisation decides ids and offsets.

    Left out: padding and truncation (state that transformers changes with each call) and the
    decoder (not used). A ``ByteLevel`` post-processor that does not trim offsets does nothing, so
    it equals none, as does a template without tokens, and a ``null`` or empty option equals an
    absent one. A pre-tokenizer trims no offsets, whatever it says. Merges are pairs; older files
    write ``"a b"``.
    """
    data = orjson.loads(tokenizer_json)
    model = {key: value for key, value in data["model"].items() if value not in (None, "")}
    if isinstance(model.get("merges"), list):
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        model["merges"] = digest_parts("\n".join(merges).encode())
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = digest_parts(orjson.dumps(model["vocab"], option=orjson.OPT_SORT_KEYS))
    post = data.get("post_processor")
    if post and post.get("type") == "ByteLevel" and post.get("trim_offsets") is False:
        post = None
    if post and post.get("type") == "TemplateProcessing" and not post.get("special_tokens"):
        post = None
    steps = data.get("pre_tokenizer") or {}
    for step in (steps, *steps.get("pretokenizers", [])):
        step.pop("trim_offsets", None)
    return {
        "model": model,
        "normalizer": data.get("normalizer"),
        "pre_tokenizer": data.get("pre_tokenizer"),
        "post_processor": post,
        "added_tokens": sorted(data.get("added_tokens", []), key=lambda token: token["id"]),
    }
