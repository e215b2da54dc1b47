"""Who sums lengths up; the sums are the same."""

from typing import Literal

Engine = Literal["duckdb", "polars"]
ENGINES: tuple[Engine, ...] = ("duckdb", "polars")
