"""WebDataset shards: what is a sample, where its media are, what is refused."""

# ruff: noqa: E501  a row of a table is a line

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from reading import Row, read_records, read_row
from record_files import tar_of
from tar_chats import (
    CHATS,
    Files,
    Record,
    dumped,
    members_of,
    picture,
    put,
    turns,
)
from webdataset import tariterators

from packidx import estimate_lengths
from packidx.errors import BadRecord, SourceError
from packidx.records import shards
from packidx.records.conversation import Media
from packidx.records.shards import scan_shard
from packidx.records.sources.find_shards import find_shards


def estimate(source: Path | str, output: Path, **options: Any) -> Any:
    return estimate_lengths(str(source), output, **{"workers": 1, **options})


def everything(path: Path | str) -> list[Row]:
    result = scan_shard(str(path), "tar")
    rows = [raw for part in result.ranges for raw in read_records(str(path), part, "tar")]
    assert [raw.locator.row for raw in rows] == list(range(result.num_records))
    return rows


def outcomes(path: Path) -> list[Any]:
    """Per row its key and reason, or None for a good one; each is read by its place, too."""
    found = []
    for raw in everything(path):
        reason = raw.data.reason if isinstance(raw.data, BadRecord) else None
        found.append((raw.key, reason))
        if reason == "torn_sample":  # no reader asks for what was rejected
            continue
        try:
            again = read_row(str(path), *raw.locator, kind="tar")
        except BadRecord as error:
            assert error.reason == reason
        else:
            assert again == raw.data
    return found


# -- what is a sample ------------------------------------------------------------------------------


def by_webdataset(path: Path) -> list[Record]:
    """The samples as that package's own iterators find them."""
    with open(path, "rb") as file:
        found = tariterators.tar_file_iterator(file)
        return list(tariterators.group_by_keys({**one, "__url__": ""} for one in found))


def test_what_the_webdataset_package_writes_and_reads(tmp_path: Path) -> None:
    """Its writers' shards give the same records as `tarfile`'s, and its reader the same samples."""
    pattern = str(tmp_path / "w-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=10, verbose=0) as writer:
        for key, (record, images) in CHATS.items():
            writer.write({"__key__": key, "json": dumped(record), **images})
    written = sorted(tmp_path.glob("w-*.tar"))
    assert len(written) == 3
    ours = [raw for path in written for raw in everything(path)]
    plain = everything(put(tmp_path / "plain.tar", members_of()))
    assert [raw.data for raw in ours] == [raw.data for raw in plain]
    assert [raw.key for raw in ours] == list(CHATS)
    theirs = [sample for path in written for sample in by_webdataset(path)]
    for sample, raw in zip(theirs, ours, strict=True):
        assert isinstance(raw.data, dict)
        assert sample["__key__"] == raw.key == raw.data["id"]
        assert raw.media == [sample[name] for name in CHATS[raw.key][1]]


ODD_NAMES = {
    "a.b/c.d.e": ("a.b/c", "d.e"),
    "./x.json": ("./x", "json"),
    "n" * 150 + "/" + "m" * 150 + ".json": ("n" * 150 + "/" + "m" * 150, "json"),
    "ü/漢.JSON": ("ü/漢", "json"),
}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_keys_are_those_of_webdataset_whatever_the_headers(tmp_path: Path, form: int) -> None:
    names = [name for name in ODD_NAMES if form != tarfile.USTAR_FORMAT or len(name) < 150]
    skipped = ["README", ".hidden.json", "__meta__", "__stats__/a.json", "d/.b.json"]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=form, pax_headers={"comment": "whole"}) as archive:
        for kind, name in ((tarfile.DIRTYPE, "d"), (tarfile.SYMTYPE, "link.json")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "x.json"
            archive.addfile(info)
        for name in [one for pair in zip(skipped, names, strict=False) for one in pair]:
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"{}"))
    used = names[: len(skipped)]
    assert [sample["__key__"] for sample in by_webdataset(path)] == [
        ODD_NAMES[name][0] for name in used
    ]
    found = dict(outcomes(path))
    assert found.pop("link") == "bad_json"  # which webdataset passes over in silence
    assert found == {
        ODD_NAMES[name][0]: None if ODD_NAMES[name][1] == "json" else "bad_record" for name in used
    }


def holds(group: list[str]) -> tuple[bool, bool]:
    """True if a sample has a record, and if it has an image."""
    return any(n.endswith("json") for n in group), any(n.endswith("g") for n in group)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["json", "jpg", "0.png", "x"])),
        max_size=25,
    ),
    st.sampled_from([300, 1100, 10**6]),
    st.sampled_from([1, 700, 5000]),
)
def test_every_member_is_in_one_row(
    tmp_path_factory: pytest.TempPathFactory,
    names: Sequence[tuple[str, str]],
    block: int,
    task_bytes: int,
) -> None:
    """Rows follow from the order of names alone, wherever blocks and tasks are cut; each place
    holds its sample's members and no other."""
    path = tmp_path_factory.getbasetemp() / "random.tar"
    members = [(f"{key}.{ext}", b"{}" * (number % 700)) for number, (key, ext) in enumerate(names)]
    text = b'{"a": 1, "media_type": "text"}'
    members = [(n, text if n.endswith("json") else data) for n, data in members]
    path.write_bytes(tar_of(members))
    expected: list[list[str]] = []
    for key, ext in names:
        name = f"{key}.{ext}"
        if not expected or expected[-1][0][0] != key or name in expected[-1]:
            expected.append([])
        expected[-1].append(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packidx.io.ranges._BUFFER", block)
        patch.setattr(shards, "TASK_BYTES", task_bytes)
        ranges = scan_shard(str(path), "tar").ranges
        if task_bytes == 1:
            assert len(ranges) == len(expected)
        found = outcomes(path)
        rows = everything(path)
    for (key, reason), group, raw in zip(found, expected, rows, strict=True):
        assert key == group[0][0]
        has_record, _ = holds(group)
        others = [holds(other) for other in expected if other is not group and other[0][0] == key]
        is_torn = any(media and not json for json, media in others)
        assert reason == ("bad_record" if not has_record else "torn_sample" if is_torn else None)
        assert raw.locator.offset is not None
        assert raw.locator.nbytes is not None
        piece = path.read_bytes()[raw.locator.offset : raw.locator.offset + raw.locator.nbytes]
        with tarfile.open(fileobj=io.BytesIO(piece)) as archive:
            assert archive.getnames() == group


# -- media -----------------------------------------------------------------------------------------

A, B = picture(1, "jpg"), picture(2)
MEDIA: dict[str, tuple[Record, Any]] = {
    "full names": ({"images": ["k/s.0.jpg", "k/s.b.png"]}, [A, B]),
    "extensions, turned round": ({"images": ["b.png", "0.JPG"]}, [B, A]),
    "objects": ({"images": [{"path": "b.png"}, {"image": "k/s.0.jpg", "height": 9}]}, [B, A]),
    "one name": ({"image": "b.png"}, "refused"),
    "none, in the tar's order": ({}, [A, B]),
    "none, an empty list": ({"images": []}, [A, B]),
    "a place elsewhere": ({"images": ["/data/b.png", "https://x/0.jpg"]}, "refused"),
    "an unknown name": ({"images": ["c.png", "s.b.png"]}, "refused"),
}


@pytest.mark.parametrize("name", MEDIA)
def test_how_media_are_named(tmp_path: Path, name: str) -> None:
    given_, expected = MEDIA[name]
    record = {"messages": turns("<image><image>What?"), **given_}
    members = [("k/s.0.JPG" if "round" in name else "k/s.0.jpg", A), ("k/s.b.png", B)]
    path = put(tmp_path / "x.tar", [*members, ("k/s.json", dumped(record)), ("k/s.txt", b"no")])
    (raw,) = everything(path)
    if expected == "refused":  # files that the record does not name
        assert isinstance(raw.data, BadRecord)
        assert raw.data.reason == "unused_column"
        return
    assert isinstance(raw.data, dict)
    assert raw.media == expected
    assert raw.data["__key__"] == raw.data["id"] == "k/s"


def test_an_id_of_the_records_own_stays(tmp_path: Path) -> None:
    path = put(tmp_path / "x.tar", [("s.json", dumped({"id": 7, "messages": turns("Hi")}))])
    (raw,) = everything(path)
    assert isinstance(raw.data, dict)
    assert (raw.key, raw.data["id"], raw.data["__key__"]) == ("s", 7, "s")


def test_a_name_that_is_no_member_leads_into_the_media_root(tmp_path: Path) -> None:
    record = {"messages": turns("<image>What?"), "images": ["a.png"]}
    path = put(tmp_path / "x.tar", [("s.json", dumped(record))])
    (tmp_path / "a.png").write_bytes(B)
    (tmp_path / "media").mkdir()
    for root, reason in (
        (None, None),
        (tmp_path / "media", "missing_media"),
    ):
        estimate(path, tmp_path / "out", media_root=root)
        (row,) = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
        assert (row["key"], row["reason"]) == ("s", reason)
        if reason:
            assert "a.png" in row["detail"]


TEXTS: dict[str, tuple[Record, str | list[str]]] = {
    "lists": ({"texts": {"prompts": ["<image>a", "b"], "captions": ["c", "d"]}, "media_files": ["jpg"]}, ["<image>a", "c", "b", "d"]),
    "nested": ({"texts": {"prompts": [["<image>a", "b"], ["e"]], "captions": [["c", "d"], ["f"]]}}, ["<image>a", "c", "b", "d", "e", "f"]),
    "no placeholder": ({"texts": {"prompts": ["a"], "captions": ["c"]}, "media_files": ["jpg"]}, ["a", "c"]),
    "captions alone": ({"texts": {"captions": ["c"]}}, ["", "c"]),
    "one of each": ({"texts": {"prompts": "a", "captions": "c"}}, ["a", "c"]),
    "uneven": ({"texts": {"prompts": ["a", "b"], "captions": ["c"]}}, "bad_turn"),
    "numbers": ({"texts": {"prompts": [1], "captions": ["c"]}}, "bad_turn"),
    "text": ({"texts": "a"}, "no_messages"),
    "unknown kind": ({"texts": {"captions": ["c"]}, "media_files": ["x.bin"]}, "bad_media"),
    "twice": ({"texts": {"captions": ["c"]}, "media_files": ["jpg"], "images": ["jpg"]}, "bad_media"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_loongforge(tmp_path: Path, name: str) -> None:
    record, expected = TEXTS[name]
    path = put(tmp_path / "x.tar", [("s.json", dumped(record)), ("s.jpg", A)])
    (raw,) = everything(path)
    if isinstance(expected, str):
        assert isinstance(raw.data, BadRecord)
        assert raw.data.reason == expected
        assert raw.key == "s"
        return
    assert isinstance(raw.data, dict)
    texts = ["".join(part for part in turn.parts if isinstance(part, str)) for turn in raw.turns]
    assert texts == [text.removeprefix("<image>") for text in expected]
    assert isinstance(raw.turns[0].parts[0], Media)
    assert raw.media == [A]


ASKED, PLACED = turns("What?"), turns("<image>What?")
PART = [{"role": "user", "content": [{"type": "image"}, "What?"]}]
LOONG = {"texts": {"prompts": ["a"], "captions": ["c"]}}
STATED: dict[str, tuple[Record, str, Any]] = {
    "text": ({"messages": ASKED, "media_type": "text"}, "jpg", {}),
    "text, with files of both kinds": ({"messages": ASKED, "media_type": "text"}, "jpg mp4", {}),
    "text, with empty lists": ({"messages": ASKED, "images": [], "media_type": "text"}, "jpg", {}),
    "text, with a placeholder": ({"messages": PLACED, "media_type": "text"}, "jpg", "bad_media"),
    "text, with a part": ({"messages": PART, "media_type": "text"}, "jpg", "bad_media"),
    "text, with a named image": ({"messages": ASKED, "images": ["jpg"], "media_type": "text"}, "jpg", "bad_media"),
    "text, with a placeholder for a video": ({"messages": turns("<video>"), "media_type": "text"}, "", "bad_media"),
    "image": ({"messages": ASKED, "media_type": "image"}, "jpg", {"images": 1}),
    "image, named": ({"messages": PLACED, "images": ["jpg"], "media_type": "image"}, "jpg", {"images": 1}),
    "image, without one": ({"messages": ASKED, "media_type": "image"}, "", "bad_media"),
    "image, with a video": ({"messages": ASKED, "media_type": "image"}, "mp4", "bad_media"),
    "image, with both": ({"messages": ASKED, "media_type": "image"}, "jpg mp4", "bad_media"),
    "image, with a placeholder for a video": ({"messages": turns("<video>"), "media_type": "image"}, "jpg", "bad_media"),
    "video": ({"messages": ASKED, "media_type": "video"}, "mp4", {"videos": 1}),
    "video, with an image": ({"messages": ASKED, "media_type": "video"}, "jpg", "bad_media"),
    "both": ({"messages": ASKED, "media_type": "image+video"}, "jpg mp4", {"images": 1, "videos": 1}),
    "both, with one of them": ({"messages": ASKED, "media_type": "image+video"}, "jpg", "bad_media"),
    "another's word": ({"messages": ASKED, "media_type": "image/png"}, "jpg", {"images": 1}),
    "none": ({"messages": ASKED, "media_type": None}, "jpg", {"images": 1}),
    "texts, text": ({**LOONG, "media_type": "text"}, "jpg", {}),
    "texts, text by its other name": ({**LOONG, "media": "text"}, "jpg", {}),
    "texts, text with files": ({**LOONG, "media_files": ["jpg"], "media_type": "text"}, "jpg", "bad_media"),
    "texts, text with a placeholder": ({"texts": {"captions": ["<image>"]}, "media_type": "text"}, "jpg", "bad_media"),
    "texts, image": ({**LOONG, "media_files": ["jpg"], "media_type": "image"}, "jpg", {"images": 1}),
    "texts, image without files": ({**LOONG, "media_type": "image"}, "", "bad_media"),
    "texts, image with a video": ({**LOONG, "media_files": ["mp4"], "media_type": "image"}, "mp4", "bad_media"),
    "texts, both": ({**LOONG, "media_files": ["mp4", "jpg"], "media_type": "image+video"}, "jpg mp4", {"images": 1, "videos": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_a_stated_media_type_decides_and_is_held_against_the_media(
    tmp_path: Path, name: str
) -> None:
    record, files, expected = STATED[name]
    members = [(f"s.{ending}", A) for ending in files.split()]
    path = put(tmp_path / "x.tar", [("s.json", dumped(record)), *members])
    (raw,) = everything(path)
    (outcome,) = outcomes(path)
    if isinstance(expected, str):
        assert outcome in (("s", expected), ("s", "media_mismatch"))
        assert isinstance(raw.data, BadRecord)
        return
    assert isinstance(raw.data, dict)
    assert len(raw.media) == sum(expected.values())


CAT, HI = b"A cat.", dumped({"messages": turns("Hi")})
ONE, TWO = (dumped({"messages": turns("<image>" * number + "Hi")}) for number in (1, 2))
UNPLACED: dict[str, tuple[dict[str, bytes], list[str], str | None, int]] = {
    "a mask": ({"txt": CAT, "jpg": A, "seg.png": B}, [], "unused_column", 0),
    "a mask, ignored": ({"txt": CAT, "jpg": A, "seg.png": B}, [".seg.png"], None, 1),
    "a mask, ignored without its dot": ({"txt": CAT, "jpg": A, "seg.png": B}, ["seg.png"], None, 1),
    "depth beside a chat": ({"json": HI, "jpg": A, "depth.png": B}, [], "unused_column", 0),
    "a mask beside one place": ({"json": ONE, "jpg": A, "mask.png": B}, [], "unused_column", 0),
    "a thumbnail": ({"json": HI, "jpg": A, "thumb.jpg": A}, [], "unused_column", 0),
    "a thumbnail of a video": ({"json": HI, "mp4": A, "thumb.jpg": A}, [], "unused_column", 0),
    "one picture in three formats": ({"txt": CAT, "jpg": A, "png": B, "webp": B}, [], "unused_column", 0),
    "left and right, no place": ({"txt": CAT, "left.jpg": A, "right.jpg": A}, [], "unused_column", 0),
    "left and right, placed": ({"json": TWO, "left.jpg": A, "right.jpg": A}, [], None, 2),
    "numbered, no place": ({"json": HI, "0.jpg": A, "1.jpg": A}, [], "unused_column", 0),
    "numbered, placed": ({"json": TWO, "img0.jpg": A, "img1.jpg": A}, [], None, 2),
    "numbered, a part for each": ({"json": dumped({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}, *turns("")[1:]]}), "0.jpg": A, "1.png": B}, [], None, 2),
    "a question with a place for each": ({"json": dumped({"question": "<image><image>?", "answer": "So."}), "0.jpg": A, "1.jpg": A}, [], None, 2),
    "one, whatever it is called": ({"json": HI, "rgb.jpg": A}, [], None, 1),
    "one that cannot be read": ({"txt": CAT, "heic": A}, [], "unused_column", 0),
    **{f"a {end} that cannot be read": ({"txt": CAT, end: A}, [], "unused_column", 0) for end in ("jxl", "j2k", "pdf", "dng", "psd", "exr", "page.PDF")},
    "a picture and its page": ({"json": HI, "jpg": A, "pdf": A}, [], "unused_column", 0),
    "its page, ignored": ({"json": HI, "jpg": A, "pdf": A}, ["pdf"], None, 1),
    "named by the record": ({"json": dumped({"messages": turns("<image><image>Hi"), "images": ["jpg", "seg.png"]}), "jpg": A, "seg.png": B}, [], None, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPLACED)
def test_a_member_without_a_place_is_not_trained_on(tmp_path: Path, name: str) -> None:
    members, ignored, reason, number = UNPLACED[name]
    path = put(tmp_path / "x.tar", [(f"k/0000.{end}", data) for end, data in members.items()])
    estimate(path, tmp_path / "out", ignore=ignored)
    (row,) = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
    assert (row["reason"], row["num_images"] or 0) == (reason, number), row["detail"]


def test_numbered_members_come_by_their_numbers(tmp_path: Path) -> None:
    pictures = {f"{n}.png": picture(n) + bytes([n]) for n in range(12)}
    record = dumped({"messages": turns("<image>" * 12)})
    members = [("s.json", record), *((f"s.{n}", data) for n, data in sorted(pictures.items()))]
    (raw,) = everything(put(tmp_path / "x.tar", members))
    assert isinstance(raw.data, dict)
    assert raw.media == list(pictures.values())


WHOLE_SAMPLES = [(f"{n}.{end}", data) for n in (1, 2) for end, data in (("jpg", A), ("json", HI))]
APART: dict[str, tuple[list[Files], list[str | None]]] = {
    "an image further on": ([[("0.txt", CAT), *WHOLE_SAMPLES, ("0.jpg", A)]], ["torn_sample", None, None, "bad_record"]),
    "a chat's image further on": ([[("0.json", HI), *WHOLE_SAMPLES, ("0.png", B)]], ["torn_sample", None, None, "bad_record"]),
    "a chat behind its image": ([[("0.png", B), *WHOLE_SAMPLES, ("0.json", HI)]], ["bad_record", None, None, "torn_sample"]),
    "folders of texts and images": ([[("texts/0.txt", CAT), ("texts/5.json", HI), ("images/0.jpg", A)]], ["torn_sample", None, "bad_record"]),
    "in the next shard": ([[*WHOLE_SAMPLES, ("3.json", HI)], [("3.jpg", A), ("4.json", HI)]], [None, None, "torn_sample", "torn_sample", None]),
    "in the shard before": ([[*WHOLE_SAMPLES, ("3.jpg", A)], [("3.json", HI), ("4.json", HI)]], [None, None, "torn_sample", "torn_sample", None]),
    "a second image further on": ([[("0.json", HI), ("0.0.jpg", A), *WHOLE_SAMPLES, ("0.1.jpg", A)]], ["torn_sample", None, None, "bad_record"]),
    "a second image in the next shard": ([[*WHOLE_SAMPLES, ("3.json", HI), ("3.0.jpg", A)], [("3.1.jpg", A)]], [None, None, "torn_sample", "torn_sample"]),
    "a caption without its image": ([[*WHOLE_SAMPLES, ("3.txt", CAT)]], [None, None, "torn_sample"]),
    "documents among images": ([[*WHOLE_SAMPLES[:2], ("3.txt", CAT), ("4.txt", CAT)]], [None, None, None]),
    "a chat without an image": ([[*WHOLE_SAMPLES, ("3.json", HI)], [("4.json", HI), ("4.jpg", A)]], [None, None, None, None]),
    "numbers that begin anew": ([[("0.json", HI), ("0.jpg", A)], [("0.json", HI), ("0.jpg", A)]], [None, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_a_text_is_not_trained_on_without_its_image(tmp_path: Path, name: str) -> None:
    tars, reasons = APART[name]
    for number, members in enumerate(tars):
        put(tmp_path / "x" / f"{number}.tar", members)
    estimate(tmp_path / "x", tmp_path / "out", workers=2)
    rows = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
    assert [row["reason"] for row in rows] == reasons


# -- what is wrong ---------------------------------------------------------------------------------

GOOD = dumped({"messages": turns("Hi")})
SAMPLES: Files = [(f"{key}.json", GOOD) for key in "abc"]


def damaged() -> bytes:
    data = bytearray(tar_of(SAMPLES))
    data[1024 + 10] ^= 0xFF
    return bytes(data)


WHOLE = tar_of(SAMPLES)[: 3 * 1024]
END = bytes(1024)
BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "(empty file); no sample is whole"),
    "no tar, long": (lambda: b"text " * 500, "no header of a tar's member at byte 0"),
    "gzip inside": (lambda: gzip.compress(os.urandom(2000)), "no header of a tar's member at byte 0"),
    "no end": (lambda: WHOLE, "is cut: it stops at byte 3072"),
    "cut between samples": (lambda: WHOLE[:2048], "sample 'b' is whole"),
    "cut in a header": (lambda: WHOLE[:2060], "tar's member at byte 2048 nor its empty end"),
    "cut in a member": (lambda: WHOLE[:2600], "cut inside member 'c.json'"),
    "cut in padding": (lambda: WHOLE[:-1], "cut inside member 'c.json'"),
    "cut in the end": (lambda: WHOLE + END[:-1], "is cut: it stops at byte 3072"),
    "damaged header": (damaged, "a header of a tar's member at byte 1024 nor"),
    "two by cat": (lambda: WHOLE + END + WHOLE + END, "or two tars are joined"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_of_which_the_samples_are_not_known(tmp_path: Path, name: str) -> None:
    make, words = BAD_FILES[name]
    path = tmp_path / "shard-7.tar"
    path.write_bytes(make())
    with pytest.raises(SourceError) as caught:
        estimate(path, tmp_path / "out")
    text = str(caught.value)
    assert str(path) in text
    assert words in text
    assert "restore the shard" in text
    assert "\n" not in text
    assert not (tmp_path / "out").exists()


def test_bad_samples_are_rows_and_the_scan_goes_on(tmp_path: Path) -> None:
    picture_ = dumped({"messages": turns("<image>Hi"), "images": ["png"]})
    both = dumped({"messages": turns("<image>Hi"), "images": ["jpg"], "image": "jpg"})
    members: Files = [
        ("ok.json", picture_), ("ok.png", B),
        ("cut.json", b'{"messages": ['),
        ("list.json", b"[1]"), ("list.png", B),
        ("lonely.png", B),
        ("latin.json", b'{"a": "\xff"}'),
        ("absent.json", picture_),
        ("broken.json", picture_), ("broken.png", B[:500]),
        ("none.json", b""),
        ("both.json", both), ("both.jpg", A),
        ("ok.json", picture_), ("ok.png", B),
        ("twice.json", GOOD), ("twice.json", GOOD),
        ("\udcff.json", GOOD),
        ("last.png", B), ("last.json", picture_),
    ]  # fmt: skip
    path = tmp_path / "bad.tar"
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(sink.getvalue())
    estimate(path, tmp_path / "out")
    rows = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
    expected = [
        ("ok", None), ("cut", "bad_json"), ("list", "bad_record"), ("lonely", "bad_record"),
        ("latin", "bad_utf8"), ("absent", "missing_media"), ("broken", "broken_media"),
        ("none", "bad_json"), ("both", "bad_media"), ("ok", None), ("twice", None),
        ("twice", None), ("\ufffd", None), ("last", None),
    ]  # fmt: skip
    assert [(row["key"], row["reason"]) for row in rows] == expected
    assert all(row["shard"] == 0 and row["detail"] for row in rows if row["reason"])
    named = {row["reason"]: row["detail"] for row in rows}
    assert "'png'" in named["missing_media"]
    assert [row["row"] for row in rows] == list(range(len(rows)))
    outcomes(path)


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_a_member_that_is_no_file_costs_its_sample_alone(tmp_path: Path, kind: bytes) -> None:
    files = {"a.json": GOOD, "a.png": B, "b.json": GOOD, "b.png": None, "c.json": GOOD}
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            if data is None:
                info.type, info.linkname = kind, "a.png"
            archive.addfile(info, io.BytesIO(data or b""))
    estimate(tmp_path / "x.tar", tmp_path / "out")
    rows = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
    assert [row["reason"] for row in rows] == [None, "broken_media", None]


def test_names_that_climb_are_names_in_the_tar(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(B)
    record = dumped({"messages": turns("<image>Hi"), "images": ["../../secret.png"]})
    names = ["../../up", "/etc/root", "in/../a"]
    members = [*((f"{name}.json", GOOD) for name in names), ("lost.json", record)]
    path = put(tmp_path / "in" / "deep" / "x.tar", members)
    estimate(path, tmp_path / "out")
    rows = pq.read_table(sorted((tmp_path / "out").glob("part-*"))).to_pylist()
    expected = [*((name, None) for name in names), ("lost", "media_outside_root")]
    assert [(row["key"], row["reason"]) for row in rows] == expected


def test_a_place_that_holds_no_sample(tmp_path: Path) -> None:
    path = str(put(tmp_path / "x.tar", SAMPLES))
    with pytest.raises(
        SourceError, match="has 2 samples in 2048 bytes from byte 0 on, where one was"
    ):
        read_row(path, 0, 0, 2048, kind="tar")
    with pytest.raises(SourceError, match="from byte 7 on: there is no header of a tar"):
        read_row(path, 0, 7, 1024, kind="tar")
    with pytest.raises(SourceError, match="cut inside member"):
        read_row(path, 0, 0, 600, kind="tar")


@pytest.mark.parametrize("ending", ["tgz", "tar.zst"])
def test_compressed_tars_are_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "data" / f"x.{ending}"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(WHOLE + END))
    for source, words in (
        (path, f"{path} is of an unknown kind.*unpack compressed tars"),
        (path.parent, "in a form that packidx does not read"),
        (tmp_path / "data" / "*", f"{path} is of an unknown kind"),
    ):
        with pytest.raises(SourceError, match=words):
            find_shards([str(source)])
    put(path.parent / "y.tar", SAMPLES)
    assert [shard.container for shard in find_shards([str(path.parent)])] == ["tar"]
