"""Options of one medium, which ask for another size or other frames than its file has.

A record may have them as Qwen's published messages do: ``min_pixels``, ``max_pixels``,
``resized_height`` and ``resized_width`` of an image, ``fps``, ``nframes``, ``min_frames`` and
``max_frames`` of a video. Families whose images keep their shape (Qwen-VL, GLM-V) do as asked. An
image is resized before the processor gets it, to the sides that `smart_resize` gives with these
limits, as `qwen_vl_utils.fetch_image` does. Of a video those frames are taken that the processor
samples with these settings. Options that equal the settings change nothing. All other ones reject
their record.

Example: with ``max_pixels`` 50,176 an image of 640 x 480 pixels becomes one of 252 x 168, and so 54
tokens of 28 x 28 pixels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packidx.processor.assemble import ProcessorFiles
from packidx.processor.families.base import FamilyMedia, PixelLimits
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.references import OF_FRAMES, clip_repr, unsupported_option

_SIZES = frozenset(("min_pixels", "max_pixels", "resized_height", "resized_width"))
_SAMPLING = frozenset(("fps", "nframes", "min_frames", "max_frames"))
_MIN_TOKENS, _MAX_TOKENS = 4, 16384  # of an image, in qwen_vl_utils 0.0.14


def apply_requests(
    medium: Media, info: MediaInfo | None, files: ProcessorFiles
) -> MediaInfo | None:
    """Return what is known of a medium once it is as its record asks for.

    Args:
        info: what is known of its file; None if that was not looked into.

    Raises:
        BadRecord: ``unsupported_media_option``, the processor does not do as asked.
    """
    unequal = _find_unequal_options(medium, info, files)
    if not unequal:
        return info
    vision, asked = files.vision, medium.requests
    if info is not None and isinstance(vision, FamilyMedia):
        if medium.kind == "image" and vision.limits is not None and _SIZES.issuperset(unequal):
            sides = _requested_size(info, asked, vision.limits)
            if sides is not None:
                return replace(info, height=sides[0], width=sides[1])
        if medium.kind == "video" and vision.sample_as and _SAMPLING.issuperset(unequal):
            is_one = not {"fps", "nframes"} <= asked.keys()
            is_file = info.frame_indices is None and not info.extracted
            if is_one and is_file and (sample := vision.sample_as(asked)) is not None:
                frames = sample(info.num_frames, info.fps)
                return replace(info, frame_indices=tuple(frames.tolist()))
    name, value = next(iter(unequal.items()))
    setting = _setting_name(medium.kind, name)
    fix = f"set {setting}={clip_repr(value)} for all media with --processor-set, or "
    fact = "is read by the processor's settings"
    raise unsupported_option(
        medium.kind, name, value, fact, fix if setting in files.settings else ""
    )


def _setting_name(kind: str, option: str) -> str:
    return f"{kind}s.{'num_frames' if option == 'nframes' else option}"


def _find_unequal_options(
    medium: Media, info: MediaInfo | None, files: ProcessorFiles
) -> dict[str, Any]:
    """Return the options of a medium that do not say what the processor's settings say, too."""
    settings, unequal = files.settings, {}
    for option, value in medium.requests.items():
        if option in OF_FRAMES and info is not None and info.extracted:
            continue
        is_off = option in _SAMPLING and not settings.get("videos.do_sample_frames")
        if is_off or settings.get(_setting_name(medium.kind, option)) != value:
            unequal[option] = value
    return unequal


def _requested_size(
    info: MediaInfo, asked: dict[str, Any], limits: PixelLimits
) -> tuple[int, int] | None:
    """Return the height and width that an image is resized to; None if the options have none."""
    if any(type(value) is not int or value < 1 for value in asked.values()):
        return None
    factor = limits.factor
    height: Any = asked.get("resized_height")
    width: Any = asked.get("resized_width")
    least = asked.get("min_pixels", _MIN_TOKENS * factor**2)
    most = asked.get("max_pixels", _MAX_TOKENS * factor**2)
    if height is not None or width is not None:  # wins over limits
        least, most = _MIN_TOKENS * factor**2, _MAX_TOKENS * factor**2
    else:
        height, width = info.height, info.width
    if height is None or width is None or least > most:
        return None
    limits = replace(limits, min_pixels=least, max_pixels=most)
    heights, widths = limits.resized(height, width)
    return (int(heights[0]), int(widths[0])) if heights[0] else None
