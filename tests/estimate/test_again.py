"""Counting again: what changed is counted, the rest is reused; the bytes are a full count's."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from record_files import WRITERS, contents

from packidx import open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.estimate.api import Reused
from packidx.inspect.verify import verify_index
from packidx.records import shards
from packidx.records.containers import lines
from packidx.software import list_versions

TASK_BYTES = 6_000
PER_SHARD = 60
KINDS = ("jsonl", "jsonl.gz", "json", "csv", "parquet", "tar")


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(tasks, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(lines, "SCAN_BLOCK", TASK_BYTES // 2)


def chat(text: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}!"}]
    return {"messages": turns, **more}


def seen(**image: Any) -> dict[str, Any]:
    """A record with an image."""
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "So."}]
    return {"messages": turns, "image": {"path": "0.png", **image}}


def records(name: str, number: int = PER_SHARD) -> list[dict[str, Any]]:
    """Some with a name of their own, some without, and some that are no sample."""
    made = [chat(f"{name} {n} " + "word " * (n % 40)) for n in range(number)]
    for n in range(0, number, 3):
        made[n]["id"] = f"{name}-{n}"
    for n in range(5, number, 17):
        made[n] = {"messages": []}
    return made


class Corpus:
    """A folder of shards, and the table that is made of it again and again."""

    def __init__(self, tmp_path: Path, kind: str = "jsonl", names: str = "abcd") -> None:
        self.tmp, self.kind = tmp_path, kind
        self.data, self.out = tmp_path / "data", tmp_path / "out"
        self.options: dict[str, Any] = {"workers": 1}
        self.data.mkdir()
        for name in names:
            self.write(name, records(name))

    def path(self, name: str) -> Path:
        return self.data / f"{name}.{self.kind}"

    def write(self, name: str, made: Sequence[dict[str, Any]]) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(WRITERS[self.kind](made))

    def count(self, *sources: str, **options: Any) -> LengthsSummary:
        given = list(sources) or [str(self.data)]
        return estimate_lengths(given, self.out, **{**self.options, **options})

    def again(self, *sources: str, **options: Any) -> Reused:
        """Count again, and compare with a count elsewhere that reuses nothing."""
        summary = self.count(*sources, **options)
        elsewhere = self.tmp / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        given = list(sources) or [str(self.data)]
        fresh = estimate_lengths(given, elsewhere, fresh=True, **{**self.options, **options})
        assert fresh.reused is None and not fresh.existed
        if summary.existed:  # times of shards that were only touched stay as they are
            assert without_times(self.out) == without_times(elsewhere)
        else:
            assert contents(self.out) == contents(elsewhere)
        reused = summary.reused
        assert reused is not None
        assert reused.num_samples + reused.num_counted == summary.num_samples
        return reused


def without_times(folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = contents(folder)
    manifest = json.loads(files["manifest.json"])
    for shard in manifest["shards"]:
        del shard["version"]
    return files | {"manifest.json": manifest | {"digest": ""}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_changed_is_counted_as_a_whole(tmp_path: Path, kind: str) -> None:
    corpus = Corpus(tmp_path, kind)
    corpus.count()
    corpus.write("b", records("b", PER_SHARD + 20))
    reused = corpus.again()
    assert (reused.num_samples, reused.num_counted) == (3 * PER_SHARD, PER_SHARD + 20)
    assert reused.counted == [f"b.{kind}"]


CHANGES: dict[str, tuple[Callable[[Corpus], Any], list[str]]] = {
    "nothing": (lambda c: None, []),
    "touched": (lambda c: os.utime(c.path("a")), []),
    "copied back": (lambda c: c.write("a", records("a")), []),
    "in front": (lambda c: c.write("0", records("0")), ["0.jsonl"]),
    "in the middle": (lambda c: c.write("bb", records("bb")), ["bb.jsonl"]),
    "one emptied": (lambda c: c.write("b", []), []),
    "removed": (lambda c: c.path("a").unlink(), []),
    "renamed": (lambda c: c.path("a").rename(c.path("bb")), ["bb.jsonl"]),
    "a copy": (lambda c: shutil.copy(c.path("a"), c.path("bb")), ["bb.jsonl"]),
    "names that collide": (
        lambda c: c.write("more/a", records("other a")),
        ["data/a.jsonl", "more/a.jsonl"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes(tmp_path: Path, change: str) -> None:
    corpus = Corpus(tmp_path)
    corpus.count()
    make, expected = CHANGES[change]
    make(corpus)
    reused = corpus.again()
    assert (reused.counted, reused.reason) == (expected, None)
    assert reused.num_samples >= 3 * PER_SHARD


def test_sources_in_another_order(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    sources = [str(corpus.path(name)) for name in "abcd"]
    corpus.count(*sources)
    assert corpus.again(*reversed(sources)).num_counted == 0
    assert corpus.again(f"mine={sources[2]}", sources[0]).num_counted == 0


def test_unchanged_shards_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    corpus.count()
    corpus.write("c", records("c", 20))
    scan, scanned = shards.scan_shard, list[str]()
    monkeypatch.setattr(
        shards, "scan_shard", lambda path, *rest: scanned.append(path) or scan(path, *rest)
    )
    corpus.count()
    assert scanned == [str(corpus.path("c"))]
    os.utime(corpus.path("a"))
    assert corpus.count().existed
    assert scanned[1:] == [str(corpus.path("a"))]


def test_a_tar_beside_a_new_one_is_scanned_again(tmp_path: Path) -> None:
    """Its last record may be cut from its image, which the new one begins with."""

    def write(name: str, *members: tuple[str, bytes]) -> None:
        with tarfile.open(tmp_path / "data" / f"{name}.tar", "w") as tar:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    corpus, image = Corpus(tmp_path, "tar", names=""), io.BytesIO()
    Image.new("RGB", (56, 56)).save(image, "png")
    text = json.dumps(chat("x")).encode()
    write("a", ("0.json", text), ("1.json", text))
    assert corpus.count().rejected == {}
    write("b", ("1.png", image.getvalue()), ("2.json", text))
    corpus.again()
    assert corpus.count().rejected["torn_sample"]


def test_damaged_tables(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.count()
    part = next(corpus.out.glob("part-00002*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    reused = corpus.again()
    assert reused.num_samples == 0 and "part-00002" in str(reused.reason)
    part.unlink()
    reused = corpus.again()
    assert reused.num_samples == 0 and "missing" in str(reused.reason)
    path = corpus.out / "manifest.json"
    path.write_text(path.read_text().replace('"rows": 60', '"rows": 61', 1))
    reused = corpus.again()
    assert reused.num_samples == 0 and reused.reason is not None and "manifest" in reused.reason


def with_a_name(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    """A transform that draws."""
    turns = record["messages"]
    turns = [{**turns[0], "content": f"{turns[0]['content']} {rng.integers(1 << 40)}"}, *turns[1:]]
    return {**record, "messages": turns}


def test_other_recipes(tmp_path: Path, processors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path, names="ab")
    corpus.options["processor"] = str(processors / "qwen2.5-vl")
    corpus.count()
    shutil.copytree(corpus.out, tmp_path / "table")
    for options, words in (
        ({"labels": "last"}, "labels"),
        ({"processor": str(processors / "qwen3-vl")}, "encoder"),
        ({"media_root": str(corpus.data)}, "media root"),
        ({"seed": 1}, "seed"),
        ({"transform": with_a_name}, "transform"),
        ({"tags": {"user_tag": "other"}}, ""),
        ({"processor_settings": {"images.max_pixels": 100_352}}, "processor settings"),
    ):
        shutil.rmtree(corpus.out)
        shutil.copytree(tmp_path / "table", corpus.out)
        reused = corpus.count(**options).reused
        assert reused is not None and reused.num_samples == 0
        assert words in (reused.reason or "")
    corpus.count(fresh=True)
    corpus.write("b", records("b", 10))
    assert corpus.again().num_samples == PER_SHARD
    monkeypatch.setattr("packidx.estimate.api.LITTLE", 0)
    corpus.write("b", records("b"))
    reused = corpus.again()
    assert reused.num_samples == 0 and "text engine" in (reused.reason or "")
    other = list_versions() | {"packidx": "0.0.9"}
    with monkeypatch.context() as patch:
        patch.setattr("packidx.estimate.job.list_versions", lambda: other)
        corpus.count(fresh=True)
    assert "packidx" in (corpus.again().reason or "")


def test_a_shard_that_is_read_otherwise_is_cut_anew(tmp_path: Path) -> None:
    """A stated delimiter gives a TSV file quotes, and so other records."""
    (tmp_path / "a.tsv").write_text('prompt\tresponse\n1\t"a\n2\tb"\n')
    given: list[tuple[dict[str, Any], int]] = [({}, 2), ({"delimiter": "\t"}, 1)]
    for options, rows in given:
        found = estimate_lengths(str(tmp_path / "a.tsv"), tmp_path / "out", workers=1, **options)
        assert (found.num_samples, found.num_rejected) == (rows, 0)


def test_transforms_draw_by_sample_id(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, names="")
    for name in "abcd":
        corpus.write(name, [chat(f"{name} {n}") for n in range(PER_SHARD)])
    corpus.options["transform"] = with_a_name
    corpus.count()
    corpus.write("c", [chat(f"c {n}") for n in range(90)])
    assert corpus.again().counted == ["c.jsonl", "d.jsonl"]


def test_columns_that_only_some_parts_have(tmp_path: Path, processors: Path) -> None:
    corpus = Corpus(tmp_path, names="abc")
    corpus.options["processor"] = str(processors / "qwen2.5-vl")
    for name in "abc":  # without an answer there are no label tokens, and no spans of them
        asked = [{**record, "messages": record["messages"][:1]} for record in records(name)]
        corpus.write(name, asked)
    corpus.write("d", [chat("long", id="0"), *records("d", 9)])
    corpus.count()
    columns = [set(pq.read_schema(path).names) for path in corpus.out.glob("part-*.parquet")]
    assert {"label_spans" in names for names in columns} == {True, False}
    for name in "bd":
        corpus.write(name, [*records(name), chat("more")])
        assert corpus.again().num_samples > 2 * PER_SHARD


def test_relative_sources_of_another_folder(
    tmp_path: Path, processors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same paths, sizes and times; the images are others."""
    for name, size in (("here", 56), ("there", 560)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (size, size)).save(tmp_path / name / "0.png")
        (tmp_path / name / "a.jsonl").write_bytes(WRITERS["jsonl"]([seen()]))
        os.utime(tmp_path / name / "a.jsonl", ns=(10**18, 10**18))
    given: dict[str, Any] = {"workers": 1, "processor": str(processors / "qwen2.5-vl")}
    tokens = []
    for name in ("here", "there"):
        monkeypatch.chdir(tmp_path / name)
        tokens.append(estimate_lengths("a.jsonl", tmp_path / "out", **given).num_tokens)
        estimate_lengths("a.jsonl", tmp_path / "fresh", fresh=True, **given)
        assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("stated", [False, True])
def test_media_that_changed_are_found_by_verify(
    tmp_path: Path, processors: Path, stated: bool
) -> None:
    """Media are not looked at again: their rows are kept, until they are counted afresh."""
    folder = processors / "qwen2.5-vl"
    corpus, image = Corpus(tmp_path, names="b"), tmp_path / "data/0.png"
    corpus.options["processor"] = str(folder)
    corpus.write("a", [seen(**({"height": 56, "width": 56} if stated else {}))])

    def failed() -> list[str]:
        plan_packs(corpus.out, tmp_path / "index", capacity=2000)
        encoder = ProcessorEncoder(folder)
        checks = verify_index(open_index(tmp_path / "index"), encoder=encoder, num_sampled=99)
        return [check.name for check in checks if not check.ok]

    Image.new("RGB", (56, 56)).save(image)
    first = corpus.count()
    assert (first.num_rejected, failed()) == (4, [])
    Image.new("RGB", (560, 560)).save(image)
    corpus.write("b", records("b", 10))
    again = corpus.count()
    assert again.reused is not None and again.reused.counted == ["b.jsonl"]
    assert failed() == ["samples"]
    assert stated or corpus.count(fresh=True).num_tokens > again.num_tokens


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "remove", "rename", "touch"]),
        st.sampled_from(["a", "b", "c", "d", "x/a", "x/b"]),
        st.integers(0, 70),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(rounds=st.lists(STEPS, min_size=1, max_size=3))
def test_any_changes(rounds: list[list[tuple[str, str, int]]], tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((shards, "TASK_BYTES"), (tasks, "TASK_BYTES")):
            patch.setattr(place, name, TASK_BYTES)
        corpus = Corpus(tmp_path_factory.mktemp("corpus"), names="abc")
        corpus.count()
        for steps in rounds:
            for step, name, number in steps:
                apply(corpus, step, name, number)
            if not list(corpus.data.rglob("*.jsonl")):
                corpus.write("a", records("a"))
            corpus.again()


def apply(corpus: Corpus, step: str, name: str, number: int) -> None:
    path = corpus.path(name)
    if step == "write":
        corpus.write(name, records(f"{name}{number // 2}", number))
    elif not path.exists():
        return
    elif step == "append":
        more = [record | {"note": number} for record in records("more", number)]
        with path.open("ab") as file:
            file.write(WRITERS["jsonl"](more))
    elif step == "remove":
        path.unlink()
    elif step == "rename":
        path.rename(corpus.path(f"{name}{number}"))
    else:
        os.utime(path, ns=(number * 10**9, number * 10**9))
