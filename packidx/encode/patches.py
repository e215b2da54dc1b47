"""Whether transformers makes the patches that were counted: by its settings, and by its grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packidx.encode.imports import transformers_class
from packidx.errors import MismatchError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import KINDS, MediaColumns
from packidx.processor.families import FAMILIES
from packidx.processor.fingerprint import complete_settings, setting_differences


def check_settings(processor: Any, files: ProcessorFiles, kind: str) -> Any:
    """`processor`, which transformers loaded of a folder, if its settings are the counted ones.

    A folder may hold two files of settings that differ, of which releases read one or the other.

    Args:
        kind: ``"image"`` or ``"video"``.

    Raises:
        MismatchError: they are others.
    """
    family = next((known for known in FAMILIES.values() if known.name == files.family), None)
    counted = files.image_settings if kind == "image" else files.video_settings
    if family is None or counted is None:
        return processor
    defaults = family.image_defaults if kind == "image" else family.video_defaults
    loaded = complete_settings(processor.to_dict(), defaults, family.settings, family.older_names)
    differences = setting_differences({kind: loaded}, {kind: counted})
    if differences:
        release = transformers_class("__version__")
        raise MismatchError(
            f"transformers {release} reads the settings of {files.name} otherwise than they were "
            f"counted ({', '.join(differences)}): make its preprocessor_config.json and "
            "processor_config.json agree, or use the release that saved it"
        )
    return processor


def check_tiles(media: MediaColumns, pixels: Mapping[str, Any], name: str) -> None:
    """The same for InternVL, whose patches are tiles of ``pixel_values`` and have no grids.

    Raises:
        MismatchError: there are more or fewer.
    """
    given, counted = len(pixels["pixel_values"]), int(media.grid[:, 0].sum())
    if given != counted:
        raise _other_patches("image", name, f"{given} tiles", counted)


def check_grids(media: MediaColumns, pixels: Mapping[str, Any], name: str) -> None:
    """That the grids which transformers gives are those that were counted.

    A release that does not know a setting of the processor leaves it out without a word.

    Args:
        media: a sample's, counted.
        pixels: the tensors that transformers made of them.
        name: the processor's.

    Raises:
        MismatchError: they are others.
    """
    for number, kind in enumerate(KINDS):
        given = pixels.get(f"{kind}_grid_thw")
        if given is None:
            continue
        grids, counted = np.asarray(given), media.grid[media.kind == number]
        in_chunks = len(grids) > len(counted)  # Kimi's videos
        if in_chunks and grids.prod(1).sum() == counted.prod(1).sum():
            continue
        if np.array_equal(grids, counted):
            continue
        made = f"grids {grids.tolist()} (time, height, width)"
        raise _other_patches(kind, name, made, counted.tolist())


def _other_patches(kind: str, name: str, made: str, counted: Any) -> MismatchError:
    return MismatchError(
        f"the {kind} processor of {name} makes {made} of a sample, and {counted} were counted: "
        f"transformers {transformers_class('__version__')} does not read its settings as they were "
        "counted, use a newer release"
    )


def not_built(name: str, media: str, cause: Exception) -> MismatchError:
    """The error where transformers refuses media that were counted, as older releases do."""
    reason = " ".join(str(cause).split())[:120]
    return MismatchError(
        f"transformers {transformers_class('__version__')} does not build {media}, which were "
        f"counted, with the processor {name} ({reason}): use a newer release, or estimate again "
        "without them"
    )
