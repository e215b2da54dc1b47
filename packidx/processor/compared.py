"""What is known of a processor's counts: whether they were compared with the real processor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TEXT, IMAGE = "text", "image"


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of building samples with the real processor and counting them with ours."""

    by: str | None = None
    """``'transformers 5.23.0'``; None where nothing was compared."""
    records: int = 0
    """Samples that both built."""
    reason: str | None = None
    """Why nothing was compared."""
    equal: tuple[str, ...] = ()
    """Kinds of samples, `TEXT` alone or with an `IMAGE`, that had the same tokens, each of them."""
    unequal: tuple[str, ...] = ()
    """Kinds of which at least one sample had other tokens."""
    detail: str | None = None
    """The first difference."""

    def to_json(self) -> dict[str, Any]:
        """``encoder.compared`` of a lengths manifest (FORMAT.md)."""
        if self.by is None:
            return {"with": None, "reason": self.reason}
        stated: dict[str, Any] = {"with": self.by, "records": self.records}
        stated["equal"] = list(self.equal)
        if self.unequal:
            stated |= {"unequal": list(self.unequal), "detail": self.detail}
        return stated
