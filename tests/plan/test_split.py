"""Long samples: text in pieces that have label tokens; with media whole, or cut behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import path_of

from packidx.errors import OptionError, SourceError
from packidx.format.schema import LENGTHS_WITH_SPANS
from packidx.index import Index, open_index
from packidx.plan import plan_packs
from packidx.torch import PackSampler


class Part(NamedTuple):
    """So many tokens of a medium, or of text."""

    size: int
    is_medium: bool = False
    is_trained: bool = False


COUNTERS = {
    "image": ("num_images", "image_tokens"),
    "video": ("num_videos", "video_tokens"),
    "audio": ("audio_tokens",),
}


class Row:
    """A sample of the lengths table, as it is made of parts; its media are of one kind.

    Args:
        kind: of its media.
        stated: what the table says of the media: ``all``, their ``kinds`` without places,
            ``counts`` alone, or ``nothing``.
        has_labels: False if the table says nothing of label tokens.
    """

    def __init__(
        self, parts: list[Part], kind: str = "image", stated: str = "all", has_labels: bool = True
    ) -> None:
        self.kind, self.stated, self.has_labels = kind, stated, has_labels
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
        media: list[Any] | None = [
            {"kind": self.kind, "tokens": b - a, "at": a if self.stated == "all" else None} | grid
            for a, b in self.media
        ]
        media = media if self.stated in ("all", "kinds") else None
        counters = dict.fromkeys((name for names in COUNTERS.values() for name in names), 0)
        counters[COUNTERS[self.kind][-1]] = sum(b - a for a, b in self.media)
        if self.kind != "audio":
            counters[COUNTERS[self.kind][0]] = len(self.media)
        counters = dict.fromkeys(counters, None) if self.stated == "nothing" else counters
        edges = [t for t in sorted(self.trained) if t - 1 not in self.trained]
        spans = [{"start": t, "stop": t} for t in edges]
        for span in spans:
            while span["stop"] in self.trained:
                span["stop"] += 1
        return counters | {
            "length": self.length,
            "media": media,
            "label_tokens": len(self.trained) if self.has_labels else None,
            "label_spans": spans if self.has_labels else None,
        }

    def packed(self, on_long: str, longest: int) -> tuple[list[tuple[int, int]], str]:
        """The tokens that are in packs, piece by piece, or why there are none."""
        weight, last = self.length, max((b for _, b in self.media), default=0)
        if weight <= 0:
            return [], "empty"
        if weight <= longest:
            return [(0, weight)], ""
        may_hold_media = bool(self.media) or self.stated == "nothing"
        is_placed = self.stated == "all"
        if (
            on_long == "drop"
            or may_hold_media
            and (on_long == "split" or not is_placed or last > longest)
        ):
            return [], "too_long"
        cuts = [(a, min(a + longest, weight)) for a in range(0, weight, longest)]
        cuts = cuts[:1] if on_long == "truncate" else cuts
        held = [(a, b) for a, b in cuts if not self.has_labels or self.labels(a, b)]
        return held, "" if held else "too_long" if self.media else "no_labels"

    def labels(self, start: int, stop: int) -> int:
        # What the piece's first token would be trained on stands in another piece.
        return len(self.trained & set(range(start + 1, stop)))


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
        assert "nothing to pack" in str(error) or "raise --capacity" in str(error), error
        return None
    return open_index(output)


Pieces = dict[tuple[int, int], list[dict[str, Any]]]


def pieces_of(index: Index) -> Pieces:
    """The pieces of each sample and copy, in order."""
    found: Pieces = {}
    for row in sorted(
        index.samples().to_pylist(), key=lambda r: (r["sample_id"], r["copy"], r["piece"])
    ):
        found.setdefault((row["sample_id"], row["copy"]), []).append(row)
    return found


PARTS = st.builds(Part, st.integers(1, 30), st.sampled_from([False] * 5 + [True]), st.booleans())
ROWS = st.lists(
    st.builds(
        Row,
        st.lists(PARTS, min_size=1, max_size=8),
        st.sampled_from([*COUNTERS]),
        st.sampled_from(["all"] * 5 + ["kinds", "counts", "nothing"]),
        st.sampled_from([True] * 5 + [False]),
    ),
    min_size=1,
    max_size=6,
)
OPTIONS = st.fixed_dictionaries(
    {
        "capacity": st.integers(3, 40),
        "on_long": st.sampled_from(["split", "truncate", "drop"]),
    },
    optional={"align": st.sampled_from([2, 3]), "window": st.just(2)},
)


@given(ROWS, OPTIONS)
def test_text_is_cut_and_media_are_not(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    index = planned(write(folder / "l.parquet", rows), folder / "i", **options)
    align = options.get("align", 1)
    longest = options["capacity"] // align * align
    wanted = [row.packed(options["on_long"], longest) for row in rows]
    if index is None:
        assert not any(held for held, _ in wanted)
        return
    found = pieces_of(index)
    dropped = {row["sample_id"]: row["reason"] for row in index.dropped().to_pylist()}
    assert dropped == {number: why for number, (_, why) in enumerate(wanted) if why}
    for number, (row, (held, _)) in enumerate(zip(rows, wanted, strict=True)):
        pieces = found.get((number, 0), [])
        spans = [(p["token_start"], p["token_start"] + p["length"]) for p in pieces]
        assert spans == held
        for piece, (a, b) in zip(pieces, held, strict=True):
            if row.stated == "all":
                assert [m["at"] for m in piece["media"]] == [at for at, _ in row.media]
            assert piece["label_tokens"] == (row.labels(a, b) if row.has_labels else None)
    sizes = [sum(b - a for a, b in held) for held, _ in wanted]
    result = index.snapshot.result
    whole = [row.length for row in rows]
    assert result.num_tokens_lost == sum(max(n, 0) for n in whole) - sum(sizes)
    assert result.num_tokens_cut == sum(
        n - size for n, size in zip(whole, sizes, strict=True) if size
    )
    for kind, names in COUNTERS.items() if all(row.stated != "nothing" for row in rows) else ():
        of_kind = [
            row.media if held and row.kind == kind else []
            for row, (held, _) in zip(rows, wanted, strict=True)
        ]
        totals = [sum(map(len, of_kind)), sum(b - a for media in of_kind for a, b in media)]
        sums = [sum(index.packs([name])[name].to_pylist()) for name in names]
        assert sums == totals[-len(names) :]


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
                "epoch": st.integers(1, 3),
                "mix": st.sampled_from([("a=1",), ("a=3",)]),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1.0, 2.0]),
)
def test_every_token_of_what_is_left_is_in_a_pack_or_counted_as_lost(
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
    had: set[int] = set()
    copies: dict[tuple[int, int], set[int]] = {}
    for change in changes:
        if index is None:
            return
        sampler = PackSampler(index, global_batch=1, epoch=change.pop("epoch", 0))
        steps = min(change.pop("steps"), sampler.num_steps)
        for pack in (pack for step in range(steps) for pack in sampler.packs_of_step(step)):
            for piece in index.pack(pack).samples:
                tokens = set(range(piece.token_start, piece.token_start + piece.length))
                own = copies.setdefault((piece.sample_id, piece.copy), set())
                assert not own & tokens
                own |= tokens
                had.add(piece.sample_id)
        state, before = sampler.state_at(steps), index
        index = planned(lengths, folder / "i", resume=(before, state), **change)
        path_of(before).unlink()  # the next one needs no earlier plan
    if index is None:
        return
    held: dict[int, set[int]] = {}
    for (number, _), pieces in pieces_of(index).items():
        for piece in pieces:
            tokens = range(piece["token_start"], piece["token_start"] + piece["length"])
            held.setdefault(number, set()).update(tokens)
    assert had.isdisjoint(held)
    dropped = index.dropped().to_pylist()
    assert {row["sample_id"] for row in dropped if row["reason"] == "consumed"} == had
    left = ((n, row) for n, row in enumerate(rows) if n not in had)
    lost = sum(row.length - len(held.get(n, ())) for n, row in left)
    assert index.manifest["result"]["num_tokens_lost"] == lost


def test_shares_of_a_mix_count_what_is_packed(tmp_path: Path) -> None:
    """Half of the tokens that are packed are to be of each source: a long video is none of them."""
    video = Row([Part(90, is_medium=True), Part(10, is_trained=True)], "video")
    text, short = Row([Part(100, is_trained=True)]), Row([Part(20, is_trained=True)])
    lengths = write(tmp_path / "l.parquet", [*[video] * 40, *[text] * 200, short])
    table = pq.read_table(lengths)
    sources = pa.array(["long"] * 240 + ["short"])
    pq.write_table(table.append_column("source", sources), lengths)
    options: dict[str, Any] = {"on_long": "split", "mix": ("long=50%", "short=50%")}
    index = planned(lengths, tmp_path / "i", capacity=40, strategy="bfd", **options)
    assert index is not None
    rows = index.samples(["source", "length"]).to_pylist()
    long = sum(row["length"] for row in rows if row["source"] == "long")
    assert 0.9 < 2 * long / index.snapshot.result.num_tokens < 1.1
