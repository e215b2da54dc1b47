"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes of ``4GB``, ``500M``, ``2GiB`` or ``1000``; None of what is not a size.

    K, M, G and T are powers of 1,000, with an ``i`` of 1,024.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    power = " KMGT".index(match[2].upper() or " ")
    return int(Fraction(match[1]) * (1024 if match[3] else 1000) ** power)
