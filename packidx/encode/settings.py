"""Settings that are given beside a processor's folder: read, checked, and made a folder of.

What the folder would be with them lies in the cache: all that reads a processor, transformers
included, reads them there as the folder's own.

<cache>/processors/<digest>/    links to the folder's files, and those of settings written anew
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from packidx.digests import canonical_json, digest
from packidx.encode.imports import load_real
from packidx.errors import MissingExtraError, OptionError, SourceError
from packidx.io import cache
from packidx.processor.families import Family, find_family
from packidx.processor.fingerprint import EDGES, OF_IMAGES, OF_VIDEOS, complete_settings
from packidx.processor.folder import FILES, MEMBERS, OWN, Given, Stated, read_json
from packidx.software import installed

_SIZES = ("size", "crop_size", "pad_size", "max_image_size")
_MAY_BE_0 = ("num_additional_image_tokens", "initial_shift", "resample")
_TOLD = ".packidx.json"
_FRACTIONS = ("fps", "rescale_factor", "max_duration", "initial_shift")


def folder_with(
    folder: Path, given: Given, trusts_code: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Return what a processor's folder would be with settings, and these, each by its one name.

    Args:
        trusts_code: whether code of the folder is run, to see what its classes take.

    Raises:
        OptionError: there is no such setting, or it is of another type.
        SourceError: a file of the folder is broken, or the cache cannot be written.
    """
    there = {entry.name: entry.path for entry in os.scandir(folder.absolute())}
    stated = Stated.read(folder)
    key = digest(canonical_json([there, stated.files, given, installed("transformers")]))
    target = Path(cache.folder(), "processors", key)
    if not target.is_dir():
        made = Stated(folder, deepcopy(stated.files))
        family, told = _change(made, given, trusts_code)
        unsure = _by_part(told, ()) if family is None else {}

        def check(begun: Path) -> None:
            _check(begun, unsure, trusts_code)

        _write(target, there, {**made.files, _TOLD: told}, check)
    return target, read_json(target / _TOLD)


def _change(made: Stated, given: Given, trusts_code: bool) -> tuple[Family | None, dict[str, Any]]:
    """Put settings into a folder's; gives back the family and them by their names."""
    tokenizer_config = read_json(made.folder / "tokenizer_config.json")
    family = find_family(made.processor_class(tokenizer_config), made.of("images"))
    if family is None:  # the class itself knows its settings
        known = _of_class(str(made.folder), trusts_code)
    else:
        known = {part: _of_family(family, part, made) for part in (*MEMBERS, OWN)}
    told: dict[str, Any] = {}
    for part, settings in _by_part(given, family.older_names if family else ()).items():
        if part in ("images", "videos") and made.place("videos") == made.place("images"):
            made.files[FILES[2]] = deepcopy(made.of("images"))
        made.of(part).update(_changes(part, settings, known))
        told |= {_full(part, path): value for path, value in settings.items()}
    return family, told


def _check(folder: Path, by_part: Mapping[str, Mapping[str, Any]], trusts_code: bool) -> None:
    """
    Raises:
        OptionError: the class of a processor's part makes something else of a setting.
    """
    known = _of_class(str(folder), trusts_code) if by_part else {}
    for part, settings in by_part.items():
        for path, value in settings.items():
            name, _, key = path.partition(".")
            taken = known[part][1].get(name)
            taken = taken.get(key) if key and isinstance(taken, Mapping) else taken
            if value is not None and canonical_json(taken) != canonical_json(value):
                label = f"processor setting {_full(part, path)}"
                raise OptionError(f"{label}={value} is not taken: the processor has {taken}")


def _full(part: str, path: str) -> str:
    return path if part == OWN else f"{part}.{path}"


def _by_part(given: Given, older_names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Settings of each part, under the one name that each has.

    Raises:
        OptionError: one is given twice, or a part without a setting.
    """
    by_part: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        part, _, name = key.partition(".")
        if part not in MEMBERS and part != OWN:
            part, name = OWN, key
        if not name and not isinstance(value, Mapping):
            raise OptionError(f"processor setting {key}: write {key}.NAME=VALUE")
        settings = by_part.setdefault(part, {})
        for path, each in _spelled({name: value} if name else value, part in older_names):
            if path in settings:
                raise OptionError(f"processor setting {part}.{path} is given twice")
            settings[path] = each
    return by_part


def _spelled(settings: Mapping[str, Any], older_names: bool) -> Iterator[tuple[str, Any]]:
    for path, value in settings.items():
        if older_names and path == "size" and isinstance(value, Mapping):
            yield from _spelled({f"size.{key}": value[key] for key in value}, older_names)
        elif older_names and path.startswith("size."):
            yield EDGES.get(path.partition(".")[2], path), value
        else:
            yield path, value


Known = tuple[Collection[str], Mapping[str, Any]]
"""Names of a part's settings, and their values now, where they have one."""


def _of_family(family: Family, part: str, stated: Stated) -> Known:
    if part == OWN:
        own = {name: stated.of(OWN).get(name) for name in family.own_defaults}
        now = family.complete(own, family.own_defaults)
        return family.own_defaults.keys() - {"images_kwargs"}, now
    defaults = {"images": family.image_defaults, "videos": family.video_defaults}.get(part)
    if not defaults and part != "images":
        return (), {}
    now = family.complete(stated.of(part), defaults or {})
    names = {*OF_IMAGES, *(OF_VIDEOS if part == "videos" else ()), *(defaults or {}), *now}
    return _with_edges(names, now, part in family.older_names)


def _of_class(folder: str, trusts_code: bool) -> dict[str, Known]:
    """Settings that the processor of a folder takes, by part, as its classes say.

    Raises:
        MissingExtraError: transformers is not installed or cannot be used.
        OptionError: it cannot load the processor.
    """
    try:
        processor = load_real(folder, "AutoProcessor", trusts_code)
    except MissingExtraError:
        raise
    except Exception as error:  # transformers raises whatever the folder makes it stumble over
        reason = " ".join(str(error).split())[:200]
        raise OptionError(
            f"settings are of no use: {folder} cannot be loaded ({reason})"
        ) from error
    own = set(inspect.signature(type(processor).__init__).parameters) & vars(processor).keys()
    own -= {*getattr(type(processor), "attributes", ()), *MEMBERS.values()}
    known: dict[str, Known] = {OWN: (own - {"tokenizer", "chat_template"}, vars(processor))}
    for part, member in MEMBERS.items():
        made = getattr(processor, member, None)
        if made is not None:
            names = set(getattr(getattr(made, "valid_kwargs", None), "__annotations__", ()))
            names |= set(inspect.signature(type(made).__init__).parameters)
            now = complete_settings(made.to_dict(), None, tuple(names))
            known[part] = _with_edges(names, now, {*EDGES.values()} <= names)
    return known


def _with_edges(names: Collection[str], now: Mapping[str, Any], older_names: bool) -> Known:
    """Both with the older names of the limits of pixels."""
    if not older_names:
        return names, now
    size = now.get("size") or {}
    edges = {EDGES[key]: value for key, value in size.items() if key in EDGES}
    return {*names, *EDGES.values()}, {**now, **edges}


def _changes(part: str, settings: Mapping[str, Any], known: Mapping[str, Known]) -> dict[str, Any]:
    """A part's settings that change, whole.

    Raises:
        OptionError: as `folder_with`.
    """
    names, now = known.get(part, ((), {}))
    changes: dict[str, Any] = {}
    for path, value in settings.items():
        label, (name, _, key) = f"processor setting {_full(part, path)}", path.partition(".")
        before: Any = changes.get(name, now.get(name))
        if name not in names:
            every = [_full(each, own) for each in known for own in sorted(known[each][0])]
            near = [own for own in every if own.rpartition(".")[2] == name]
            near += get_close_matches(_full(part, path), every, 4)
            raise OptionError(f"{label}: there is no such one, but {', '.join(near or every)}")
        if key and (not isinstance(before, Mapping) or key not in before):
            raise OptionError(f"{label}: {name} is {json.dumps(before)}, give it as a whole")
        _check_type(label, key or name, value, before[key] if key else now.get(name))
        changes[name] = {**before, key: value} if key else value
    return changes


def _check_type(label: str, name: str, value: Any, now: Any) -> None:
    """
    Raises:
        OptionError: `value` is not what the setting takes; None, the class's own, always is.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_number = is_number and (value > 0 or (value == 0 and (now == 0 or name in _MAY_BE_0)))
    if name in _SIZES or isinstance(now, Mapping):
        wanted = "an object of whole numbers" if name in _SIZES else "an object"
        fits = isinstance(value, Mapping) and (
            name not in _SIZES or all(type(each) is int and each > 0 for each in value.values())
        )
    elif name.startswith("do_") or (isinstance(now, bool) and name not in _FRACTIONS):
        wanted, fits = "true or false", isinstance(value, bool)
    elif isinstance(now, list | tuple):
        wanted, fits = "a list", isinstance(value, list | tuple)
    elif isinstance(now, str):
        wanted, fits = "text", isinstance(value, str)
    elif isinstance(now, float) or name in _FRACTIONS:
        wanted, fits = "a number", is_number
    else:
        wanted, fits = "a whole number", is_number and isinstance(value, int)
    if value is not None and not fits:
        raise OptionError(f"{label} is {value!r}: give {wanted}")


def _write(
    target: Path,
    there: Mapping[str, str],
    files: Mapping[str, Mapping[str, Any]],
    check: Callable[[Path], None],
) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(dir=target.parent))
    except OSError as error:
        raise SourceError(f"{target} cannot be written: {error}") from error
    try:
        for name, content in files.items():
            if content:
                (begun / name).write_text(json.dumps(content), encoding="utf-8")
        for name in there.keys() - {entry.name for entry in begun.iterdir()}:
            (begun / name).symlink_to(there[name])
        check(begun)
        with contextlib.suppress(OSError):  # another process was faster
            begun.rename(target)
    except OSError as error:
        raise SourceError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(begun, ignore_errors=True)
