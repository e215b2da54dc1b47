"""A small image that no sample sees, for packs without media."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packidx.errors import OptionError
from packidx.torch.joining import IGNORE, Rules
from packidx.torch.sample import Sample, media_of, normalise

_SIDE = 32  # pixels; processors enlarge it to the smallest size that they take


def dummy_sample(
    encode: Callable[[dict[str, Any]], Mapping[str, Any]],
    rules: Rules | None,
    record: Mapping[str, Any] | None,
) -> Sample:
    """Encode an image as a sample without labels.

    Args:
        encode: the encoder of the dataset.
        rules: how its tensors are joined.
        record: a record with one image; None for a small grey one.

    Raises:
        OptionError: `encode` returns no media for the image.
    """
    if record is None:
        from PIL import Image

        image = {"type": "image", "image": Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))}
        record = {"messages": [{"role": "user", "content": [image]}]}
    sample = normalise(encode(dict(record)), rules)
    if not media_of(sample, rules):
        raise OptionError(
            "encode returned no media for the dummy image: give dummy_image= a record of its own"
            " kind with one small image in it"
        )
    sample["labels"].fill_(IGNORE)
    return sample
