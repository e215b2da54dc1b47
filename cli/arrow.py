"""Arrow without pandas, which it imports at its first array to see whether that is a Series.

Where pandas is installed this takes a fifth of the time of a plan of a million samples. Commands
that run no code of the user's, and hand no data frames out, can do without.
"""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    """A finder that finds everything but pandas."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def spare_pandas() -> None:
    """Let Arrow find, and remember, that there is no pandas in this process."""
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    finder: Any = _NoPandas
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
