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
_LONGEST = 190  # a side, in times of the other; processors refuse 200


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
        self._made: dict[tuple[tuple[int, int], ...], Sample] = {}
        self.multiple = multiple
        self._patch = self._square = self._least = 0
        if multiple > 1:
            self._learn()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def small(self) -> Sample:
        """The small image, or the user's own record."""
        return self._of_sizes((_SIDE, _SIDE))

    def filling(self, patches: int) -> Sample | None:
        """An image, or two, that bring so many patches to a multiple; None where they are one.

        A pack without patches gets some: all packs then run the vision tower.
        """
        if patches and not patches % self.multiple:
            return None
        return self._of_tokens(self._tokens_for(patches))

    def largest(self) -> int:
        """Tokens of the longest sample that `filling` returns: two images have more around them."""
        every = {self._tokens_for(patches) for patches in range(0, self.multiple, self._square)}
        single = {tokens for tokens in every if _is_taken(tokens)}
        longest = [max(tokens) for tokens in (single, every - single) if tokens]
        return max(length_of(self._of_tokens(tokens)) for tokens in longest)

    def _tokens_for(self, patches: int) -> int:
        """The fewest tokens that fill up, and that a processor makes of an image."""
        step = self.multiple // self._square
        tokens = -(patches // self._square) % step or step
        return tokens + -(-max(0, self._least - tokens) // step) * step

    def _of_tokens(self, tokens: int) -> Sample:
        pixels = self._patch * math.isqrt(self._square)
        parts = [tokens] if _is_taken(tokens) else _halves(tokens)
        sizes = [(rows * pixels, columns * pixels) for rows, columns in map(_sides, parts)]
        sample = self._of_sizes(*sizes)
        made = int(sample["image_grid_thw"].prod(-1).sum())
        if made != tokens * self._square:
            raise OptionError(
                f"pad_vision_to {self.multiple} needs an image of {tokens * self._square} patches,"
                f" and the processor makes {made} of it: its settings limit an image's size"
            )
        return sample

    def _of_sizes(self, *sizes: tuple[int, int]) -> Sample:
        if sizes not in self._made:
            self._made[sizes] = self._encoded(*sizes)
        # Each pack has its own: what is changed in one is not changed in another.
        return {key: value.clone() for key, value in self._made[sizes].items()}

    def _encoded(self, *sizes: tuple[int, int]) -> Sample:
        record = self._record
        if record is None:
            from PIL import Image

            grey = [Image.new("RGB", size[::-1], (127, 127, 127)) for size in sizes]
            content = [{"type": "image", "image": image} for image in grey]
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
        self._least = math.prod(self.small()["image_grid_thw"][0].tolist()) // self._square
        if self.multiple % self._square:
            raise OptionError(
                f"pad_vision_to {self.multiple} is not a multiple of the {self._square} patches of"
                " a token"
            )


def _is_taken(tokens: int) -> bool:
    """Return whether a processor takes the squarest image of so many tokens."""
    rows, columns = _sides(tokens)
    return columns <= _LONGEST * rows


def _halves(tokens: int) -> list[int]:
    """Return the tokens of two images of about one size that are so many together."""
    firsts = (tokens // 2 + at for at in range(tokens // 2))
    return next([n, tokens - n] for n in firsts if _is_taken(n) and _is_taken(tokens - n))


def _sides(tokens: int) -> tuple[int, int]:
    """The rows and columns of the squarest grid of so many tokens."""
    rows = next(n for n in range(math.isqrt(tokens), 0, -1) if tokens % n == 0)
    return rows, tokens // rows
