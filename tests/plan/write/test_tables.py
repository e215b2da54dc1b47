"""Tables of a snapshot as a plan writes them: which media lie in which piece of a sample."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from packidx.format.schema import MEDIA, PIECE_MEDIA
from packidx.plan.write import media_of_pieces

_medium = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["image", "video"]),
        "tokens": st.just(1),
        "patches": st.just(4),
        "t": st.none() | st.integers(1, 3),
        "h": st.just(2),
        "w": st.just(2),
        "at": st.none() | st.integers(0, 30),
    }
)
_piece = st.tuples(st.none() | st.lists(_medium, max_size=4), st.integers(0, 30), st.integers(1, 9))


@given(st.lists(_piece, max_size=12), st.integers(0, 3))
def test_a_piece_has_the_media_that_begin_in_it(pieces: list[Any], cut: int) -> None:
    wanted = [
        None
        if media is None
        else [
            {key: medium[key] for key in ("kind", "t", "h", "w")}
            | {"at": None if medium["at"] is None else medium["at"] - start}
            for medium in media
            if medium["at"] is None or start <= medium["at"] < start + length
        ]
        for media, start, length in pieces
    ]
    media = pa.array([media for media, _, _ in pieces], MEDIA)[cut:]  # a slice has an offset
    start, length = (pa.array([p[n] for p in pieces][cut:], pa.int32()).to_numpy() for n in (1, 2))
    of_pieces = media_of_pieces(media, start, length)
    assert of_pieces.type == PIECE_MEDIA
    assert of_pieces.to_pylist() == wanted[cut:]
