"""Bad input → outcome, one table: what `estimate` makes of everything that a data set may hold.

Every case stands in one shard between two good records, which must be counted as they are among their like.
Cases that are counted must be counted as `ProcessorEncoder` builds them. Broken files as a whole
are in `test_bad_files.py`.
"""

# ruff: noqa: E501  a row of the table is a line

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from bad_input import (
    WHOLE,
    Make,
    Row,
    animated,
    chat,
    claims,
    clip,
    cut_clip,
    dumped,
    half,
    image,
    line,
    link_out,
    made,
    nested,
    no_frames,
    pixels,
    refers,
    saved,
    says,
    turned,
)
from clips import write_clip, write_sound
from reading import open_media, read_row

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord
from packidx.estimate import estimate_lengths
from packidx.records.media.paths import MediaRoot

COUNTED = None


class Case(NamedTuple):
    id: str
    make: Make
    reason: str | None
    """Of the rejection; None where the record is counted."""
    words: str = ""
    """In the rejection's detail."""


# -- the table -------------------------------------------------------------------------------------
# fmt: off

LINES = [
    Case("cut line", line(dumped(chat())[:-30]), "bad_json", "unexpected end"),
    Case("cut to one byte", line(b"{"), "bad_json", "unexpected end of data at character 1"),
    Case("invalid UTF-8", line(dumped(chat(), "What", b"\xff\xfe")), "bad_utf8", "byte 43 is not UTF-8: write it as UTF-8"),
    Case("UTF-16", line(json.dumps(chat()).encode("utf-16").replace(b"\n", b"")), "bad_utf8", "UTF-8"),
    Case("NUL bytes alone", line(b"\0" * 50), "bad_json", "unexpected character"),
    Case("NUL bytes in a text", line(dumped(chat(), "What", b"a\0b")), "bad_json", "unexpected control character"),
    Case("escaped NUL", says(chat("a\0b")), COUNTED),
    Case("50 MB line", says(chat(padding="x" * (50 << 20))), COUNTED),
    Case("two objects in a line", line(b'{"a": 1} {"b": 2}'), "bad_json", "character 9 of the record"),
    Case("NaN", line(dumped(chat(a=0), '"a": 0', b'"a": NaN')), COUNTED),
    Case("single quotes", line(str(chat()).encode()), "bad_json", "unexpected"),
    Case("duplicate keys: the last counts", line(dumped(chat("a"))[:-1] + b', "messages": ' + dumped(chat("a longer one")["messages"]) + b"}"), COUNTED),
    Case("lone surrogate", line(dumped(chat(), "What", b"\\ud800")), "bad_json", "no low surrogate"),
    Case("surrogate pair", line(dumped(chat(), "What", b"\\ud83d\\ude00")), COUNTED),
    Case("nested 10,000 deep", line(nested(10_000)), "bad_json", "depth limit"),
    Case("nested 10,000 deep beside NaN", line(b'{"a": NaN, "b": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"), "bad_json", "maximum recursion depth"),
    Case("nested 500 deep", line(nested(500)), COUNTED),
    Case("a number of 400 digits", line(dumped(chat(extra=10**400))), "bad_json", "number is infinity"),
    Case("a list", says([chat()]), "bad_record", "a list"),
    Case("null", says(None), "bad_record", "null"),
]
TURNS = [
    Case("no messages", says({"id": 1}), "no_messages", "name the column"),
    Case("no assistant turn", says({"messages": chat()["messages"][:1]}), COUNTED),
    Case("assistant turn first", says({"messages": chat()["messages"][1:]}), COUNTED),
    Case("empty texts", says(chat("")), COUNTED),
    Case("special token of media in the text", says(chat("a <|image_pad|> b")), "media_token_in_text", "remove or escape"),
    Case("special token of turns in the text", says(chat("a <|im_end|> b")), COUNTED),
    Case("_text_tokens of 64 bits and more", says(chat(_text_tokens=10**30)), "bad_text_tokens", "1e+30"),
    Case("_text_tokens right", says(chat(_text_tokens=9)), COUNTED),
    Case("a sound", says(chat("<audio>", audio="good.wav")), "unsupported_media", "audio"),
]
REFERENCES = [
    Case("missing image", refers("none.png"), "missing_media", "'none.png' does not exist"),
    Case("a path too long", refers("x" * 5000), "missing_media", "xxx"),
    Case("a path with NUL", refers("a\0.png"), "missing_media", "is not a path"),
    Case("a path through a file", refers("good.png/x.png"), "missing_media", "does not exist"),
    Case("path out of the root", refers("../outside/secret.png"), "media_outside_root", "is not inside the media root"),
    Case("link out of the root", refers(made("out.png", link_out)), "media_outside_root", "is not inside the media root"),
    Case("link in a circle", refers(made("loop.png", lambda path: path.symlink_to(path))), "broken_media", "symbolic links"),
    Case("absolute path out of the root", refers("/etc/passwd"), "media_outside_root", "'/etc/passwd' is not inside the media root"),
    Case("absolute path in the root", refers(lambda root: str(root.parent / "good.png")), COUNTED),
    Case("image on the net", refers("http://localhost:9/a.png"), "media_remote", "download it first"),
    Case("broken data URI", refers("data:image/png;base64,%%%"), "broken_media", "base64"),
    Case("directory", refers(made("dir.png", Path.mkdir)), "broken_media", "a directory"),
    Case("FIFO", refers(made("pipe.png", os.mkfifo)), "broken_media", "no regular file"),
]
IMAGES = [
    Case("empty image", image(b""), "broken_media", "is empty"),
    Case("no image", image(b"not an image"), "broken_media", "not an image of a known format"),
    Case("truncated PNG", image(half(WHOLE)), "broken_media", "truncated"),
    Case("truncated JPEG", image(half(saved(pixels("RGB"), "JPEG"))), "broken_media", "truncated"),
    Case("truncated WEBP", image(half(saved(pixels("RGB"), "WEBP"))), "broken_media", "cannot be decoded"),
    Case("header alone", image(WHOLE[:33]), "broken_media", "not an image of a known format"),
    Case("zero-sized image", image(claims(0, 5)), "broken_media", "not an image of a known format"),
    Case("bomb", image(claims(60_000, 60_000)), "media_too_large", "more pixels"),
    Case("stated size of a bomb", says(chat("<image>", images=[{"path": "good.png", "height": 60_000, "width": 60_000}])), "media_too_large", "60000 x 60000"),
    Case("aspect ratio 201", image(saved(pixels("RGB", (402, 2)), "PNG")), "aspect_ratio", "201 times"),
    Case("aspect ratio 200", image(saved(pixels("RGB", (400, 2)), "PNG")), COUNTED),
    Case("one pixel", image(saved(pixels("RGB", (1, 1)), "PNG")), COUNTED),
    *[Case(f"EXIF {turn} {kind}", image(turned(turn, kind)), COUNTED)
      for kind in ("JPEG", "PNG", "WEBP", "TIFF") for turn in range(1, 9)],
    *[Case(f"{mode} {kind}", image(saved(pixels(mode), kind)), COUNTED)
      for mode, kind in (("CMYK", "JPEG"), ("CMYK", "TIFF"), ("P", "PNG"), ("P", "GIF"), ("1", "PNG"),
                         ("L", "JPEG"), ("LA", "PNG"), ("RGBA", "PNG"), ("RGBA", "WEBP"),
                         ("I;16", "PNG"), ("I", "TIFF"), ("F", "TIFF"))],
    *[Case(f"animated {kind}", image(animated(kind)), COUNTED)
      for kind in ("GIF", "WEBP", "PNG", "TIFF")],
]
VIDEOS = [
    Case("video", refers(made("a.mp4", clip(frames=12)), "video"), COUNTED),
    Case("missing video", refers("none.mp4", "video"), "missing_media", "'none.mp4' does not exist"),
    Case("empty video", refers(made("a.mp4", Path.touch), "video"), "broken_media", "is empty"),
    Case("unreadable video", refers(made("a.mp4", lambda path: path.write_bytes(b"no video" * 99)), "video"), "broken_media", "cannot be read as a video"),
    Case("video cut before its index", refers(made("a.mp4", cut_clip()), "video"), "broken_media", "cannot be read as a video"),
    Case("video cut behind its index", refers(made("a.mp4", cut_clip(movflags="faststart")), "video"), "broken_media", "is truncated"),
    Case("video of sound alone", refers(made("a.mp4", partial(write_sound, samples=999, codec="aac")), "video"), "broken_media", "no video stream"),
    Case("video of no frames", refers(made("a.avi", no_frames), "video"), "broken_media", "no frame"),
    *[Case(f"video of {frames} frames, the least is 4", refers(made("a.mp4", clip(frames=frames)), "video"), COUNTED)
      for frames in (1, 2, 3, 4)],
    Case("video with a frame that is not there", refers({"path": "clip.mp4", "frame_indices": [0, 99]}, "video"), "bad_media", "frame 99"),
    Case("image as video", refers("good.png", "video"), "broken_media", "video"),
    Case("video as image", refers("clip.mp4"), "broken_media", "not an image of a known format"),
    Case("aspect ratio of a video", refers(made("a.mp4", clip(frames=4, size=(804, 2), codec="mpeg4")), "video"), "aspect_ratio", "402 times"),
]
# fmt: on
GOOD = chat("<image> what?", images=["good.png"])
CASES = [Case("good", says(GOOD), COUNTED), *LINES, *TURNS, *REFERENCES, *IMAGES, *VIDEOS]


# -- what comes of it ------------------------------------------------------------------------------


class Outcome(NamedTuple):
    row: Row
    before: Row
    after: Row
    record: Any
    """As the reader decodes it, or why not."""


@pytest.fixture(scope="module")
def folder(processors: Path) -> Path:
    return processors / "qwen2.5-vl"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The media root `media` with some good media, and `outside` beside it."""
    base = tmp_path_factory.mktemp("bad")
    for path in (base / "media" / "good.png", base / "outside" / "secret.png"):
        path.parent.mkdir()
        path.write_bytes(WHOLE)
    write_clip(base / "media" / "clip.mp4", frames=12)
    write_sound(base / "media" / "good.wav", samples=800)
    return base


@pytest.fixture(scope="module")
def outcomes(places: Path, folder: Path) -> dict[str, Outcome]:
    """Every case's row and its neighbours', by id; all from one run."""
    lines = [json.dumps(GOOD).encode()]
    for number, case in enumerate(CASES):
        place = places / "media" / str(number)
        place.mkdir()
        given = case.make(place)
        lines += [given if isinstance(given, bytes) else json.dumps(given).encode(), lines[0]]
    shard = places / "all.jsonl"
    shard.write_bytes(b"".join(one + b"\n" for one in lines))
    root = places / "media"
    options: dict[str, Any] = {"processor": folder, "media_root": root, "workers": 1}
    estimate_lengths(str(shard), places / "all", **options)
    rows = pq.read_table(sorted((places / "all").glob("part-*.parquet"))).to_pylist()
    assert [row["sample_id"] for row in rows] == list(range(len(lines)))
    assert [row["row"] for row in rows] == list(range(len(lines)))
    found = {}
    for number, case in enumerate(CASES, 1):
        row = rows[2 * number - 1]
        assert row["nbytes"] == len(lines[2 * number - 1])
        try:
            record = read_row(str(shard), 0, row["offset"], row["nbytes"])
        except BadRecord as error:
            record = error
        found[case.id] = Outcome(row, rows[2 * number - 2], rows[2 * number], record)
    return found


@pytest.fixture(scope="module")
def encoder(folder: Path) -> ProcessorEncoder:
    return ProcessorEncoder(folder)


PLACE = ("sample_id", "source", "key", "row", "offset")


def without_place(row: Row) -> Row:
    return {name: row[name] for name in row if name not in PLACE}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_outcome(
    case: Case,
    outcomes: dict[str, Outcome],
    encoder: ProcessorEncoder,
    places: Path,
) -> None:
    row, before, after, record = outcomes[case.id]
    good = without_place(outcomes["good"].row)
    assert without_place(before) == without_place(after) == good
    if case.reason is not None:
        assert (row["status"], row["reason"]) == ("rejected", case.reason), row
        assert case.words in row["detail"]
        assert (row["length"], row["text_tokens"], row["media"]) == (0, None, None)
        return
    assert (row["status"], row["reason"], row["method"]) == ("ok", None, "exact"), row
    built = encoder(open_media(record, MediaRoot(str(places / "media"), True)))
    assert row["length"] == len(built["input_ids"])
    assert row["label_tokens"] == int((built["labels"][1:] != -100).sum())
    pixels = [
        built[name].shape[0] for name in ("pixel_values", "pixel_values_videos") if name in built
    ]
    grids = [built[name].tolist() for name in ("image_grid_thw", "video_grid_thw") if name in built]
    assert row["vision_patches"] == sum(pixels)
    assert [[one["t"], one["h"], one["w"]] for one in row["media"]] == sum(grids, [])
