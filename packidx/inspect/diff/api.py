"""`diff`: two plans side by side."""

from __future__ import annotations

from collections.abc import Callable

from packidx.index.reader import Index
from packidx.inspect.diff import match, samples, stated
from packidx.inspect.diff.results import Both, PlanDiff, Side


def diff(
    a: Index, b: Index, *, examples: int = 3, progress: Callable[[str], None] = lambda doing: None
) -> PlanDiff:
    """What plan `b` differs in from plan `a`.

    Samples are matched by their ids where both plans are of the same lengths; else by source and
    key, where these name one sample (of a preference pair: two) each; else by row in shards of the
    same content.

    Args:
        a, b: of one index or of two.
        examples: samples of each kind that are named.
        progress: told what is being done.

    Raises:
        FormatError: a file is missing or damaged.
    """
    side_a, side_b = (Side(index.path, index.id, index.snapshot.created) for index in (a, b))
    if a.id == b.id:
        nothing = Both(None, None)
        return PlanDiff(True, side_a, side_b, {}, {}, {}, {}, {}, nothing, {}, None)
    progress("comparing packs")
    cost, useful = stated.costs(a, b)
    progress("reading samples")
    with match.opened(a, b) as connection:
        of_sources = samples.sources(connection)
        progress("matching samples")
        how = match.matched_by(connection, a, b)
        told = None if how is None else samples.sample_diff(connection, how, examples)
    one, two = a.snapshot, b.snapshot
    return PlanDiff(
        same=False,
        a=side_a,
        b=side_b,
        options=stated.options(one, two),
        lengths=stated.lengths(one, two),
        counts=stated.counts(one, two),
        dropped=stated.dropped(one, two),
        sources=of_sources,
        cost=cost,
        useful=useful,
        samples=told,
    )
