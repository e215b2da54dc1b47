"""Bad input → outcome, one table: what `estimate` makes of everything that a data set may hold.

Every case stands in one shard between two good records, which must be counted as they are alone.
Cases that are counted must be counted as `ProcessorEncoder` builds them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from clips import write_clip
from packidx_cli.main import main
from PIL import Image
from record_files import WRITERS, zstd

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, SourceError
from packidx.estimate import estimate_lengths
from packidx.records.media import open_media
from packidx.records.sources import read_record, scan

Row = dict[str, Any]
Make = Callable[[Path], Any]
"""Given a folder in the media root, where it may put files: a record, or a line's bytes."""


class Case(NamedTuple):
    id: str
    make: Make
    reason: str | None
    """Of the rejection; None where the record is counted."""
    words: str = ""
    """In the rejection's detail."""


# -- how input is made -----------------------------------------------------------------------------


def chat(content: Any = "What is it?", **members: Any) -> Row:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "It is so."}]
    return {"messages": turns, **members}


def dumped(record: Any, old: str = "", new: bytes = b"") -> bytes:
    """A record's line, with a piece of it replaced."""
    line = json.dumps(record).encode()
    assert old.encode() in line
    return line.replace(old.encode(), new) if old else line


def says(record: Any, **members: Any) -> Make:
    return lambda root: {**record, **members} if members else record


def line(data: bytes) -> Make:
    return lambda root: data


def pixels(mode: str, size: tuple[int, int] = (90, 60)) -> Image.Image:
    shape = (size[1], size[0], 3)
    noise = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257)
    return Image.fromarray(noise).convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(pixels("RGB", (190, 60)), kind, exif=exif)


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (90, 60), (number * 40, 0, 0)) for number in range(3)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


def claims(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its pixels do not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def image(data: bytes | None, name: str = "x.png") -> Make:
    """A record with an image file of these bytes; none where there are none."""

    def make(root: Path) -> Row:
        if data is not None:
            (root / name).write_bytes(data)
        return chat("<image> what?", images=[f"{root.name}/{name}"])

    return make


def refers(reference: Callable[[Path], Any] | Any, kind: str = "image") -> Make:
    """A record that refers to a medium."""

    def make(root: Path) -> Row:
        ref = reference(root) if callable(reference) else reference
        return chat(f"<{kind}> what?", **{f"{kind}s": [ref]})

    return make


def made(name: str, how: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(root: Path) -> str:
        how(root / name)
        return f"{root.name}/{name}"

    return make


def link_out(path: Path) -> None:
    path.symlink_to(path.parents[2] / "outside" / "secret.png")


def clip(**options: Any) -> Callable[[Path], object]:
    return lambda path: write_clip(path, **options)


def cut_clip(**options: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_bytes(half(write_clip(path, frames=12, options=options).read_bytes()))

    return make


def sound(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def no_frames(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()


def nested(levels: int) -> bytes:
    return dumped(chat(extra=0), '"extra": 0', b'"extra": ' + b"[" * levels + b"]" * levels)


WHOLE = saved(pixels("RGB"), "PNG")
COUNTED = None

# -- the table -------------------------------------------------------------------------------------
# fmt: off

LINES = [
    Case("cut line", line(dumped(chat())[:-30]), "bad_json", "cut"),
    Case("cut to one byte", line(b"{"), "bad_json", "the record is cut"),
    Case("invalid UTF-8", line(dumped(chat(), "What", b"\xff\xfe")), "bad_utf8", "byte 43 is not UTF-8: write the file as UTF-8"),
    Case("UTF-16", line(json.dumps(chat()).encode("utf-16").replace(b"\n", b"")), "bad_utf8", "UTF-8"),
    Case("NUL bytes alone", line(b"\0" * 50), "bad_json", "NUL"),
    Case("NUL bytes in a text", line(dumped(chat(), "What", b"a\0b")), "bad_json", "control character that is not escaped"),
    Case("escaped NUL", says(chat("a\0b")), COUNTED),
    Case("50 MB line", says(chat(padding="x" * (50 << 20))), COUNTED),
    Case("50 MB line, cut", line(dumped(chat(padding="x" * (50 << 20)))[:-9]), "bad_json", "cut"),
    Case("two objects in a line", line(b'{"a": 1} {"b": 2}'), "bad_json", "character 9 of the record"),
    Case("NaN", line(dumped(chat(a=0), '"a": 0', b'"a": NaN')), "bad_json", "NaN is no JSON value"),
    Case("single quotes", line(str(chat()).encode()), "bad_json", "unexpected"),
    Case("duplicate keys: the last counts", line(dumped(chat("a"))[:-1] + b', "messages": ' + dumped(chat("a longer one")["messages"]) + b"}"), COUNTED),
    Case("lone surrogate", line(dumped(chat(), "What", b"\\ud800")), "bad_json", "half a surrogate pair"),
    Case("surrogate pair", line(dumped(chat(), "What", b"\\ud83d\\ude00")), COUNTED),
    Case("nested 10,000 deep", line(nested(10_000)), "bad_json", "nested too deeply"),
    Case("nested 500 deep", line(nested(500)), COUNTED),
    Case("a number of 400 digits", line(dumped(chat(extra=10**400))), "bad_json", "a number is too large"),
    Case("a list", says([chat()]), "bad_record", "a list"),
    Case("a number", says(7), "bad_record", "a number"),
    Case("a string", says("hello"), "bad_record", "text"),
    Case("null", says(None), "bad_record", "null"),
]
TURNS = [
    Case("no messages", says({"id": 1}), "no_messages", "name the column"),
    Case("empty conversation", says({"messages": []}), "no_messages", "empty"),
    Case("messages not a list", says({"messages": "hi"}), "no_messages", "text, not a list"),
    Case("a turn that is no object", says({"messages": ["hi"]}), "bad_turn", "turn 0 is text"),
    Case("no assistant turn", says({"messages": chat()["messages"][:1]}), COUNTED),
    Case("assistant turn first", says({"messages": chat()["messages"][1:]}), COUNTED),
    Case("empty texts", says(chat("")), COUNTED),
    Case("unknown role", says({"messages": [{"role": "wizard", "content": "x"}]}), "unknown_role", "turn 0 has the role 'wizard': known are system, user"),
    Case("no role", says({"messages": [{"content": "x"}]}), "unknown_role", "turn 0 has no role"),
    Case("content a number", says(chat(5)), "bad_turn", "the content of turn 0 is a number"),
    Case("content null", says(chat(None)), "bad_turn", "turn 0 has no content"),
    Case("content an object", says(chat({"text": "x"})), "bad_turn", "is an object"),
    Case("content part a number", says(chat([7])), "bad_turn", "content part that is a number"),
    Case("content part unknown", says(chat([{"type": "smell"}])), "bad_turn", "unknown type 'smell': known are text, image, video"),
    Case("special token of media in the text", says(chat("a <|image_pad|> b")), "media_token_in_text", "remove or escape"),
    Case("special token of turns in the text", says(chat("a <|im_end|> b")), COUNTED),
    Case("_text_tokens negative", says(chat(_text_tokens=-1)), "bad_text_tokens", "-1, not an integer from 0"),
    Case("_text_tokens a string", says(chat(_text_tokens="12")), "bad_text_tokens", "'12', not an integer"),
    Case("_text_tokens a boolean", says(chat(_text_tokens=True)), "bad_text_tokens", "True, not an integer"),
    Case("_text_tokens a float", says(chat(_text_tokens=1.5)), "bad_text_tokens", "1.5, not an integer"),
    Case("_text_tokens huge", says(chat(_text_tokens=2**31)), "bad_text_tokens", "2147483648"),
    Case("_text_tokens of 64 bits and more", says(chat(_text_tokens=10**30)), "bad_text_tokens", "1e+30"),
    Case("_text_tokens right", says(chat(_text_tokens=9)), COUNTED),
    Case("a sound", says(chat(audio="a.wav")), "unsupported_media", "audio"),
]
REFERENCES = [
    Case("placeholder without image", says(chat("<image> x")), "media_mismatch", "1 placeholder(s) for images but 0"),
    Case("image without placeholder", says(chat("x", images=["good.png"])), "media_mismatch", "0 placeholder(s) for images but 1"),
    Case("more images than placeholders", says(chat("<image>", images=["good.png"] * 2)), "media_mismatch", "1 placeholder(s) for images but 2"),
    Case("placeholder of the other kind", says(chat("<video>", images=["good.png"])), "media_mismatch", "1 image(s)"),
    Case("image and images", says(chat("<image>", images=["good.png"], image="good.png")), "bad_media", "both"),
    Case("image a number", refers(5), "bad_media", "a number, not a path"),
    Case("missing image", refers("none.png"), "missing_media", "'none.png' does not exist"),
    Case("a path too long", refers("x" * 5000), "missing_media", "xxx"),
    Case("a path with NUL", refers("a\0.png"), "missing_media", "is no path"),
    Case("a path through a file", refers("good.png/x.png"), "missing_media", "does not exist"),
    Case("path out of the root", refers("../outside/secret.png"), "media_outside_root", "is not inside the media root"),
    Case("link out of the root", refers(made("out.png", link_out)), "media_outside_root", "is not inside the media root"),
    Case("link in a circle", refers(made("loop.png", lambda path: path.symlink_to(path))), "broken_media", "symbolic links"),
    Case("absolute path out of the root", refers("/etc/passwd"), "media_outside_root", "'/etc/passwd' is not inside the media root"),
    Case("absolute path in the root", refers(lambda root: str(root.parent / "good.png")), COUNTED),
    Case("image on the net", refers("http://localhost:9/a.png"), "media_remote", "download it first"),
    Case("broken data URI", refers("data:image/png;base64,%%%"), "broken_media", "base64"),
    Case("directory", refers(made("dir.png", Path.mkdir)), "broken_media", "no regular file"),
    Case("FIFO", refers(made("pipe.png", os.mkfifo)), "broken_media", "no regular file"),
    Case("FIFO as video", refers(made("pipe.mp4", os.mkfifo), "video"), "broken_media", "no regular file"),
]
IMAGES = [
    Case("empty image", image(b""), "broken_media", "is empty"),
    Case("no image", image(b"not an image"), "broken_media", "no image of a known format"),
    Case("truncated PNG", image(half(WHOLE)), "broken_media", "truncated"),
    Case("truncated JPEG", image(half(saved(pixels("RGB"), "JPEG"))), "broken_media", "truncated"),
    *[Case(f"truncated {kind}", image(half(saved(pixels("RGB"), kind))), "broken_media", "cannot be decoded")
      for kind in ("WEBP", "GIF", "TIFF", "BMP")],
    Case("header alone", image(WHOLE[:33]), "broken_media", "no image of a known format"),
    Case("zero-sized image", image(claims(0, 5)), "broken_media", "no image of a known format"),
    Case("bomb", image(claims(60_000, 60_000)), "media_too_large", "more pixels"),
    Case("stated size of a bomb", says(chat("<image>", images=[{"path": "good.png", "height": 60_000, "width": 60_000}])), "media_too_large", "60000 x 60000"),
    Case("stated size zero", says(chat("<image>", images=[{"path": "good.png", "height": 0, "width": 9}])), "bad_media", "height is 0"),
    Case("aspect ratio 201", image(saved(pixels("RGB", (402, 2)), "PNG")), "aspect_ratio", "200"),
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
    Case("video of sound alone", refers(made("a.mp4", sound), "video"), "broken_media", "no video stream"),
    Case("video of no frames", refers(made("a.avi", no_frames), "video"), "broken_media", "no frame"),
    *[Case(f"video of {frames} frames, the least is 4", refers(made("a.mp4", clip(frames=frames)), "video"), COUNTED)
      for frames in (1, 2, 3, 4)],
    Case("video with a frame that is not there", refers({"path": "clip.mp4", "frame_indices": [0, 99]}, "video"), "bad_media", "frame 99"),
    Case("video of no frame files", refers([], "video"), "bad_media", "empty list of frames"),
    Case("image as video", refers("good.png", "video"), "broken_media", "video"),
    Case("video as image", refers("clip.mp4"), "broken_media", "no image of a known format"),
    Case("aspect ratio of a video", refers(made("a.mp4", clip(frames=4, size=(804, 2), codec="mpeg4")), "video"), "aspect_ratio", "200"),
]
# fmt: on
CASES = [*LINES, *TURNS, *REFERENCES, *IMAGES, *VIDEOS]


# -- what comes of it ------------------------------------------------------------------------------

GOOD = chat("<image> what?", images=["good.png"])


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
    return base


def rows_of(shard: Path, output: Path, **options: Any) -> list[Row]:
    estimate_lengths(str(shard), output, **options)
    return pq.read_table(sorted(output.glob("part-*.parquet"))).to_pylist()


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
    rows = rows_of(shard, places / "all", processor=folder, media_root=root, workers=1)
    assert [row["sample_id"] for row in rows] == list(range(len(lines)))
    assert [row["row"] for row in rows] == list(range(len(lines)))
    found = {}
    for number, case in enumerate(CASES, 1):
        row = rows[2 * number - 1]
        assert row["nbytes"] == len(lines[2 * number - 1])
        try:
            record = read_record(str(shard), row["offset"], row["nbytes"])
        except BadRecord as error:
            record = error
        found[case.id] = Outcome(row, rows[2 * number - 2], rows[2 * number], record)
    return found


@pytest.fixture(scope="module")
def encoder(folder: Path) -> ProcessorEncoder:
    return ProcessorEncoder(folder)


@pytest.fixture(scope="module")
def alone(places: Path, folder: Path) -> Row:
    """The good record's row, counted without neighbours."""
    (places / "alone.jsonl").write_text(json.dumps(GOOD) + "\n")
    options = {"processor": folder, "media_root": places / "media"}
    (row,) = rows_of(places / "alone.jsonl", places / "alone", workers=1, **options)
    assert (row["status"], row["num_images"]) == ("ok", 1)
    return row


PLACE = ("sample_id", "source", "key", "row", "offset")


def without_place(row: Row) -> Row:
    return {name: row[name] for name in row if name not in PLACE}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_outcome(
    case: Case,
    outcomes: dict[str, Outcome],
    alone: Row,
    encoder: ProcessorEncoder,
    places: Path,
) -> None:
    row, before, after, record = outcomes[case.id]
    assert without_place(before) == without_place(after) == without_place(alone)
    if case.reason is not None:
        assert (row["status"], row["reason"]) == ("rejected", case.reason), row
        assert case.words in row["detail"]
        assert (row["length"], row["text_tokens"], row["media"]) == (0, None, None)
        return
    assert (row["status"], row["reason"], row["method"]) == ("ok", None, "exact"), row
    built = encoder(open_media(record, str(places / "media"), True))
    assert row["length"] == len(built["input_ids"])
    assert row["label_tokens"] == int((built["labels"][1:] != -100).sum())
    pixels = [
        built[name].shape[0] for name in ("pixel_values", "pixel_values_videos") if name in built
    ]
    grids = [built[name].tolist() for name in ("image_grid_thw", "video_grid_thw") if name in built]
    assert row["vision_patches"] == sum(pixels)
    assert [[one["t"], one["h"], one["w"]] for one in row["media"]] == sum(grids, [])


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert len({file.id for file in FILES}) == len(FILES)


# -- whole files -----------------------------------------------------------------------------------


class File(NamedTuple):
    id: str
    name: str
    data: Callable[[], bytes]
    outcome: list[str | None] | str
    """Reasons of its rows (None where one is counted), or words of the error that ends the run."""


TALKS: list[Row] = [{"id": str(number), **chat(f"Number {number}?")} for number in range(3)]


def whole(kind: str) -> bytes:
    return WRITERS[kind](TALKS)


def but(kind: str, old: bytes, new: bytes) -> Callable[[], bytes]:
    """A file with a piece of it replaced."""

    def make() -> bytes:
        text, _, codec = kind.partition(".")
        data = whole(text)
        assert old in data
        data = data.replace(old, new, 1)
        return {"": bytes, "gz": gzip.compress, "zst": zstd}[codec](data)

    return make


def flipped(kind: str, at: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(whole(kind))
        data[at] ^= 0xFF
        return bytes(data)

    return make


def parquet(**columns: list[Any]) -> Callable[[], bytes]:
    def make() -> bytes:
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue()

    return make


def damaged_parquet() -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(TALKS)
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    data = sink.getvalue()
    return data.replace(b"Number 1", b"Number 7", 1)


# fmt: off
FILES = [
    File("lines, cut", "x.jsonl", lambda: whole("jsonl")[:-9], [None, None, "bad_json"]),
    File("lines, none", "x.jsonl", lambda: b"", []),
    File("lines, blank", "x.jsonl", lambda: b"\n \r\n\t\n", []),
    File("lines, byte order mark", "x.jsonl", lambda: b"\xef\xbb\xbf" + whole("jsonl"), [None] * 3),
    File("array, cut", "x.json", lambda: whole("json")[:-9], "the JSON array is cut"),
    File("array, cut behind an element", "x.json", lambda: whole("json").rstrip(b" \n]"), "the JSON array is cut"),
    File("array, trailing comma", "x.json", lambda: whole("json").rstrip(b" \n]") + b",\n]", [None, None, None, "bad_json"]),
    File("array, bad element", "x.json", but("json", b'"Number 1?"', b"Number 1?"), [None, "bad_json", None]),
    File("array, no UTF-8", "x.json", but("json", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("array, two", "x.json", lambda: whole("json") * 2, "something follows the JSON array"),
    File("array, empty", "x.json", lambda: b"[]", []),
    File("gzip, cut", "x.jsonl.gz", lambda: half(whole("jsonl.gz")), "gzip stream is cut"),
    File("gzip, cut by a byte", "x.jsonl.gz", lambda: whole("jsonl.gz")[:-1], "gzip stream is cut"),
    File("gzip, bad checksum", "x.jsonl.gz", flipped("jsonl.gz", -8), "gzip stream is broken"),
    File("gzip, bad length", "x.jsonl.gz", flipped("jsonl.gz", -1), "gzip stream is broken"),
    File("gzip, damaged", "x.jsonl.gz", flipped("jsonl.gz", 60), "gzip stream is broken"),
    File("gzip, none", "x.jsonl.gz", lambda: whole("jsonl"), "gzip stream is broken"),
    File("gzip, array cut before", "x.json.gz", lambda: gzip.compress(whole("json")[:-9]), "the JSON array is cut"),
    File("gzip, bad line", "x.jsonl.gz", but("jsonl.gz", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("zstd, cut", "x.jsonl.zst", lambda: half(whole("jsonl.zst")), "Zstandard stream is broken or cut"),
    File("zstd, cut by a byte", "x.jsonl.zst", lambda: whole("jsonl.zst")[:-1], "Zstandard stream is broken or cut"),
    File("zstd, damaged", "x.jsonl.zst", flipped("jsonl.zst", 10), "Zstandard stream is broken or cut"),
    File("zstd, none", "x.jsonl.zst", lambda: whole("jsonl"), "Zstandard stream is broken or cut"),
    File("zstd, bad line", "x.jsonl.zst", but("jsonl.zst", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("CSV, too many cells", "x.csv", but("csv", b"1,", b"1,2,"), [None, "bad_row", None]),
    File("CSV, too few cells", "x.csv", but("csv", b"1,", b""), [None, "bad_row", None]),
    File("CSV, quote in the last row not closed", "x.csv", lambda: whole("csv")[:-9], [None, None, "bad_row"]),
    File("CSV, quote not closed", "x.csv", but("csv", b']"\r\n2', b"]\r\n2"), [None, "bad_row"]),
    File("CSV, last quotes not closed", "x.csv", lambda: b'a,b\n1,2\n3,"4\n5,6\n7,8\n', "is not closed, and takes all of the last 3 lines"),
    File("CSV, stray quote", "x.csv", but("csv", b"1,", b'"1"x,'), [None, "bad_row", None]),
    File("CSV, a cell that is no JSON", "x.csv", but("csv", b'1,"[', b'1,"('), [None, "no_messages", None]),
    File("CSV, no UTF-8", "x.csv", but("csv", b"Number 1", b"Number \xff"), [None, "bad_utf8", None]),
    File("CSV, empty", "x.csv", lambda: b"", "it is empty"),
    File("CSV, two columns of one name", "x.csv", lambda: b"id,id\n1,2\n", "a name of its own"),
    File("Parquet, cut", "x.parquet", lambda: half(whole("parquet")), "no Parquet file that can be read"),
    File("Parquet, cut by a byte", "x.parquet", lambda: whole("parquet")[:-1], "no Parquet file that can be read"),
    File("Parquet, empty", "x.parquet", lambda: b"", "no Parquet file that can be read"),
    File("Parquet, damaged footer", "x.parquet", flipped("parquet", -6), "no Parquet file that can be read"),
    File("Parquet, damaged page", "x.parquet", damaged_parquet, "a Parquet file that is damaged"),
    File("Parquet, messages of numbers", "x.parquet", parquet(messages=[1, 2]), ["no_messages"] * 2),
    File("Parquet, messages of lists of numbers", "x.parquet", parquet(messages=[[1], []]), ["bad_turn", "no_messages"]),
    File("Parquet, _text_tokens of floats", "x.parquet", parquet(messages=[one["messages"] for one in TALKS[:2]], _text_tokens=[1.5, None]), ["bad_text_tokens", None]),
    File("Parquet, no column of turns", "x.parquet", parquet(a=[1, 2]), ["no_messages"] * 2),
    File("Parquet, no row", "x.parquet", parquet(messages=[]), []),
    File("Arrow, cut", "x.arrow", lambda: half(whole("arrow")), "no Arrow file that can be read"),
    File("Arrow, no end", "x.arrow", lambda: whole("arrow")[:-8], "no Arrow file that can be read"),
]
# fmt: on


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.id)
def test_files(file: File, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.jsonl").write_bytes(whole("jsonl"))
    path = tmp_path / file.name
    path.write_bytes(file.data())
    output = tmp_path / "out"
    arguments = ["estimate", str(tmp_path / "good.jsonl"), str(path), "-o", str(output)]
    status = main([*arguments, "--workers", "1", "--quiet"])
    printed = capsys.readouterr().err
    if isinstance(file.outcome, str):
        assert status == 1
        assert not output.exists()
        assert printed.count("\n") == 1, printed
        assert "Traceback" not in printed
        assert str(path) in printed
        assert file.outcome in printed
        return
    assert status == 0, printed
    rows = pq.read_table(sorted(output.glob("part-*.parquet"))).to_pylist()
    assert [row["sample_id"] for row in rows] == list(range(len(rows)))
    assert [row["reason"] for row in rows] == [None, None, None, *file.outcome]
    assert all(row["detail"] for row in rows if row["reason"])
    assert [row["length"] > 0 for row in rows] == [row["reason"] is None for row in rows]


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind not in ("jsonl", "csv", "tsv")])
def test_no_cut_gives_a_shorter_table(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{kind}"
    data = whole(kind)
    for size in sorted({*range(0, len(data), max(1, len(data) // 60)), len(data) - 1}):
        path.write_bytes(data[:size])
        with pytest.raises(SourceError) as caught:
            scan(str(path), None, kind)
        assert str(path) in str(caught.value)
