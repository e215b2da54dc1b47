"""Appending: what must hold for a plan to take over the windows of an earlier one."""

from __future__ import annotations

from packidx.errors import OptionError
from packidx.index.reader import Index
from packidx.lengths.table import Lengths
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.windows import Window, taken_windows


def may_append(table: Lengths, options: ResolvedOptions, append: Index) -> list[Window]:
    """The windows of `append`, if these lengths and options go on where it ends, with new samples.

    Raises:
        OptionError: they do not; the message says in what.
    """
    windows = taken_windows(append.snapshot.result)
    mine, theirs = options.to_json(), append.snapshot.options.to_json()
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        if name != "appends_to" and mine.get(name) != theirs.get(name):
            raise OptionError(
                f"append: {name} is {mine.get(name)!r}, in {append.path}@{append.id[:12]} it is "
                f"{theirs.get(name)!r}: plan with the same options, or without --append"
            )
    old, new = append.snapshot.shards, table.shards
    rows = append.snapshot.lengths.num_samples
    if not old or sum(shard.rows for shard in old) != rows:
        raise OptionError(
            f"append: {append.path}@{append.id[:12]} does not say which shards its samples are of: "
            "estimate the lengths with packidx"
        )
    for number, shard in enumerate(old):
        if number >= len(new) or any(
            getattr(new[number], name) != getattr(shard, name)
            for name in ("fingerprint", "rows", "source")
        ):
            raise OptionError(
                f"append: shard {number} of {append.path}@{append.id[:12]} is {shard.uri}, and "
                f"of {table.uri} {new[number].uri if number < len(new) else 'nothing'}: new "
                "shards must follow those that are planned"
            )
    was, now = append.snapshot.lengths.encoder, table.encoder
    if (was and was.fingerprint) != (now and now.fingerprint):
        raise OptionError(
            f"append: {table.uri} was counted by another encoder than {append.path}@"
            f"{append.id[:12]}: plan anew"
        )
    if table.num_samples == rows:
        raise OptionError(
            f"append: {table.uri} has no sample after the {rows:,} that {append.path}@"
            f"{append.id[:12]} has planned: estimate it with the new shards first"
        )
    return windows
