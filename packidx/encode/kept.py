"""An image whose pixels are kept, in the place of one that would be decoded."""

from __future__ import annotations

from typing import Any

from PIL import Image

from packidx.format.pixels import KeptPixels
from packidx.records.media.images import open_image


class KeptImage(Image.Image):
    """An image as `open_image` opens it, which is decoded only if somebody looks at its pixels.

    Args:
        kept: what is kept of it.
        content: of its file.
        label: how errors name it.
    """

    def __init__(self, kept: KeptPixels, content: bytes, label: str | None) -> None:
        super().__init__()
        self.kept = kept
        self._content, self._label = content, label
        self._size, self._mode = (kept.width, kept.height), kept.mode
        self._is_decoded = False

    def load(self) -> Any:
        """Decode it; see the base."""
        if not self._is_decoded:
            image = self.decoded()
            self.im, self.palette, self.info = image.im, image.palette, image.info
            self._is_decoded = True
        return super().load()

    def decoded(self) -> Image.Image:
        """The image itself."""
        image = open_image(self._content, self._label)
        image.load()
        return image
