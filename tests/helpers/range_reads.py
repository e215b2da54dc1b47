"""Which ranges of files are read: few and small ones are what `packidx.io.ranges` is for."""

from __future__ import annotations

import pytest

from packidx.io import storage


class Reads:
    """Places that are read of files while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[int, int]] = []
        read = storage.read_range

        def noted(path: str, offset: int, nbytes: int) -> bytes:
            self.places.append((offset, nbytes))
            return read(path, offset, nbytes)

        monkeypatch.setattr(storage, "read_range", noted)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.places)
