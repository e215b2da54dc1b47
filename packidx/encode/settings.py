"""Settings that are given beside a processor's folder: checked, and put into what it states."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from packidx.errors import OptionError, SourceError
from packidx.processor.families import Family
from packidx.processor.families.base import CLIP_DEFAULTS
from packidx.processor.fingerprint import EDGES, OF_IMAGES, OF_VIDEOS, named_settings, to_plain_json
from packidx.processor.folder import FILES, MEMBERS, OWN, Given, Stated

_SIZES = ("size", "crop_size", "pad_size", "max_image_size")
_MAY_BE_0 = ("num_additional_image_tokens", "initial_shift", "resample")
_FRACTIONS = ("fps", "rescale_factor", "max_duration", "initial_shift")
_SAMPLING = ("fps", "num_frames", "min_frames", "max_frames", "max_duration", "initial_shift")
_READ_WITH = dict.fromkeys(_SAMPLING, "do_sample_frames")
_READ_WITH |= {"crop_size": "do_center_crop", "pad_size": "do_pad"}
_READ_WITH |= {"max_video_tokens": "cap_pixels_per_frame"}
"""Settings, and the ones that switch them on."""


def change_settings(
    stated: Stated, given: Given, family: Family | None
) -> tuple[Stated, dict[str, dict[str, Any]]]:
    """Put settings into what a processor's folder states.

    Args:
        family: of the processor.

    Returns:
        The folder's settings with these in place of its own, and the keywords of each part's class.

    Raises:
        OptionError: there is no such setting, it is of another type, it has no effect, or the
            processor is of no family.
    """
    made = Stated(stated.folder, deepcopy(stated.files))
    if family is None:
        raise OptionError(
            f"settings are taken for families of packidx's own, and {made.folder} is of none: load "
            "the processor with them in transformers, and save_pretrained() another folder"
        )
    known = _list_settings(family, made)
    keywords: dict[str, dict[str, Any]] = {}
    for full, value in given.items():
        if full not in known:
            last = full.rpartition(".")[2]
            near = [name for name in known if name.endswith((f".{last}", f".{EDGES.get(last)}"))]
            listed = ", ".join(near or get_close_matches(full, known, 4) or known)
            raise OptionError(f"processor setting {full} does not exist; it may be one of {listed}")
        part, path = _split_name(full)
        name, _, key = path.partition(".")
        own = keywords.setdefault(part, {})
        before: Any = own.get(name, known.get(full.removesuffix(f".{key}")))
        if key and key not in (before or ()):
            raise OptionError(f"processor setting {full}: {name} is {before}, give it as a whole")
        wanted = wanted_type(key or name, value, known[full])
        if wanted is not None:
            raise OptionError(f"processor setting {full} is {value!r}: give {wanted}")
        if part in ("images", "videos") and made.place("videos") == made.place("images"):
            made.files[FILES[2]] = deepcopy(made.of("images"))
        own[name] = made.of(part)[name] = {**before, key: value} if key else value
    always = _SAMPLING if "video_sampling" in family.video_defaults else ()  # SmolVLM samples
    now = _list_settings(family, made)
    for full in given:
        part, path = _split_name(full)
        name = path.partition(".")[0]
        needed = f"{part}.{_READ_WITH.get(name)}"
        is_read = needed not in now or name in always or given[full] is None
        defaults = family.video_defaults if part == "videos" else family.image_defaults
        is_on = not defaults if now.get(needed) is None else now[needed]
        if not is_read and not is_on:
            raise OptionError(
                f"processor setting {full} has no effect without {needed}=true: add "
                f"--processor-set {needed}=true"
            )
    return made, keywords


def _split_name(full: str) -> tuple[str, str]:
    """Return the part and the path of a setting."""
    part, _, path = full.partition(".")
    return (part, path) if part in MEMBERS else (OWN, full)


def _list_settings(family: Family, stated: Stated) -> dict[str, Any]:
    """Return all settings by their full names, with their values now; None without one."""
    own = {name: stated.of(OWN).get(name) for name in family.own_defaults}
    known = own | family.complete(own, family.own_defaults)
    known.pop("images_kwargs", None)
    for part, defaults in (("images", family.image_defaults), ("videos", family.video_defaults)):
        if defaults or part == "images":
            is_older = part in family.older_names
            now = dict.fromkeys((*OF_IMAGES, *(OF_VIDEOS if part == "videos" else ()), *defaults))
            now |= family.complete(stated.of(part), defaults)
            if is_older:
                now["size"] = {**dict.fromkeys(EDGES), **(now["size"] or {})}
            known |= named_settings(part, now, is_older)
            hidden = {"size"} if is_older else set()
            known |= {f"{part}.{name}": now[name] for name in now.keys() - hidden}
    return dict(sorted(known.items()))


def wanted_type(name: str, value: Any, now: Any) -> str | None:
    """Return what a setting takes if `value` is of another type; None, the class's own, is of any.

    Args:
        now: its value now, or its default.
    """
    is_number = type(value) in (int, float)
    is_number = is_number and (value > 0 or (value == 0 and (now == 0 or name in _MAY_BE_0)))
    if name in _SIZES:
        wanted, fits = "an object of whole numbers", isinstance(value, Mapping)
        fits = fits and all(type(each) is int and each > 0 for each in value.values())
    elif name.startswith(("do_", "cap_")) or (isinstance(now, bool) and name not in _FRACTIONS):
        wanted, fits = "true or false", isinstance(value, bool)
    elif isinstance(now, float) or name in _FRACTIONS:
        wanted, fits = "a number", is_number
    elif isinstance(now, Mapping | list | tuple | str):
        kinds: dict[Any, str] = {Mapping: "an object", (list, tuple): "a list", str: "text"}
        kind = next(kind for kind in kinds if isinstance(now, kind))
        wanted, fits = kinds[kind], isinstance(value, kind)
    else:
        wanted, fits = "a whole number", is_number and isinstance(value, int)
    return None if value is None or fits else wanted


def check_stated(stated: Stated, family: Family) -> None:
    """Check the types of the settings that a folder of a family states.

    Raises:
        SourceError: one is of another type; the message names file and setting.
    """
    images = {**CLIP_DEFAULTS, **family.image_defaults}
    defaults = {"images": images, "videos": family.video_defaults, OWN: family.own_defaults}
    for part, own in defaults.items():
        for name, value in stated.of(part).items():
            if isinstance(value, Mapping):
                value = {key: each for key, each in value.items() if each is not None}
            value = to_plain_json(value)
            is_plain_size = name in _SIZES and type(value) is int and value > 0
            is_flag = isinstance(own.get(name), bool) and isinstance(value, bool)
            if name not in own or own[name] is None or is_plain_size or is_flag:
                continue
            if (wanted := wanted_type(name, value, own[name])) is not None:
                path = stated.folder / stated.place(part)[0]
                raise SourceError(f"{path}: {name} is {value!r}: give {wanted}")
