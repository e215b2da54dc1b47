"""What `estimate` and `precompute` say of their sources at the end: a table, warnings, an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .console import count, format_table, print_text, say

_Examples = Mapping[tuple[str, str], tuple[str, str]]


def print_sources(sources: Sequence[Mapping[str, Any]], examples: _Examples) -> None:
    """Per source what is usable and what is not, by reason, commonest first.

    Args:
        sources: ``name``, ``num_samples``, ``num_rejected`` and ``rejected`` (rows by reason).
        examples: source and reason -> a record and what is wrong with it.
    """
    rows = []
    for source in sources:
        good = source["num_samples"] - source["num_rejected"]
        rows.append([source["name"], count(good), count(source["num_rejected"]), "", ""])
        for reason, number in sorted(source["rejected"].items(), key=lambda pair: -pair[1]):
            example = examples.get((source["name"], reason))
            rows.append(["", "", count(number), reason, ": ".join(example) if example else ""])
    header = ["source", "ok", "rejected", "reason", "for example"]
    width = len(header) if examples else len(header) - 1
    cells = [row[:width] for row in rows]
    right = [False, True, True, False, False][:width]
    print_text(format_table(header[:width], cells, right))


def warn_of_rejected(sources: Sequence[Mapping[str, Any]], limit: str | None, path: str) -> None:
    """Warnings on stderr, and the error where a source is over the limit.

    Raises:
        SourceError: more of a source is rejected than `limit`, or, without one, all of it.
    """
    from packidx.estimate.summary import check_rejected, over_limit, read_limit, rejection_warnings

    share = read_limit(limit)
    over = over_limit(sources, share)
    for text in rejection_warnings([source for source in sources if source not in over]):
        say(f"warning: {text}", err=True)
    check_rejected(sources, share, path)
