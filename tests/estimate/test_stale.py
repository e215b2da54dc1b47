"""What was done to files since a table was counted, and that no stale row is taken over."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from export_files import contents
from PIL import Image
from processors import FEW_RANKS, qwen_folders

from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.records import shards
from packidx.records.media.opener import forget_media

SMALL, LARGE = 60, 600


def bmp(size: int) -> bytes:
    """An image whose file is as large whatever its size."""
    target = io.BytesIO()
    Image.new("1", (size, 56)).save(target, "bmp")
    return target.getvalue().ljust(8000, b"\0")


def talk(text: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "so"}]
    return {"messages": turns, **more}


def as_lines(*records: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def texts(word: str) -> bytes:
    """As many bytes, and as many in each sampled block, whatever a word of as many letters is."""
    filler = [talk("x" * 4000) for _ in range(40)]
    return as_lines(*filler[:20], talk(word), *filler[20:])


def as_tar(size: int) -> bytes:
    target = io.BytesIO()
    record = json.dumps(talk("<image>?", images=["0.bmp"])).encode()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in (("0.json", record), ("0.bmp", bmp(size))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def as_parquet(word: str) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([talk(word)] * 9), target, compression=None)
    return target.getvalue()


def keep_time(path: Path, change: Callable[[], Any]) -> None:
    """Change a file, and set its time of change back."""
    status = path.stat()
    change()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes of the same number at the same time in the same inode."""
    assert len(data) == path.stat().st_size and data != path.read_bytes()
    keep_time(path, lambda: path.write_bytes(data))


def exchange(path: Path, data: bytes) -> None:
    """Another file of the same size and time under the same name."""
    assert len(data) == path.stat().st_size and data != path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(data)
    keep_time(path, lambda: other.replace(path))


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def stored(path: Path, size: int) -> None:
    forget_media()  # no process opens a database twice
    with (
        lmdb.open(str(path), subdir=False, lock=False) as database,
        database.begin(write=True) as write,
    ):
        write.put(b"0", bmp(size))


class Home:
    """A working folder with data of every kind, and another one like it but for what is in it."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.here, self.there = tmp, tmp / "here", tmp / "there"
        for folder, size, word in ((self.here, SMALL, "a b c"), (self.there, LARGE, "abc/x")):
            self.fill(folder, size, word)
        self.out = tmp / "out"
        self.options: dict[str, Any] = {"workers": 1}

    def fill(self, home: Path, size: int, word: str) -> None:
        for folder in ("data/img", "data/deep/img", "text", "tar", "root", "outside"):
            (home / folder).mkdir(parents=True)
        for folder in ("data/img", "data/deep/img", "root", "outside"):
            (home / folder / "0.bmp").write_bytes(bmp(size))
            os.utime(home / folder / "0.bmp", ns=(10**18, 10**18))
        stored(home / "data/images.lmdb", size)
        refs: list[Any] = ["img/0.bmp", "images.lmdb::0", f"file://{home}/outside/0.bmp"]
        (home / "data/a.jsonl").write_bytes(
            as_lines(*(talk("<image>?", images=[ref]) for ref in refs[:2]))
        )
        (home / "data/frames.jsonl").write_bytes(
            as_lines(talk("<video>?", videos=[["img/0.bmp", "img/0.bmp"]]))
        )
        (home / "urls.jsonl").write_bytes(as_lines(talk("<image>?", images=refs[2:])))
        (home / "root.jsonl").write_bytes(as_lines(talk("<image>?", images=["0.bmp"])))
        meta = [{"images_meta": [[56, 56]]}]
        (home / "stated.jsonl").write_bytes(
            as_lines(talk("<image>?", images=["0.bmp"], mm_inputs_meta=meta[0]))
        )
        (home / "text/t.jsonl").write_bytes(texts(word))
        (home / "text/p.parquet").write_bytes(as_parquet(word))
        (home / "tar/t.tar").write_bytes(as_tar(size))
        for name in ("data/a.jsonl", "text/t.jsonl", "text/p.parquet", "tar/t.tar", "root.jsonl"):
            os.utime(home / name, ns=(10**18, 10**18))

    def count(self, *sources: str, out: Path | None = None, **more: Any) -> LengthsSummary:
        return estimate_lengths(list(sources), out or self.out, **{**self.options, **more})


def swap_folders(home: Home, name: str) -> None:
    (home.here / name).rename(home.tmp / "away")
    (home.there / name).rename(home.here / name)


def copy_table(home: Home) -> None:
    """A table that is copied after the edit: its own times are later than it."""
    shutil.copytree(home.out, home.tmp / "copy", copy_function=shutil.copy)
    home.out = home.tmp / "copy"


def edit(name: str, data: Callable[[], bytes], how: Any = rewrite) -> Callable[[Home], None]:
    return lambda home: how(home.here / name, data())


def out_of_root(home: Home) -> None:
    """The very image, by a link that now leads out of the media root."""
    (home.here / "root").rename(home.here / "was")
    (home.here / "root").mkdir()
    link(home.here / "root/0.bmp", home.here / "was/0.bmp")


def a_folder_less(home: Home) -> None:
    (home.here / "data/deep/a.jsonl").write_bytes((home.here / "data/a.jsonl").read_bytes())
    (home.here / "data/deep/img/0.bmp").write_bytes(bmp(LARGE))
    (home.here / "data/a.jsonl").unlink()
    shutil.copy(home.here / "data/images.lmdb", home.here / "data/deep/images.lmdb")


def folder_of_frames(home: Home) -> None:
    (home.here / "data/frames").mkdir()
    for number in range(2):
        (home.here / f"data/frames/{number}.bmp").write_bytes(bmp(SMALL))
    (home.here / "data/folder.jsonl").write_bytes(as_lines(talk("<video>?", videos=["frames"])))


def both(*steps: Callable[[Home], Any]) -> Callable[[Home], None]:
    def run(home: Home) -> None:
        for step in steps:
            step(home)

    return run


def large() -> bytes:
    return bmp(LARGE)


def other_text() -> bytes:
    return texts("abc/x")


DATA, TEXT, TAR, ROOT = ("data/a.jsonl",), ("text",), ("tar",), ("root.jsonl",)
Step = Callable[[Home], Any]
CASES: dict[str, tuple[tuple[str, ...], Step | None, Step]] = {
    # what is done to a file since: sources, what is done before the first count, what after it
    "a folder of text exchanged by rename": (TEXT, None, lambda h: swap_folders(h, "text")),
    "a link to a folder pointed elsewhere": (
        ("linked",),
        lambda h: link(h.here / "linked", h.here / "text"),
        lambda h: link(h.here / "linked", h.there / "text"),
    ),
    "a shard rewritten in place, its time kept": (TEXT, None, edit("text/t.jsonl", other_text)),
    "another file in a shard's place": (TEXT, None, edit("text/t.jsonl", other_text, exchange)),
    "a Parquet file rewritten": (TEXT, None, edit("text/p.parquet", lambda: as_parquet("abc/x"))),
    "a table copied after the edit": (
        TEXT,
        None,
        both(edit("text/t.jsonl", other_text), lambda h: copy_table(h)),
    ),
    "a tar's image exchanged": (TAR, None, edit("tar/t.tar", lambda: as_tar(LARGE))),
    "an image rewritten in place": (DATA, None, edit("data/img/0.bmp", large)),
    "another image in its place": (DATA, None, edit("data/img/0.bmp", large, exchange)),
    "an image that is gone": (DATA, None, lambda h: (h.here / "data/img/0.bmp").unlink()),
    "an image's link pointed elsewhere": (
        DATA,
        lambda h: (
            (h.here / "data/deep/large.bmp").write_bytes(bmp(LARGE)),
            link(h.here / "data/img/0.bmp", h.here / "data/deep/img/0.bmp"),
        ),
        lambda h: link(h.here / "data/img/0.bmp", h.here / "data/deep/large.bmp"),
    ),
    "what an image's link leads to": (
        DATA,
        lambda h: link(h.here / "data/img/0.bmp", h.here / "data/deep/img/0.bmp"),
        edit("data/deep/img/0.bmp", large),
    ),
    "a folder of images exchanged by rename": (DATA, None, lambda h: swap_folders(h, "data/img")),
    "an image in a database": (
        DATA,
        None,
        lambda h: stored(h.here / "data/images.lmdb", LARGE),
    ),
    "a frame of a video": (("data/frames.jsonl",), None, edit("data/img/0.bmp", large)),
    "a frame in a folder of frames": (
        ("data/folder.jsonl",),
        folder_of_frames,
        edit("data/frames/1.bmp", large),
    ),
    "an image by its file:// URL": (("urls.jsonl",), None, edit("outside/0.bmp", large)),
    "an image in the media root": (ROOT, None, edit("root/0.bmp", large)),
    "a media root exchanged by rename": (ROOT, None, lambda h: swap_folders(h, "root")),
    "an image that lies outside of the media root now": (ROOT, None, out_of_root),
    "the same where its size is stated": (("stated.jsonl",), None, out_of_root),
    "the same media root in another folder": (
        ROOT,
        lambda h: shutil.copy2(h.here / "root.jsonl", h.there / "root.jsonl"),
        lambda h: os.chdir(h.there),
    ),
    "the same shards in another folder": (
        DATA,
        lambda h: shutil.copy2(h.here / "data/a.jsonl", h.there / "data/a.jsonl"),
        lambda h: os.chdir(h.there),
    ),
    "a shard moved to other images": (("data/**/a.jsonl",), None, a_folder_less),
    "a part of the table cut off": (
        TEXT,
        None,
        lambda h: next(h.out.glob("part-*")).write_bytes(b""),
    ),
    "what the table says of its images cut off": (
        DATA,
        None,
        both(
            edit("data/img/0.bmp", large),
            lambda h: next(h.out.glob("note-*")).write_bytes(b""),
        ),
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    made = Home(tmp_path)
    made.options["processor"] = str(qwen_folders(tmp_path / "p", FEW_RANKS)["qwen2.5-vl"])
    monkeypatch.chdir(made.here)
    return made


@pytest.mark.parametrize("case", CASES)
def test_no_stale_row_is_taken_over(home: Home, case: str) -> None:
    sources, prepare, change = CASES[case]
    if prepare is not None:
        prepare(home)
    if sources[0] in ("root.jsonl", "stated.jsonl"):
        home.options["media_root"] = "root"
    before = home.count(*sources)
    assert before.rejected == {}
    later = time.time() + 60  # as of a table that was written long after its shards
    os.utime(home.out / "manifest.json", (later, later))
    assert home.count(*sources).existed, "what did not change is trusted"
    change(home)
    again = home.count(*sources)
    fresh = home.count(*sources, out=home.tmp / "fresh", fresh=True)
    assert not again.existed
    made, wanted = contents(home.out), contents(home.tmp / "fresh")
    assert {name: made[name] for name in wanted} == wanted
    assert not any(made[name] for name in made.keys() - wanted.keys())  # what was cut to nothing
    same = "a part of the table cut off"
    assert case == same or fresh.fingerprint != before.fingerprint, "a case that changes nothing"
    assert home.count(*sources).existed or fresh.num_rejected


def test_what_is_the_same_is_taken_over(home: Home) -> None:
    """Touched, copied or moved, or looked at from a copy of the table: nothing is counted."""
    home.options["media_root"] = "root"
    sources = [str(home.here / name) for name in (*ROOT, *TEXT)]
    home.count(*sources)
    copy_table(home)
    assert home.count(*sources).existed
    os.utime(home.here / "text/t.jsonl")
    assert home.count(*sources).existed
    (home.here / "text/t.jsonl").rename(home.here / "text/moved.jsonl")
    shutil.copy(home.here / "root.jsonl", home.here / "new.jsonl")
    taken = home.count(*sources[1:], str(home.here / "new.jsonl")).taken_over
    assert taken is not None and taken.num_counted == 0


def test_a_killed_run_goes_on_with_what_did_not_change(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ("data/a.jsonl", "tar", "text")
    for module in (shards, tasks):
        monkeypatch.setattr(module, "TASK_BYTES", 100)
    real, done = tasks.write_part, []

    def interrupt(*arguments: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return real(*arguments)

    for number, (change, resumed) in enumerate(
        [
            (lambda: None, 3),
            (lambda: rewrite(home.here / "data/img/0.bmp", large()), 2),
            (lambda: rewrite(home.here / "tar/t.tar", as_tar(LARGE)), 2),
        ]
    ):
        out = home.tmp / str(number)
        done.clear()
        with monkeypatch.context() as patch:
            patch.setattr(tasks, "write_part", interrupt)
            with pytest.raises(KeyboardInterrupt):
                home.count(*sources, out=out)
        change()
        assert home.count(*sources, out=out).resumed_parts == resumed
        home.count(*sources, out=home.tmp / f"fresh{number}", fresh=True)
        assert contents(out) == contents(home.tmp / f"fresh{number}")


class Pixels:
    """An encoder of the user's, which gets its images opened."""

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {"input_ids": [0] * sum(image.size[0] for image in record["images"])}

    def fingerprint(self) -> str:
        return "pixels-1"


def opened(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    """A transform that opens a file itself."""
    files = [Path("data", path).read_bytes() for path in record["images"]]
    return {**record, "images": [Image.open(io.BytesIO(data)) for data in files]}


@pytest.mark.parametrize("options", [{"encode": Pixels()}, {"transform": opened}])
def test_code_of_the_users_own(home: Home, options: dict[str, Any]) -> None:
    record = as_lines(talk("<image>?", images=["img/0.bmp"]))
    (home.here / "data/a.jsonl").write_bytes(record)
    if "encode" in options:
        del home.options["processor"]
    first = home.count(*DATA, **options)
    assert home.count(*DATA, **options).existed == ("encode" in options)
    rewrite(home.here / "data/img/0.bmp", large())
    again = home.count(*DATA, **options)
    assert again.num_tokens > first.num_tokens
