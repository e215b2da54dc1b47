"""Settings that are given beside a processor's folder: checked, and put into what it states."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from packidx.errors import OptionError, SourceError
from packidx.processor.families import Family
from packidx.processor.families.base import CLIP_DEFAULTS
from packidx.processor.fingerprint import EDGES, OF_IMAGES, OF_VIDEOS
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
) -> tuple[Stated, dict[str, Any], dict[str, dict[str, Any]]]:
    """Put settings into what a processor's folder states.

    Args:
        family: of the processor.

    Returns:
        The folder's settings with these in place of its own, these by their full names
        (``{"images.max_pixels": 602112}``), and the keywords of each part's class.

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
    known = {part: _known(family, part, made) for part in (*MEMBERS, OWN)}
    overrides: dict[str, Any] = {}
    keywords: dict[str, dict[str, Any]] = {}
    for part, path, value in _flat(given, family.older_names):
        full, (name, _, key) = _full(part, path), path.partition(".")
        label, (names, now) = f"processor setting {full}", known[part]
        if full in overrides:
            raise OptionError(f"{label} is given twice")
        if name not in names:
            every = [_full(each, other) for each in known for other in sorted(known[each][0])]
            near = [other for other in every if other.rpartition(".")[2] == name]
            near += get_close_matches(full, every, 4)
            listed = ", ".join(dict.fromkeys(near or every))
            raise OptionError(f"{label} does not exist; it may be one of {listed}")
        own = keywords.setdefault(part, {})
        before: Any = own.get(name, now.get(name))
        if key and (not isinstance(before, Mapping) or key not in before):
            raise OptionError(f"{label}: {name} is {json.dumps(before)}, give it as a whole")
        wanted = wanted_type(key or name, value, before[key] if key else now.get(name))
        if wanted is not None:
            raise OptionError(f"{label} is {value!r}: give {wanted}")
        if part in ("images", "videos") and made.place("videos") == made.place("images"):
            made.files[FILES[2]] = deepcopy(made.of("images"))
        overrides[full] = value
        own[name] = made.of(part)[name] = {**before, key: value} if key else value
    always = _SAMPLING if "video_sampling" in family.video_defaults else ()  # SmolVLM samples
    for part, name in ((part, name) for part, own in keywords.items() for name in own):
        switch, (names, now) = _READ_WITH.get(name, ""), _known(family, part, made)
        defaults = family.video_defaults if part == "videos" else family.image_defaults
        is_read = name in always or keywords[part][name] is None
        if switch in names and not is_read and not now.get(switch, not defaults):
            label, needed = f"processor setting {_full(part, name)}", f"{_full(part, switch)}=true"
            raise OptionError(
                f"{label} has no effect without {needed}: add --processor-set {needed}"
            )
    return made, overrides, keywords


def _full(part: str, path: str) -> str:
    return path if part == OWN else f"{part}.{path}"


def _flat(given: Given, older_names: Collection[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield part, name and value of each setting, under the one name that each has.

    Raises:
        OptionError: a part is given without a setting.
    """
    for key, value in given.items():
        part, _, path = key.partition(".")
        if part not in MEMBERS and part != OWN:
            part, path = OWN, key
        if not path and not isinstance(value, Mapping):
            raise OptionError(f"processor setting {key}: write {key}.NAME=VALUE")
        for name, each in ({path: value} if path else value).items():
            if part not in older_names:
                yield part, name, each
            elif name == "size" and isinstance(each, Mapping):
                yield from ((part, EDGES.get(edge, f"size.{edge}"), each[edge]) for edge in each)
            else:
                yield part, EDGES.get(name.removeprefix("size."), name), each


def _known(family: Family, part: str, stated: Stated) -> tuple[Collection[str], Mapping[str, Any]]:
    """Return the names of a part's settings, and their values now, where they have one."""
    if part == OWN:
        own = {name: stated.of(OWN).get(name) for name in family.own_defaults}
        now = family.complete(own, family.own_defaults)
        return family.own_defaults.keys() - {"images_kwargs"}, now
    defaults = {"images": family.image_defaults, "videos": family.video_defaults}.get(part)
    if not defaults and part != "images":
        return (), {}
    now = family.complete(stated.of(part), defaults or {})
    names = {*OF_IMAGES, *(OF_VIDEOS if part == "videos" else ()), *(defaults or {}), *now}
    if part in family.older_names:
        size = now.get("size") or {}
        now |= {EDGES[key]: value for key, value in size.items() if key in EDGES}
        names |= {*EDGES.values()}
    return names, now


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


def _plain(value: Any) -> Any:
    """Return 2.0 as 2, also in an object, without the keys that are null there."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_stated(stated: Stated, family: Family) -> None:
    """Check the types of the settings that a folder of a family states.

    Raises:
        SourceError: one is of another type; the message names file and setting.
    """
    images = {**CLIP_DEFAULTS, **family.image_defaults}
    defaults = {"images": images, "videos": family.video_defaults, OWN: family.own_defaults}
    for part, own in defaults.items():
        for name, value in stated.of(part).items():
            value = _plain(value)
            is_plain_size = name in _SIZES and type(value) is int and value > 0
            is_flag = isinstance(own.get(name), bool) and isinstance(value, bool)
            if name not in own or own[name] is None or is_plain_size or is_flag:
                continue
            if (wanted := wanted_type(name, value, own[name])) is not None:
                path = stated.folder / stated.place(part)[0]
                raise SourceError(f"{path}: {name} is {value!r}: give {wanted}")
