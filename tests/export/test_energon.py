"""`packidx export energon`: packs as lines beside tars that stay as they are.

What Energon makes of it is tested in its own environment: tests/energon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from click.testing import CliRunner
from packidx_cli.main import cli
from record_files import contents
from tar_chats import CHATS, dumped, members_of, picture, put, turns

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import OptionError, PackidxError
from packidx.export import energon
from packidx.export.energon import as_energon_names, export_energon, record_in_words
from packidx.io.ranges import Extent
from packidx.records.containers.base import Locator, Record
from packidx.records.read import RecordReader, parse_record

Line = dict[str, Any]


def planned(folder: Path, *sources: str | Path, capacity: int = 1500, **options: Any) -> Path:
    """Lengths that are guessed, and a plan of them."""
    given = [str(source) for source in sources]
    estimate_lengths(given, folder / "lengths", workers=1)
    plan_packs(folder / "lengths", folder / "index", capacity=capacity, **options)
    return folder / "index"


def tars(folder: Path) -> Path:
    """`CHATS` in two tars."""
    for shard in range(2):
        own = list(CHATS)[shard::2]
        members = [m for m in members_of() if m[0].partition(".")[0] in own]
        put(folder / f"part-{shard}.tar", members)
    return folder


def lines_of(export: Path) -> list[Line]:
    return [json.loads(line) for line in (export / "packs.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    return planned(folder, tars(folder / "tars"))


# -- what a line says ------------------------------------------------------------------------------


def test_lines_are_the_index(index: Path, tmp_path: Path) -> None:
    summary = export_energon(index, tmp_path / "out", workers=1)
    opened = open_index(index)
    lines = lines_of(tmp_path / "out")
    assert [line["pack_id"] for line in lines] == list(range(opened.num_packs))
    for line in lines:
        wanted = opened.pack(line["pack_id"]).samples
        found = [(one["key"], one["token_len"]) for one in line["samples"]]
        assert found == [(one.key, one.length) for one in wanted]
        for one in line["samples"]:
            assert set(one) == {"key", "json", "media", "token_len"}
            assert one["media"] == [f"{one['key']}.{name}" for name in CHATS[one["key"]][1]]
    assert summary.num_samples == len(CHATS)
    assert summary.num_media == sum(len(images) for _, images in CHATS.values())
    assert set(contents(tmp_path / "out")) == {
        ".packidx.json",
        "metadataset.yaml",
        "packs.jsonl",
        "packs.jsonl.idx",
    }


def member(name: str) -> Extent:
    return Extent("x.tar", 0, 9, name)


NAME, PNG = member("k.jpg"), member("k.png")
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
RECORDS: dict[str, tuple[Line, Line, list[str]]] = {
    "an id": ({"id": 17, "messages": turns("Why?")}, {"id": 17, "messages": turns("Why?")}, []),
    "a system prompt, tools and a turn that is not trained on": (
        {
            "system": "Be brief.",
            "tools": json.dumps([CALL]),
            "conversations": [
                {"from": "human", "value": "Go"},
                {"from": "function_call", "value": '{"name": "f"}', "loss": False},
            ],
        },
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Go"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": {"name": "f"}}],
                    "train": False,
                },
            ],
            "tools": [CALL],
        },
        [],
    ),
    "a video, and one as frames": (
        {
            "messages": turns("<video><video><image>"),
            "videos": [{"path": member("k.mp4"), "fps": 2.0}, [NAME, PNG]],
            "image": PNG,
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "video", "fps": 2.0},
                        {"type": "video", "frames": 2},
                        {"type": "image"},
                    ],
                },
                {"role": "assistant", "content": "So."},
            ]
        },
        ["k.mp4", "k.jpg", "k.png", "k.png"],
    ),
    "tokens": (
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "messages": turns("Why?")},
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        [],
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_what_a_record_becomes(name: str) -> None:
    record, wanted, media = RECORDS[name]
    line = record_in_words(RecordReader().read(Record(record, Locator(0), "k")), "x.tar")
    assert line == {"json": wanted, "media": media, "key": "k"}
    if not media:  # what was written is read as the record was
        again, was = parse_record(line["json"]), parse_record(record)
        assert (again.turns, again.tools) == (was.turns, was.tools)
        assert (again.input_ids, again.labels) == (was.input_ids, was.labels)


# -- where it says that the media are --------------------------------------------------------------


def metadataset(export: Path) -> str:
    return (export / "metadataset.yaml").read_text()


def test_the_folder_that_energon_prepared(tmp_path: Path) -> None:
    """The nearest one above the tars; of others, each tar's own folder."""
    tars(tmp_path / "web" / "deep")
    put(tmp_path / "b o:oks" / "a.tar", [("x.json", dumped({"messages": turns("Why?")}))])
    meta = tmp_path / "web" / ".nv-meta"
    meta.mkdir()
    counts = {"deep/part-0.tar": 12, "deep/part-1.tar": 12}
    (meta / ".info.json").write_text(json.dumps({"shard_counts": counts}))
    index = planned(tmp_path, tmp_path / "web", tmp_path / "b o:oks")
    summary = export_energon(index, tmp_path / "out", workers=1)
    folders = {"src": f"{tmp_path}/web", "src1": f"{tmp_path}/b o:oks"}
    assert summary.sources == folders
    assert f"src: {tmp_path}/web\n" in metadataset(tmp_path / "out")
    for line in lines_of(tmp_path / "out"):
        for one in line["samples"]:
            assert one["aux"] == ("src1" if one["key"] == "x" else "src")
    first, second, third = summary.warnings
    assert first.startswith(f"{tmp_path}/web has no") and second.startswith(f"{tmp_path}/b o:oks")
    assert third.startswith("25 of 25 lengths are guesses")
    export_energon(index, tmp_path / "two", energon_roots={str(tmp_path): ".."}, workers=1)
    assert "src: ../web\n" in metadataset(tmp_path / "two")
    roots = {str(tmp_path): "msc://lake/data"}
    export_energon(index, tmp_path / "three", energon_roots=roots, workers=1)
    assert "src: msc://lake/data/web\n" in metadataset(tmp_path / "three")


def test_names_of_stores() -> None:
    """Multi-Storage Client's implicit profiles: `_resolve_non_msc_url` in its shortcuts.py."""
    assert as_energon_names("s3://lake/web/x") == "msc://_s3-lake/web/x"
    assert as_energon_names("gs://lake") == "msc://_gs-lake"
    assert as_energon_names("/data/x") == "/data/x"
    with pytest.raises(PackidxError, match="--energon-root"):
        as_energon_names("memory://x")


def test_the_command(index: Path, tmp_path: Path) -> None:
    """A folder that Energon has not prepared is exported, and told."""
    out = str(tmp_path / "out")
    done = CliRunner().invoke(cli, ["export", "energon", str(index), "-o", out])
    assert done.exit_code == 0, done.output
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2 and "run `energon prepare /" in warnings[0]
    assert {"samples 24", "media 24"} <= {
        " ".join(line.split()) for line in done.stdout.splitlines()
    }
    done = CliRunner().invoke(cli, ["export", "energon", str(index), "-o", f"{out}2", "--json"])
    assert json.loads(done.stdout)["num_samples"] == 24


# -- what is read and written ----------------------------------------------------------------------


def test_equal_bytes_with_any_number_of_processes(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_energon(index, tmp_path / "one", workers=1)
    monkeypatch.setattr(energon, "_TASK_PACKS", 2)
    seen: list[tuple[str, int, int]] = []
    export_energon(index, tmp_path / "two", workers=2, progress=lambda *told: seen.append(told))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    num_packs = open_index(index).num_packs
    assert seen[0] == ("packs", 2, num_packs) and seen[-1] == ("packs", num_packs, num_packs)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "one", tmp_path / "two"]


# -- bad use ---------------------------------------------------------------------------------------


def refused(index: Path | str, output: Path | str, match: str, **options: Any) -> None:
    with pytest.raises(PackidxError, match=match) as caught:
        export_energon(index, output, workers=1, **options)
    assert "\n" not in str(caught.value)


def test_only_tars(tmp_path: Path) -> None:
    lines = b"\n".join(dumped({"messages": turns("Why?")}) for _ in range(3))
    (tmp_path / "a.jsonl").write_bytes(lines)
    refused(planned(tmp_path, tmp_path / "a.jsonl"), tmp_path / "out", "export wds")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"length": [3, 4]}), tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "bare", capacity=10)
    refused(tmp_path / "bare", tmp_path / "out", "bare lengths")


def test_media_outside_the_tar(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "x.png").write_bytes(picture(1))
    record = {"messages": turns("<image>"), "images": ["x.png"]}
    put(tmp_path / "tars" / "a.tar", [("k.json", dumped(record))])
    options: dict[str, Any] = {"workers": 1, "media_root": tmp_path / "media"}
    estimate_lengths(str(tmp_path / "tars"), tmp_path / "l", **options)
    plan_packs(tmp_path / "l", tmp_path / "index", capacity=1500)
    said = "'k' of .*a.tar has a medium that is not a member"
    refused(tmp_path / "index", tmp_path / "out", said)
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


def test_another_tar_than_was_planned(tmp_path: Path) -> None:
    index = planned(tmp_path, tars(tmp_path / "tars"))
    path = tmp_path / "tars" / "part-1.tar"
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(512))
    refused(index, tmp_path / "out", "part-1.tar has .* bytes")
    path.write_bytes(whole[512:] + bytes(512))
    refused(index, tmp_path / "out", "part-1.tar")
    path.unlink()
    refused(index, tmp_path / "out", "part-1.tar.*--root")


# keys of the samples of each tar, by path -> True if they can be told apart
KEYS: dict[str, tuple[dict[str, list[str]], bool]] = {
    "two tars": ({"s-0.tar": ["0000", "0001"], "s-1.tar": ["0001"]}, False),
    "one tar": ({"s-0.tar": ["0000", "0001", "0000"]}, False),
    "folders of keys": ({"s-0.tar": ["a/0", "b/0"]}, True),
    "folders of tars": ({"a/s-0.tar": ["0"], "b/s-0.tar": ["0"]}, True),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_by_which_energon_finds_two_samples(case: str, tmp_path: Path) -> None:
    keys, apart = KEYS[case]
    for path, names in keys.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        text = dumped({"messages": turns("<image>Why?")})
        members = [((f"{n}.json", text), (f"{n}.png", picture(1))) for n in names]
        put(tmp_path / path, [each for pair in members for each in pair])
    index = planned(tmp_path, *(tmp_path / path for path in keys))
    if apart:
        export_energon(index, tmp_path / "packs")
        return
    with pytest.raises(OptionError, match="have two samples"):
        export_energon(index, tmp_path / "packs")
    assert not (tmp_path / "packs").exists()
