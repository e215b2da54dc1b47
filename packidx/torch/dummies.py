"""Images that no sample sees: for packs without media, and for vision towers of few shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from packidx.errors import OptionError
from packidx.torch.joining import IGNORE, Rules
from packidx.torch.sample import Sample, length_of, media_of, normalise

_SIDE = 32  # pixels; processors enlarge it to the least they take
_PROBE = (224, 448)  # pixels: both sides are whole squares of 28 and of 32 pixels
_LONGEST = 100  # a side, in times of the other; processors refuse 200
_LEAST = 4  # tokens; processors enlarge smaller images


class DummyImages:
    """Encodes images as samples without labels, each once.

    Args:
        encode: of the dataset.
        rules: how it says that its tensors are joined.
        record: with an image of its own, in place of the small grey one.
        multiple: of which a pack's patches are; 1 pads none.

    Raises:
        OptionError: `encode` makes no media of an image, or not the patches that are wanted.
    """

    def __init__(
        self,
        encode: Callable[[dict[str, Any]], Mapping[str, Any]],
        rules: Rules | None,
        record: Mapping[str, Any] | None,
        multiple: int,
    ) -> None:
        self._encode, self._rules, self._record = encode, rules, record
        self._made: dict[tuple[int, int], Sample] = {}
        self.multiple = multiple
        self._patch = self._square = 0
        if multiple > 1:
            self._learn()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def small(self) -> Sample:
        """The small image, or the user's own record."""
        return self._of_size((_SIDE, _SIDE))

    def filling(self, patches: int) -> Sample | None:
        """An image that brings so many patches to a multiple; None where they are one.

        A pack without patches gets some: all packs then run the vision tower.
        """
        if patches and not patches % self.multiple:
            return None
        return self._of_tokens(self._tokens_for(patches))

    def largest(self) -> int:
        """Tokens of the longest sample that `filling` returns."""
        every = range(0, self.multiple, self._square)
        return length_of(self._of_tokens(max(map(self._tokens_for, every))))

    def _tokens_for(self, patches: int) -> int:
        """Tokens of the smallest image that fills up and has sides a processor takes."""
        step = self.multiple // self._square
        tokens = -(patches // self._square) % step or step
        while tokens < _LEAST or _sides(tokens)[1] > _LONGEST * _sides(tokens)[0]:
            tokens += step
        return tokens

    def _of_tokens(self, tokens: int) -> Sample:
        pixels = self._patch * math.isqrt(self._square)
        rows, columns = _sides(tokens)
        sample = self._of_size((rows * pixels, columns * pixels))
        made = int(sample["image_grid_thw"].prod(-1).sum())
        if made != tokens * self._square:
            raise OptionError(
                f"pad_vision_to {self.multiple} needs an image of {tokens * self._square} patches,"
                f" and the processor makes {made} of it: its settings limit an image's size"
            )
        return sample

    def _of_size(self, size: tuple[int, int]) -> Sample:
        if size not in self._made:
            self._made[size] = self._encoded(size)
        # Each pack has its own: what is changed in one is not changed in another.
        return {key: value.clone() for key, value in self._made[size].items()}

    def _encoded(self, size: tuple[int, int]) -> Sample:
        record = self._record
        if record is None:
            from PIL import Image

            image = Image.new("RGB", size[::-1], (127, 127, 127))
            content = [{"type": "image", "image": image}]
            record = {"messages": [{"role": "user", "content": content}]}
        sample = normalise(self._encode(dict(record)), self._rules)
        if not media_of(sample, self._rules):
            raise OptionError(
                "encode returned no media for the dummy image: give dummy_image= a record of its"
                " own kind with one small image in it"
            )
        sample["labels"].fill_(IGNORE)
        return sample

    def _learn(self) -> None:
        """Find out how many pixels a patch has, and how many patches are a token."""
        images = [self._encoded(size) for size in (_PROBE, (_PROBE[0], _PROBE[0]))]
        longer = length_of(images[0]) - length_of(images[1])
        has_grids = all("image_grid_thw" in each for each in images)
        if self._record is not None or not has_grids or longer <= 0:
            raise OptionError(
                "pad_vision_to is for encoders that return image_grid_thw, and without a"
                " dummy_image of one's own"
            )
        grids = [each["image_grid_thw"][0].tolist() for each in images]
        more = math.prod(grids[0]) - math.prod(grids[1])
        self._patch = _PROBE[0] // grids[0][1]
        self._square = more // longer
        if self.multiple % self._square:
            raise OptionError(
                f"pad_vision_to {self.multiple} is not a multiple of the {self._square} patches of"
                " a token"
            )


def _sides(tokens: int) -> tuple[int, int]:
    """The rows and columns of the squarest grid of so many tokens."""
    rows = next(n for n in range(math.isqrt(tokens), 0, -1) if tokens % n == 0)
    return rows, tokens // rows
