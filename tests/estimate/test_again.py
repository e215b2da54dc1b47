"""Counting again: what changed is counted, the rest taken over; the bytes are a full count's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from export_files import contents
from hypothesis import given, settings
from hypothesis import strategies as st
from processors import FEW_RANKS, qwen_folders
from record_files import WRITERS

from packidx.estimate import LengthsSummary, estimate_lengths, tasks
from packidx.estimate.again import TakenOver
from packidx.estimate.comparison import compared_with
from packidx.processor.counts import Compared
from packidx.records import shards
from packidx.records.containers import lines
from packidx.software import software

TASK_BYTES = 6_000
PER_SHARD = 60


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(tasks, "TASK_BYTES", TASK_BYTES)
    monkeypatch.setattr(lines, "SCAN_BLOCK", TASK_BYTES // 2)


def chat(text: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}!"}]
    return {"messages": turns, **more}


def records(name: str, number: int = PER_SHARD) -> list[dict[str, Any]]:
    """Some with a name of their own, some without, and some that are not sample."""
    made = [chat(f"{name} {n} " + "word " * (n % 40)) for n in range(number)]
    for n in range(0, number, 3):
        made[n]["id"] = f"{name}-{n}"
    for n in range(5, number, 17):
        made[n] = {"messages": []}
    return made


KINDS = ("jsonl", "jsonl.gz", "json", "csv", "parquet", "tar")


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

    def again(self, *sources: str, **options: Any) -> TakenOver:
        """Count again, and compare with a count elsewhere that takes nothing over."""
        summary = self.count(*sources, **options)
        elsewhere = self.tmp / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        given = list(sources) or [str(self.data)]
        fresh = estimate_lengths(given, elsewhere, fresh=True, **{**self.options, **options})
        assert fresh.taken_over is None and not fresh.existed
        if summary.existed:  # times of shards that were only touched stay as they are
            assert without_times(self.out) == without_times(elsewhere)
        else:
            assert contents(self.out) == contents(elsewhere)
        assert summary.fingerprint == fresh.fingerprint
        taken = summary.taken_over
        assert taken is not None
        assert taken.num_samples + taken.num_counted == summary.num_samples
        return taken


def without_times(folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = contents(folder)
    manifest = json.loads(files["manifest.json"])
    for shard in manifest["shards"]:
        del shard["mtime"], shard["identity"]
    return files | {"manifest.json": manifest | {"digest": ""}}


def replace(corpus: Corpus, name: str, old: bytes, new: bytes) -> None:
    path = corpus.path(name)
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_containers(tmp_path: Path, kind: str) -> None:
    corpus = Corpus(tmp_path, kind)
    rows = corpus.count().num_samples
    corpus.write("b", records("b", PER_SHARD + 20))
    taken = corpus.again()
    assert (taken.num_shards, taken.num_counted_shards) == (3, 1)
    assert (taken.num_samples > rows * 3 // 4) == (kind == "jsonl")  # its first ranges, too
    assert taken.counted == [f"b.{kind}"]


CHANGES: dict[str, tuple[Callable[[Corpus], Any], list[str]]] = {
    "grown": (
        lambda c: c.write("b", [*records("b"), chat("more")]),
        ["b.jsonl"],
    ),
    "rewritten with equal size": (
        lambda c: replace(c, "c", b"c 1 word", b"c 1 wo d"),
        ["c.jsonl"],
    ),
    "in front": (lambda c: c.write("0", records("0")), ["0.jsonl"]),
    "one emptied": (lambda c: c.write("b", []), []),
    "removed": (lambda c: c.path("a").unlink(), []),
    "renamed": (
        lambda c: c.path("a").rename(c.path("bb")),
        ["bb.jsonl"],  # it has rejected records
    ),
    "copied": (
        lambda c: shutil.copy(c.path("a"), c.path("bb")),
        ["bb.jsonl"],
    ),
    "names that collide": (
        lambda c: c.write("more/a", records("other a")),
        ["more/a.jsonl"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes(tmp_path: Path, change: str) -> None:
    corpus = Corpus(tmp_path)
    corpus.count()
    make, expected = CHANGES[change]
    make(corpus)
    taken = corpus.again()
    assert taken.counted == expected
    assert taken.reason is None and taken.num_samples >= 2 * PER_SHARD


def test_a_file_that_grew_keeps_its_old_ranges(tmp_path: Path) -> None:
    """And shrunk again, it has no column that only the records had which are gone."""
    corpus = Corpus(tmp_path, names="a")
    corpus.write("b", records("b", 300))
    corpus.count()
    for more in ([chat("more", note=1)] * 9, [chat("less")] * 9):
        corpus.write("b", [*records("b", 300), *more])
        taken = corpus.again()
        assert taken.counted == ["b.jsonl"] and 0 < taken.num_counted < 60
    corpus.write("b", [*records("b", 300)[:50], chat("b 50 other"), *records("b", 300)[51:]])
    assert corpus.again().num_samples < PER_SHARD + 50


def test_sources_in_another_order(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    sources = [str(corpus.path(name)) for name in "abcd"]
    corpus.count(*sources)
    taken = corpus.again(*reversed(sources))
    assert (taken.num_counted, taken.counted) == (0, [])
    taken = corpus.again(f"mine={sources[2]}", sources[0])
    assert taken.num_counted == 0


def test_ids_of_their_own_stay_where_a_shard_is_called_otherwise(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, names="")
    corpus.write(
        "one/a", [chat(f"{n}", **({"id": f"a.jsonl#{n + 1}"} if n % 2 else {})) for n in range(9)]
    )
    corpus.count()
    corpus.write("two/a", records("other"))
    taken = corpus.again()
    assert taken.num_samples == 9
    keys = pq.read_table(next(corpus.out.glob("part-00000*")))["key"].to_pylist()
    assert keys[:3] == ["one/a.jsonl#0", "a.jsonl#2", "one/a.jsonl#2"]


def test_damaged_tables(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.count()
    part = next(corpus.out.glob("part-00002*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    taken = corpus.again()
    assert 0 < taken.num_counted < 2 * PER_SHARD
    assert len(taken.damaged) == 1 and "part-00002" in taken.damaged[0]
    part.unlink()
    taken = corpus.again()
    assert taken.num_counted and "missing" in taken.damaged[0]
    (next(corpus.out.glob("note-00001*"))).unlink()  # its shard is cut into ranges anew
    corpus.write("d", records("d", 20))
    assert corpus.again().num_samples
    path = corpus.out / "manifest.json"
    path.write_text(path.read_text().replace('"rows": 60', '"rows": 61', 1))
    taken = corpus.again()
    assert taken.num_samples == 0 and taken.reason is not None and "manifest" in taken.reason


def with_a_name(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    """A transform that draws."""
    turns = record["messages"]
    turns = [{**turns[0], "content": f"{turns[0]['content']} {rng.integers(1 << 40)}"}, *turns[1:]]
    return {**record, "messages": turns}


def test_other_recipes(tmp_path: Path) -> None:
    folders = qwen_folders(tmp_path / "processors", FEW_RANKS)
    corpus = Corpus(tmp_path, names="ab")
    corpus.options["processor"] = str(folders["qwen2.5-vl"])
    corpus.count()
    for options, words in (
        ({"labels": "last"}, "labels"),
        ({"processor": str(folders["qwen3-vl"])}, "processor"),
        ({"media_root": str(corpus.data)}, "media root"),
        ({"seed": 1}, "seed"),
        ({"transform": with_a_name}, "transform"),
        ({"columns": {"id": "uid"}}, ""),
        ({"method": "heuristic"}, "method"),
        ({"processor_settings": {"images.max_pixels": 100_352}}, "processor settings"),
    ):
        taken = corpus.again(**options)
        assert taken.num_samples == 0
        assert words in (taken.reason or "")
        corpus.count(fresh=True)
    corpus.write("b", records("b", 10))
    assert corpus.again().num_samples == PER_SHARD


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
    taken = corpus.again()
    assert taken.counted == ["c.jsonl", "d.jsonl"]


def test_other_software(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    with monkeypatch.context() as patch:
        other = software() | {"packidx": "0.0.9"}
        patch.setattr("packidx.estimate.job.software", lambda: other)
        corpus.count()
    taken = corpus.again()
    assert taken.reason is not None and "0.0.9" in taken.reason


def test_what_is_decided_on_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text backend, or another outcome of the comparison: nothing is taken over."""
    corpus = Corpus(tmp_path, names="ab")
    corpus.options["processor"] = str(qwen_folders(tmp_path / "p", FEW_RANKS)["qwen2.5-vl"])
    corpus.count()
    nbytes = sum(path.stat().st_size for path in corpus.data.iterdir())
    monkeypatch.setattr("packidx.estimate.comparison.LITTLE", nbytes + 1)
    corpus.write("b", [*records("b"), chat("more")])
    taken = corpus.again()
    assert taken.num_samples == 0 and "its text engine has changed from tokenizers" in (
        taken.reason or ""
    )
    unequal = Compared(by=compared_with(), records=1, unequal={"text": "one"})
    monkeypatch.setattr("packidx.estimate.api.compare_processor", lambda *_: unequal)
    corpus.write("b", records("b"))
    corpus.write("c", records("c"))
    taken = corpus.again()
    assert taken.num_samples == 0 and "its comparison has changed" in (taken.reason or "")
    assert corpus.count(fresh=True).methods == {"heuristic": 3 * PER_SHARD - 12}


def test_columns_that_only_some_parts_have(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, names="abc")
    corpus.options["processor"] = str(qwen_folders(tmp_path / "p", FEW_RANKS)["qwen2.5-vl"])
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
