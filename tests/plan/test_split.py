"""Long samples in pieces: no medium parted, nothing lost that fits, label tokens known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import Training

from packidx.errors import FormatError, OptionError, SourceError
from packidx.format.parquet import conform
from packidx.format.schema import LABEL_SPANS, LENGTHS_WITH_SPANS
from packidx.index import Index, open_index
from packidx.inspect.verify import verify_snapshot
from packidx.plan import plan_packs


class Part(NamedTuple):
    """So many tokens of a medium, or of text."""

    size: int
    is_medium: bool = False
    is_trained: bool = False


class Row:
    """A sample of the lengths table, as it is made of parts."""

    def __init__(self, parts: list[Part]) -> None:
        self.media: list[tuple[int, int]] = []
        self.trained: set[int] = set()
        at = 0
        for part in parts:
            if part.is_medium:
                self.media.append((at, at + part.size))
            elif part.is_trained:
                self.trained |= set(range(max(at, 1), at + part.size))
            at += part.size
        self.length = at

    @property
    def columns(self) -> dict[str, Any]:
        grid = {"patches": 4, "t": 1, "h": 2, "w": 2}
        media = [{"kind": "image", "tokens": b - a, "at": a} | grid for a, b in self.media]
        tokens = sum(b - a for a, b in self.media)
        edges = [t for t in sorted(self.trained) if t - 1 not in self.trained]
        spans = [{"start": t, "stop": t} for t in edges]
        for span in spans:
            while span["stop"] in self.trained:
                span["stop"] += 1
        return {
            "length": self.length,
            "media": media,
            "num_images": len(media),
            "image_tokens": tokens,
            "label_tokens": len(self.trained),
            "label_spans": spans,
        }


def write(path: Path, rows: list[Row]) -> Path:
    columns = [row.columns for row in rows]
    arrays = {
        name: pa.array([own[name] for own in columns], LENGTHS_WITH_SPANS.field(name).type)
        for name in columns[0]
    }
    pq.write_table(pa.table(arrays), path)
    return path


def planned(lengths: Path, output: Path, **options: Any) -> Index | None:
    """The plan, checked; None where nothing is left to pack."""
    try:
        plan_packs(lengths, output, **options)
    except (OptionError, SourceError) as error:
        assert "nothing to pack" in str(error) or "raise --capacity" in str(error)
        return None
    index = open_index(output)
    assert [check for check in verify_snapshot(index) if not check.ok] == []
    return index


Pieces = dict[tuple[int, int], list[dict[str, Any]]]


def pieces_of(index: Index) -> Pieces:
    """The pieces of each sample and copy in one epoch, in order."""
    found: Pieces = {}
    packs = {row["pack_id"] for row in index.packs().to_pylist() if not row["epoch"]}
    rows = [row for row in index.samples().to_pylist() if row["pack_id"] in packs]
    for row in sorted(rows, key=lambda r: (r["sample_id"], r["copy"], r["piece"])):
        found.setdefault((row["sample_id"], row["copy"]), []).append(row)
    return found


def fewest(row: Row, start: int, stop: int, longest: int) -> int:
    """Pieces of `start .. stop - 1`, by trying every place at which no medium is parted."""
    best = {start: 0}
    for end in range(start + 1, stop + 1):
        if end < stop and any(a < end < b for a, b in row.media):
            continue
        before = [n for begin, n in best.items() if end - begin <= longest]
        if before:
            best[end] = min(before) + 1
    return best[stop]


def runs(row: Row, weight: int, longest: int) -> list[tuple[int, int]]:
    """What is left of a sample without the media that are longer than a piece."""
    borders = [0]
    for a, b in row.media:
        if b - a > longest:
            borders += [a, b]
    borders.append(weight)
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return [(a, b) for a, b in pairs if a < b]


PARTS = st.builds(Part, st.integers(1, 30), st.booleans(), st.booleans())
ROWS = st.lists(st.lists(PARTS, min_size=1, max_size=8).map(Row), min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {"capacity": st.integers(3, 40), "shift": st.booleans()},
    optional={"align": st.sampled_from([2, 3]), "epochs": st.just(2)},
)


@given(ROWS, OPTIONS)
def test_pieces_are_few_and_hold_all_that_fits(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    index = planned(write(folder / "l.parquet", rows), folder / "i", on_long="split", **options)
    found = {} if index is None else pieces_of(index)
    align = options.get("align", 1)
    longest, shift = options["capacity"] // align * align, int(options["shift"])
    lost = 0
    for number, row in enumerate(rows):
        weight = row.length - shift
        ends_with_medium = shift and any(b == row.length for _, b in row.media)
        pieces = found.get((number, 0), [])
        if ends_with_medium or weight <= 0 or not longest:
            assert not pieces
            lost += max(weight, 0)
            continue
        wanted = runs(row, weight, longest)
        held = [(p["token_start"], p["token_start"] + p["length"]) for p in pieces]
        assert all(0 < b - a <= longest for a, b in held)
        assert [t for a, b in held for t in range(a, b)] == [
            t for a, b in wanted for t in range(a, b)
        ]
        for a, b in row.media:  # whole in one piece, or longer than any
            assert b - a > longest or any(begin <= a and b <= end for begin, end in held)
        assert len(held) == sum(fewest(row, a, b, longest) for a, b in wanted)
        lost += weight - sum(b - a for a, b in held)
        for piece, (a, b) in zip(pieces, held, strict=True):
            inside = [m for m in row.media if a <= m[0] < b]
            assert [m["at"] + a for m in piece["media"]] == [at for at, _ in inside]
            # What the piece's first token would be trained on stands in another piece.
            labels = row.trained & set(range(a + 1, b + shift))
            assert piece["label_tokens"] == len(labels)
    if index is not None:
        assert index.manifest["result"]["num_tokens_lost"] == lost


@given(ROWS, OPTIONS)
def test_a_truncation_keeps_what_stands_before_a_medium(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("truncate")
    index = planned(write(folder / "l.parquet", rows), folder / "i", on_long="truncate", **options)
    found = {} if index is None else pieces_of(index)
    align = options.get("align", 1)
    longest, shift = options["capacity"] // align * align, int(options["shift"])
    for number, row in enumerate(rows):
        weight = row.length - shift
        stop = min(weight, longest)
        if stop < weight:
            stop = min([a for a, b in row.media if a < stop < b], default=stop)
        if shift and any(b == row.length for _, b in row.media):
            stop = 0
        held = [(p["token_start"], p["length"]) for p in found.get((number, 0), [])]
        assert held == ([(0, stop)] if stop > 0 else [])


@settings(max_examples=20)
@given(
    ROWS,
    st.integers(4, 30),
    st.lists(
        st.fixed_dictionaries(
            {"capacity": st.integers(4, 60), "steps": st.integers(1, 4)},
            optional={
                "on_long": st.sampled_from(["split", "truncate", "drop"]),
                "window": st.just(2),
                "seed": st.integers(0, 3),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1.0, 2.0]),
)
def test_every_token_is_trained_or_in_a_pack_or_counted_as_lost(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    capacity: int,
    changes: list[dict[str, Any]],
    weight: float,
) -> None:
    folder = tmp_path_factory.mktemp("going-on")
    lengths = write(folder / "l.parquet", rows)
    table = pq.read_table(lengths)
    pq.write_table(table.append_column("source", pa.array(["a"] * len(rows))), lengths)
    index = planned(lengths, folder / "i", capacity=capacity, on_long="split", mix=(f"a={weight}",))
    had: dict[int, set[int]] = {}
    copies: dict[tuple[int, int], set[int]] = {}
    for change in changes:
        if index is None:
            return
        sampler = Training(index, global_batch=1)
        steps = min(change.pop("steps"), sampler.num_steps)
        for pack in (pack for step in range(steps) for pack in sampler.packs_of_step(step)):
            for piece in index.pack(pack).samples:
                tokens = set(range(piece.token_start, piece.token_start + piece.length))
                own = copies.setdefault((piece.sample_id, piece.copy), set())
                assert not own & tokens
                own |= tokens
                had.setdefault(piece.sample_id, set()).update(tokens)
        state = sampler.state_at(steps)
        index = planned(lengths, folder / "i", resume=(index, state), **change)
    if index is None:
        return
    held: dict[int, set[int]] = {number: set(tokens) for number, tokens in had.items()}
    for (number, _), pieces in pieces_of(index).items():
        for piece in pieces:
            tokens = range(piece["token_start"], piece["token_start"] + piece["length"])
            held.setdefault(number, set()).update(tokens)
    lost = sum(row.length - len(held.get(n, ())) for n, row in enumerate(rows))
    assert index.manifest["result"]["num_tokens_lost"] == lost


def test_media_that_overlap_are_not_parted(tmp_path: Path) -> None:
    row = Row([Part(5), Part(4, True), Part(11)])
    row.media = [(8, 14), (2, 9), (14, 17)]  # as a table of one's own may have them
    index = planned(
        write(tmp_path / "l.parquet", [row]), tmp_path / "i", capacity=12, on_long="split"
    )
    assert index is not None
    [pieces] = pieces_of(index).values()
    assert [(p["token_start"], p["length"]) for p in pieces] == [(0, 2), (2, 12), (14, 6)]


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 5)],  # nothing predicts the first token
        [(3, 3), (4, 9)],
        [(3, 6), (5, 7)],
        [(6, 8), (1, 4)],
        [(20, 26)],
        [(1, 5)],  # not as many as label_tokens
    ],
)
def test_spans_that_cannot_be_are_refused(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    stated = [[{"start": a, "stop": b} for a, b in spans]]
    columns = {"length": [25], "label_tokens": [5], "label_spans": pa.array(stated, LABEL_SPANS)}
    pq.write_table(pa.table(columns), tmp_path / "l.parquet")
    with pytest.raises(FormatError, match="label_spans of sample 0"):
        plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=10, on_long="split")


def test_without_spans_the_sum_says_it_where_none_or_all_are_trained(tmp_path: Path) -> None:
    columns = {"length": [25, 25, 25, 25], "label_tokens": [0, 24, 9, None]}
    pq.write_table(conform(pa.table(columns), LENGTHS_WITH_SPANS), tmp_path / "l.parquet")
    table = pq.read_table(tmp_path / "l.parquet").drop_columns(["sample_id", "media", "status"])
    pq.write_table(table, tmp_path / "l.parquet")
    index = planned(tmp_path / "l.parquet", tmp_path / "i", capacity=10, on_long="split")
    assert index is not None
    labels = [[p["label_tokens"] for p in pieces] for pieces in pieces_of(index).values()]
    assert labels == [[0, 0, 0], [9, 9, 4], [None] * 3, [None] * 3]
    assert all(
        a["token_start"] < b["token_start"]
        for p in pieces_of(index).values()
        for a, b in pairwise(p)
    )
