"""Patches of a vision tower in a third of their processor's time, also as bytes.

A processor rescales and normalises every pixel, in float32, and cuts the result, twice as large as
it need be, into patches. Here the bytes of a resized image are cut, once; what the processor makes
of each of the 256 values of a channel stands in a table that is read off its own results.

Nothing is believed of a processor. Some images are made both ways when it is first used, and so is
the first real image of each kind; where the results differ in one bit, the processor makes the
pixels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packidx.encode.imports import import_torch
from packidx.encode.media import NotBuilt
from packidx.encode.whole import quiet_transformers
from packidx.errors import OptionError
from packidx.processor.families.base import FamilyMedia
from packidx.records.conversation import MediaInfo

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("packidx.encode")

FORMS = ("float32", "bfloat16", "uint8")
"""How pixels are given; as bytes, `packidx.torch.normalise_pixels` makes floats of them."""

Allocate = Callable[["tuple[int, ...]", "torch.dtype"], "torch.Tensor"]
"""(shape, dtype) → a tensor of any content."""

_SIDES = ((333, 500), (48, 64), (29, 31), (97, 333))
"""Pixels (height, width) of the noise that a processor is tried with."""
_BLOCK = 16
"""Pixels per side of one value's square, of all 256 values."""
_CHUNK = 512
"""Patches that are made floats of at a time: they stay in a core's cache."""
_BAND = 4
"""Rows of tokens that are cut at a time, for the same reason."""
_NO_BYTES = "makes pixels of an image that are of no bytes (train with pixels='float32')"
_MODES = {2: "bilinear", 3: "bicubic"}
"""Pillow's number of a filter → torch's name."""


def patches_of(part: Any, vision: FamilyMedia, form: str) -> ImagePatches | None:
    """Return what makes the patches that an image processor makes; None if that is not proven.

    Args:
        part: a transformers image processor.
        vision: counts its patches.
        form: one of `FORMS`.
    """
    if "image_grid_thw" not in vision.model_inputs or vision.pixels_in_order:
        return None
    for by_torch in (True, False):
        reason = "its results are others"
        try:
            with quiet_transformers():
                patches = ImagePatches(part, vision, form, by_torch)
                if patches.learn():
                    return patches
        except MemoryError:
            raise
        except Exception as error:  # a class that fails is as one that makes other pixels
            reason = f"{type(error).__name__}: {error}"
        _log.info("%s makes the pixels itself (%s)", type(part).__name__, reason)
    return None


class ImagePatches:
    """Makes patches of images as a processor does, once `learn` has found out what it does.

    Args:
        part, vision, form: as of `patches_of`.
        by_torch: True to resize as torchvision resizes tensors of bytes, False as Pillow does.

    Attributes:
        table: float32 ``[frames, 256, 3]``: what a value of a channel becomes in each of the frames
            that a patch repeats.
    """

    table: NDArray[np.float32]

    def __init__(self, part: Any, vision: FamilyMedia, form: str, by_torch: bool) -> None:
        self._part, self._vision, self._by_torch = part, vision, by_torch
        self._is_bytes = form == "uint8"
        self._dtype = getattr(import_torch(), form)
        self._side, self._merge = int(part.patch_size), int(part.merge_size)
        self._resample = int(part.resample)
        self._is_same: dict[tuple[Any, ...], bool] = {}

    def learn(self) -> bool:
        """Fill the table; return whether images are made as by the processor, to the last bit."""
        squares = _every_value()
        made, grid = self._by_processor(squares)
        cut = self._cut_patches(squares, grid)
        frames = made.shape[1] // cut[0].size
        values = made.numpy().reshape(len(cut), 3, frames, -1)
        table = np.full((256, 3), np.nan, np.float32)
        for channel in range(3):
            table[cut[:, channel], channel] = values[:, channel, 0]
        if np.isnan(table).any():
            return False
        self.table = np.repeat(table[None], frames, axis=0)
        noises = [_make_noise(*sides) for sides in _SIDES]
        return all(self._is_equal(image) for image in (squares, *noises, noises[0].convert("L")))

    def __call__(
        self, images: Sequence[Image.Image], grids: NDArray[np.int64], allocate: Allocate
    ) -> dict[str, torch.Tensor]:
        """Return ``pixel_values`` and ``image_grid_thw`` of the images of one sample.

        Args:
            images: decoded.
            grids: int64 ``[n, 3]``, as they were counted.
            allocate: gives the tensor that the patches are written into.

        Returns:
            ``pixel_values`` ``[patches, dim]``: as the processor's, float32 or bfloat16; or bytes,
            uint8 ``[patches, 3 * side²]``, a channel after the other.

        Raises:
            NotBuilt: the processor refuses an image, or makes other patches than were counted.
        """
        rows = [0, *np.cumsum(np.prod(grids, axis=1)).tolist()]
        columns = 3 * self._side**2 * (1 if self._is_bytes else len(self.table))
        pixels = allocate((rows[-1], columns), self._dtype)
        for number, image in enumerate(images):
            own = pixels[rows[number] : rows[number + 1]]
            self._write_image(image, grids[number].tolist(), own)
        return {"pixel_values": pixels, "image_grid_thw": import_torch().from_numpy(grids)}

    def resized(self, image: Image.Image) -> Image.Image | None:
        """Return an image at its processor's size, RGB; the processor makes the same pixels of it.

        None if the processor would resize that one, too, as narrow images beyond its limits.

        Raises:
            BadRecord: it cannot be counted.
            NotBuilt: the processor refuses it.
            OptionError: the processor makes other pixels of the resized image.
        """
        grid = self._count_grid(image.height, image.width)[0].tolist()
        height, width = grid[1] * self._side, grid[2] * self._side
        if self._count_grid(height, width)[0].tolist() != grid:
            return None
        pixels = self._resize_image(_as_rgb(image), height, width)
        made = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        kind = ("resized", *_image_kind(image, grid, self._side, self._side * self._merge))
        if kind not in self._is_same:
            (before, own), (after, others) = self._by_processor(image), self._by_processor(made)
            self._is_same[kind] = own == others == grid and bool((before == after).all())
        if not self._is_same[kind]:
            raise OptionError(
                f"{type(self._part).__name__} makes other pixels of a {image.mode} image of "
                f"{image.width}x{image.height} once it is resized to {width}x{height}: train on "
                "the originals"
            )
        return made

    def _count_grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the grid of an image as it is counted, int64 ``[1, 3]``."""
        counted = self._vision.expand("image", [MediaInfo(height, width)])
        for error in counted.errors.values():
            raise error
        return counted.grids

    def _write_image(self, image: Image.Image, grid: list[int], out: torch.Tensor) -> None:
        kind = _image_kind(image, grid, self._side, self._side * self._merge)
        if kind not in self._is_same:
            self._is_same[kind] = self._is_equal(image)
        if not self._is_same[kind]:
            made, own = self._by_processor(image)
            if own != grid:
                raise NotBuilt(f"makes an image of grid {own}, and {grid} were counted")
            if self._is_bytes:
                raise NotBuilt(_NO_BYTES)
            out.copy_(made)
        elif self._is_bytes:
            self._cut_patches(image, grid, out.numpy())
        else:
            self._fill_floats(self._cut_patches(image, grid), out)

    def _is_equal(self, image: Image.Image) -> bool:
        """Return True if the processor makes an image as is done here."""
        made, grid = self._by_processor(image)
        if grid != self._count_grid(image.height, image.width)[0].tolist():
            return False
        own = import_torch().empty_like(made)
        self._fill_floats(self._cut_patches(image, grid), own)
        return bool((own == made).all())

    def _by_processor(self, image: Image.Image) -> tuple[torch.Tensor, list[int]]:
        """Return the processor's patches of an image, float32 ``[patches, dim]``, and its grid."""
        try:
            made = self._part(images=[[image]], return_tensors="pt", **self._vision.image_options)
        except ValueError as error:
            reason = " ".join(str(error).split())[:120]
            size = f"{image.width}x{image.height}"
            raise NotBuilt(f"does not build images of {size} ({reason})") from error
        pixels, grids = made["pixel_values"], made["image_grid_thw"].tolist()
        if pixels.dtype != import_torch().float32 or len(grids) != 1:
            raise NotBuilt(f"makes pixels of {pixels.dtype} and {len(grids)} grids of an image")
        return pixels, grids[0]

    # -- the way of an image ----------------------------------------------------------------------

    def _resize_image(self, image: Image.Image, height: int, width: int) -> NDArray[np.uint8]:
        """Return an RGB image of another size, uint8 ``[3, height, width]``."""
        is_equal, library = image.size == (width, height), import_torch()
        if not self._by_torch and not is_equal:
            image = image.resize((width, height), resample=Image.Resampling(self._resample))
        pixels = library.from_numpy(np.asarray(image)).permute(2, 0, 1)
        if self._by_torch and not is_equal:
            mode, resize = _MODES[self._resample], library.nn.functional.interpolate
            pixels = resize(pixels[None], (height, width), mode=mode, antialias=True)[0]
        channels: NDArray[np.uint8] = pixels.contiguous().numpy()
        return channels

    def _cut_patches(
        self, image: Image.Image, grid: Sequence[int], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the bytes of an image's patches, uint8 ``[patches, 3, side²]``, in squares of
        merged ones; they are written into `out`, uint8 ``[patches, 3 * side²]``, if it is given."""
        side, merge = self._side, self._merge
        _, rows, columns = grid
        resized = self._resize_image(_as_rgb(image), rows * side, columns * side)
        cut = np.empty((rows * columns, 3 * side * side), np.uint8) if out is None else out
        # By the largest whole number that divides a patch's row: copying single bytes is slow.
        unit = next(size for size in (8, 4, 2, 1) if side % size == 0)
        words = resized.view(f"u{unit}").reshape(
            (3, rows // merge, merge, side, columns // merge, merge, side // unit)
        )
        shape = (rows // merge, columns // merge, merge, merge, 3, side, side // unit)
        into, ordered = cut.view(f"u{unit}").reshape(shape), words.transpose(1, 4, 2, 5, 0, 3, 6)
        for begin in range(0, rows // merge, _BAND):
            band = slice(begin, begin + _BAND)
            for column in range(side // unit):
                into[band, ..., column] = ordered[band, ..., column]
        return cut.reshape(len(cut), 3, -1)

    def _fill_floats(self, cut: NDArray[np.uint8], out: torch.Tensor) -> None:
        """Write what the processor makes of a patch's bytes into each of its frames."""
        library, into = import_torch(), out.view(len(cut), 3, -1)
        columns = np.ascontiguousarray(self.table[0].T)
        chunk = np.empty((_CHUNK, *cut.shape[1:]), np.float32)
        for begin in range(0, len(cut), _CHUNK):
            some = cut[begin : begin + _CHUNK]
            floats = chunk[: len(some)]
            for channel, column in enumerate(columns):
                np.take(column, some[:, channel], out=floats[:, channel], mode="clip")
            values = library.from_numpy(floats).to(out.dtype)
            library.cat([values] * len(self.table), 2, out=into[begin : begin + _CHUNK])


# -- images ----------------------------------------------------------------------------------------


def _as_rgb(image: Image.Image) -> Image.Image:
    """An image in RGB, as transformers' processors convert it."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    from transformers.image_transforms import convert_to_rgb

    with quiet_transformers():
        converted: Image.Image = convert_to_rgb(image)
    return converted


def _image_kind(image: Image.Image, grid: Sequence[int], side: int, square: int) -> tuple[Any, ...]:
    """Return what a processor may go by: an image's mode, its scale, True if it is narrower than
    a token's `square` of pixels, which some releases refuse; `side` is a patch's."""
    is_narrow = min(image.size) < square
    ratio = math.prod(grid) * side**2 / (image.width * image.height)
    scale = round(2 * math.tanh(math.log2(ratio)))
    return image.mode, "transparency" in image.info, is_narrow, scale


def _every_value() -> Image.Image:
    """An image of squares of all 256 values of each channel, in three orders."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(256).reshape(16, 16) for _ in range(3)]
    squares = np.stack(orders, axis=-1).astype(np.uint8)
    return Image.fromarray(squares.repeat(_BLOCK, axis=0).repeat(_BLOCK, axis=1))


def _make_noise(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
