"""The table of `packidx plan --dry-run`: one line per capacity, and what it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .console import count, number_of, percent, print_json, print_table, say, say_wrapped

if TYPE_CHECKING:
    from packidx.plan.preview import PreviewRow


def show(rows: Sequence[PreviewRow], as_json: bool, unseen: Sequence[str] = ()) -> None:
    """Print the rows: a table with its legend, or one JSON array of objects.

    Args:
        unseen: options that the user gave and the rows do not know of.
    """
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        cells = [_cells(row) for row in rows]
        print_table(cells[0], [list(row.values()) for row in cells])
        for line in _legend(rows):
            say_wrapped(line)
    if unseen:
        say(f"note: a dry run does not look at {', '.join(unseen)}", err=True)


def _cells(row: PreviewRow) -> dict[str, str]:
    cells = {
        "capacity": count(row.capacity),
        "packs": count(row.num_packs),
        "fill": percent(row.fill, 3),
        "gap": f"{count(row.gap)} ({percent(row.gap_percent / 100, 3)})",
    }
    if row.steps is not None:
        cells["steps"] = count(row.steps)
    cells |= {"too long": count(row.num_dropped), "dropped": count(row.dropped_tokens)}
    if row.num_cut or row.tokens_cut:
        cells |= {"too long": f"{count(row.num_cut)} cut", "dropped": count(row.tokens_cut)}
    return cells | {
        "padding": percent(row.padding, 2),
        "longest": percent(row.padding_longest, 1),
        "single": percent(row.padding_single, 1),
        "saved": percent(row.saved, 1),
    }


def _legend(rows: Sequence[PreviewRow]) -> list[str]:
    """What the columns compare, and what may come out otherwise."""
    batches = ", ".join(count(row.batch) for row in rows)
    lines = [
        "padding: of packs; longest: of batches of as many samples as a pack holds on average "
        f"({batches}), each padded to its longest; single: of one sample per sequence; dropped: "
        "tokens",
        "saved: of the positions of batches padded to the longest; packs and gap: by "
        "best-fit-decreasing, which --strategy auto may undercut",
    ]
    if unusable := rows[0].num_unusable:
        are = "is rejected or has" if unusable == 1 else "are rejected or have"
        lines.append(f"unusable: {number_of(unusable, 'row')} {are} no length")
    if refused := [count(row.capacity) for row in rows if row.num_refused]:
        lines.append(f"note: with --on-long error no plan is made at {', '.join(refused)}")
    if media := max(row.num_cut_with_media for row in rows):
        lines.append(
            f"note: up to {count(media)} of the samples that are cut hold media; a cut that would "
            "fall inside a medium moves to its start, and a medium longer than a pack is left out"
        )
    if margins := [row for row in rows if row.planned_capacity != row.capacity]:
        planned = ", ".join(count(row.planned_capacity) for row in margins)
        lines.append(f"margin: packs of at most {planned} tokens are planned")
    return lines
