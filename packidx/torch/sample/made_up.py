"""Records made up to see what an encoder makes of them; the dummy image of packs without media."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.torch.sample.encoded import IGNORE, Encoded, normalise
from packidx.torch.sample.fitting import up_to
from packidx.torch.sample.join_rules import rules_of

_SIDE = 32  # pixels; processors enlarge it to the least they take


def encode_dummy(
    encode: Callable[[dict[str, Any]], Mapping[str, Any]], record: Mapping[str, Any] | None
) -> Encoded:
    """`record`, or a user's turn with a small grey image, as a sample without labels.

    Raises:
        OptionError: `encode` makes no media of it.
    """
    given = encode(made_up("image") if record is None else dict(record))
    sample = normalise(given, rules_of(encode))
    if not sample.media:
        raise OptionError(
            "encode returned no media for the dummy image: give dummy_image= a record of its own"
            " kind with one small image in it"
        )
    sample.labels.fill_(IGNORE)
    return sample


def check_reserve(dummy: Encoded, options: Options, capacity: int) -> None:
    """Whether the plan `options` leave room for `dummy` in every pack.

    Raises:
        OptionError: they do not.
    """
    needed = up_to(up_to(dummy.length, options.align), options.pad_pack_to)
    if options.reserve < needed:
        raise OptionError(
            f"the dummy image takes {needed} tokens and the plan reserves {options.reserve} of each"
            f" pack's {capacity}: plan with --reserve {needed}"
        )


def made_up(kind: str) -> dict[str, Any]:
    """A record: ``'image'``, a user's turn with a small grey one; ``''``, two words."""
    if not kind:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        return {"messages": turns}
    if kind != "image":
        raise OptionError(f"no {kind} can be made up: give encode a method hole(length, media)")
    from PIL import Image

    image = Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))
    return {"messages": [{"role": "user", "content": [{"type": "image", "image": image}]}]}
