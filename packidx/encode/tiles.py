"""Tiles or whole images as the bytes that their processor makes floats of.

A processor of such a family rescales and normalises as its last step. Here it is called without
that step, and what the step makes of each of the 256 values of a channel stands in a table.

Nothing is believed of a processor: see `packidx.encode.patches`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packidx.encode.imports import import_torch
from packidx.encode.patches import SIDES, bytes_of, every_value, looked_up, noise, table_of, trial
from packidx.processor.families.base import FamilyMedia

if TYPE_CHECKING:
    import torch

_LAST_STEP = {"do_rescale": False, "do_normalize": False}


def byte_part(part: Any, vision: FamilyMedia) -> BytePart | None:
    """Return an image processor that gives bytes; None where it is not proven that they become its
    own floats."""
    if "image_grid_thw" in vision.model_inputs and not vision.pixels_in_order:
        return None  # patches
    made = BytePart(part)
    return made if trial(part, lambda: made.learn(vision)) else None


class BytePart:
    """An image or video processor whose pixels are bytes.

    Args:
        part: of transformers.
        table: as `packidx.encode.patches.ImagePatches` has it; of an image processor `learn` fills
            it.
    """

    def __init__(self, part: Any, table: np.ndarray | None = None) -> None:
        self._part = part
        self._is_same: dict[tuple[Any, ...], bool] = {}
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    @property
    def table(self) -> np.ndarray:
        """float32 ``[1, 256, 3]``: what a value of a channel becomes."""
        assert self._table is not None  # see `learn`
        return self._table

    def learn(self, vision: FamilyMedia) -> bool:
        """Fill the table; return whether the floats of some images are in it, to the last bit."""
        squares = every_value()
        given = {"return_tensors": "pt", **vision.image_options}
        floats = self._part(images=[[squares]], **given)["pixel_values"]
        cut = self._part(images=[[squares]], **given, **_LAST_STEP)["pixel_values"]
        if cut.ndim != 4 or cut.shape[1] != 3 or cut.dtype != import_torch().uint8:
            return False
        self._table = table_of(cut.flatten(2).numpy(), floats.flatten(2).numpy())[None]
        if np.isnan(self._table).any():
            return False
        images = [noise(*sides) for sides in SIDES]
        several = [images] if not vision.pixels_in_order else []
        for of_sample in ([squares], *([image] for image in images), *several):
            self(images=[of_sample], **given)
            if not all(self._is_same.values()):
                return False
            self._is_same.clear()
        return True

    def __call__(self, **given: Any) -> Any:
        """Return what the processor makes, its pixels uint8.

        Raises:
            NotBuilt: it makes floats that are of no bytes.
        """
        name = "pixel_values" if "images" in given else "pixel_values_videos"
        images = [image for of_sample in given.get("images", ()) for image in of_sample]
        modes = sorted({(image.mode, "transparency" in image.info) for image in images})
        made = self._part(**given, **_LAST_STEP)
        kind = (name, len(made[name]), *modes)
        if self._is_same.get(kind):
            return made
        floats = self._part(**given)
        if kind not in self._is_same:
            self._is_same[kind] = self._agrees(made[name], floats[name])
        values = floats[name].flatten(0, -4).flatten(2).numpy()
        cut = import_torch().from_numpy(bytes_of(self.table[0], values))
        floats[name] = cut.view(floats[name].shape)
        return floats

    def _agrees(self, made: torch.Tensor, floats: torch.Tensor) -> bool:
        """Return whether the table makes the processor's floats of its bytes."""
        if made.dtype != import_torch().uint8 or made.shape != floats.shape:
            return False
        found = looked_up(self.table[0], made.flatten(0, -4).flatten(2).numpy())
        return np.array_equal(found, floats.numpy().reshape(found.shape))
