"""A stream's log becomes a snapshot: the plan that it was, compared with what was given out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from packidx.errors import FormatError, OptionError, VerificationError
from packidx.format.terms import LOG_RECIPE
from packidx.index import open_index
from packidx.plan.api import PlanSummary, plan_packs
from packidx.plan.options import PlanOptions

_RECORD = ("position", "sample_id", "copy", "length")


def freeze_log(
    log: str | Path,
    output: str | Path,
    *,
    lengths: str | Path | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> PlanSummary:
    """Make a snapshot of the packs that a stream has given out, with their places for numbers.

    A stream is a pure function of its records, so the snapshot is planned, and every pack of it is
    compared with the log. A log that ends before its stream is compared as far as it goes.

    Args:
        log: folder that `StreamLoader` wrote.
        output: folder of the index.
        lengths: the lengths table of the records, where the stream counted them itself.
        progress: is called with what is being done.

    Raises:
        FormatError: `log` is none, or lacks a place.
        OptionError: the lengths are not known.
        VerificationError: what was given out is not what the stream of these lengths gives.
    """
    log = Path(log)
    if not (log / LOG_RECIPE).exists() and (log / "epoch-0").is_dir():
        log = log / "epoch-0"
    try:
        recipe: dict[str, Any] = json.loads((log / LOG_RECIPE).read_text())
    except (OSError, ValueError) as error:
        text = f"{log} is not a log of a stream ({error}): name StreamLoader's"
        raise FormatError(text) from None
    if recipe["epoch"]:
        raise OptionError(
            f"{log} is of epoch {recipe['epoch']}, and a plan has the order of epoch 0: freeze that"
        )
    table: str | Path | None = lengths or recipe["lengths"]
    if table is None:
        raise OptionError(
            f"the records of {log} were counted as they came: count them with `packidx estimate`,"
            " and name that table with --lengths"
        )
    given = _read_logged_packs(log)
    options = PlanOptions(**recipe["options"])
    with tempfile.TemporaryDirectory() as scratch:
        index = open_index(plan_packs(table, scratch, options, progress=progress).path)
        progress("comparing packs")
        planned = pl.DataFrame(pl.from_arrow(index.samples(["pack_id", *_RECORD])))
        of_plan = planned.rename({"pack_id": "place"}).filter(
            pl.col("place") <= given["place"].max()
        )
        columns = ["place", *_RECORD]
        casts = [pl.col(name).cast(pl.Int64) for name in columns]
        ones, others = given.select(casts), of_plan.select(casts)
        differing = pl.concat(
            [ones.join(others, on=columns, how="anti"), others.join(ones, on=columns, how="anti")]
        )
        if differing.height:
            raise VerificationError(
                f"{log} has another pack at place {differing['place'].min()!s} than a stream of "
                "these lengths gives: the records have changed since, or are counted otherwise"
            )
    return plan_packs(table, output, options, progress=progress)


def _read_logged_packs(log: Path) -> pl.DataFrame:
    """The packs that were given out, by place and position.

    Raises:
        FormatError: a place is missing.
    """
    paths = sorted(log.glob("packs-*.parquet"))
    if not paths:
        raise FormatError(f"{log} holds no pack yet: the log is written when a state is saved")
    rows = pl.concat([pl.read_parquet(path, glob=False) for path in paths])
    rows = rows.unique().sort("place", "position")
    for place, at in enumerate(rows["place"].unique().sort().to_list()):
        if place != at:
            raise FormatError(
                f"{log} has no pack at place {place}: every rank writes its own, so put the files"
                " of all of them into one folder"
            )
    return rows
