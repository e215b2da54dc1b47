"""An image whose pixels are kept, in the place of one that would be decoded."""

from __future__ import annotations

from typing import Any

from PIL import Image

from packidx.format.pixels import KeptPixels
from packidx.records.media.images import open_image


class KeptImage(Image.Image):
    """An image as `open_image` opens it, which is decoded if somebody looks at its pixels or draws
    on them; it is an image as any other one then.

    Args:
        kept: what is kept of it.
        content: of its file.
        label: how errors name it.

    Attributes:
        is_decoded: its pixels may be others than those that were kept.
    """

    def __init__(self, kept: KeptPixels, content: bytes, label: str | None) -> None:
        self.is_decoded = True  # not while it is made
        super().__init__()
        self.kept = kept
        self._content, self._label = content, label
        self._size, self._mode = (kept.width, kept.height), kept.mode
        self.is_decoded = False

    def load(self) -> Any:
        """Decode it; see the base."""
        if not self.is_decoded:
            image = self.decoded()
            self.is_decoded = True
            self.im, self.palette, self.info = image.im, image.palette, image.info
        return super().load()

    @property
    def info(self) -> Any:
        """What its file says besides; see the base."""
        if not self.is_decoded:
            self.load()
        return self._info

    @info.setter
    def info(self, value: Any) -> None:
        self._info = value

    def decoded(self) -> Image.Image:
        """The image itself."""
        image = open_image(self._content, self._label)
        image.load()
        return image

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.is_decoded:
            return self.copy().__reduce_ex__(protocol)
        return KeptImage, (self.kept, self._content, self._label)
