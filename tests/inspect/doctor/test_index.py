"""`packidx doctor INDEX`: whether an index can be read here, and what to do if it cannot."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import URL, object_store
from packidx_cli.commands.doctor import make_dataset
from packidx_cli.main import main
from packidx_cli.options import make_encoder

from packidx import estimate_lengths, open_index, plan_packs
from packidx.inspect.doctor.finding import Given, Makers
from packidx.inspect.doctor.index import IndexFacts, examine_index
from packidx.inspect.doctor.machine import Environment
from packidx.io import storage

pytestmark = pytest.mark.usefixtures("known")
NAMES = ["index", "files", "lengths", "encoder", "transform", "data", "extras", "packs"]
CODE = """
import numpy as np
from pathlib import Path

Path("was_imported").touch()


def encode(record):
    words = " ".join(turn["content"] for turn in record["messages"]).split()
    return {"input_ids": np.arange(len(words))}


def shorten(record, rng):
    return {**record, "messages": record["messages"][:1]}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def talks(place: Path) -> Path:
    """Twenty short talks, and a module of the user's own beside them."""
    turns = [{"role": "user", "content": "why is it"}, {"role": "assistant", "content": "so"}]
    (place / "talks.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 20)
    (place / f"own_{place.name}.py").write_text(CODE)
    return place


@pytest.fixture
def photos(corpus: Path, processors: Path, place: Path) -> Path:
    """An index of photographs and questions, counted with a processor that lies beside it."""
    shutil.copytree(processors / "qwen2.5-vl", place / "qwen")
    (place / "data").mkdir()
    for name in ("photos.jsonl", "vqa_single.jsonl"):
        lines = (corpus / name).read_text().splitlines(keepends=True)[:12]
        (place / "data" / name).write_text("".join(lines))
        for image in re.findall(r"images/[\w./-]+", "".join(lines)):
            (place / "data" / image).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(corpus / image, place / "data" / image)
    estimate_lengths("data", "lengths", processor="qwen", media_root="data", workers=1)
    plan_packs("lengths", "index", capacity=8192)
    return place


def look(environment: Environment, index: str = "index", **given: Any) -> IndexFacts:
    stated = Given(index, given.pop("roots", {}), **given)
    return examine_index(stated, environment, Makers(make_encoder, make_dataset))


def states(found: IndexFacts) -> dict[str, str]:
    """What is not ``ok``, by name."""
    assert [one.name for one in found.findings] == NAMES
    return {one.name: one.state for one in found.findings if one.state != "ok"}


def detail(found: IndexFacts, name: str) -> str:
    [one] = [one for one in found.findings if one.name == name]
    return f"{one.detail} -> {one.do}"


def test_an_index_that_can_be_read_is_read_and_timed(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "index", "--json"]) == 0
    text, err = capsys.readouterr()
    report = json.loads(text)
    assert err == "" and json.loads(json.dumps(report)) == report
    assert (report["ok"], report["failure"], report["problems"]) == (True, None, [])
    found = report["index"]
    assert set(found) == {
        *("path", "snapshot_id", "format_version", "num_packs", "num_samples", "capacity"),
        *("planned_by", "findings", "reading"),
    }
    index = open_index("index")
    assert (found["snapshot_id"], found["num_packs"]) == (index.id, index.num_packs)
    assert [one["name"] for one in found["findings"]] == NAMES
    assert {one["state"] for one in found["findings"]} == {"ok"}
    assert all(set(one) == {"name", "state", "detail", "do"} for one in found["findings"])
    said = {one["name"]: one["detail"] for one in found["findings"]}
    assert index.manifest["lengths"]["encoder"]["fingerprint"][:12] in said["encoder"]
    assert "qwen2_5_vl" in said["encoder"] and "compared with transformers" in said["encoder"]
    reading = found["reading"]
    assert reading["how"] == "packs" and reading["packs"][0] == 0
    lengths = [index.stats(number)["length"] for number in reading["packs"]]
    assert (reading["tokens"], reading["other_tokens"]) == (sum(lengths), sum(lengths[1:]))
    assert 0 < reading["encode_seconds"] < reading["seconds"] < 600


def test_what_a_person_reads_is_one_screen(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor", "index"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 42 and max(map(len, lines)) <= 100
    said = " ".join(" ".join(lines).split())
    for words in (f"index index@{open_index('index').id[:12]}, ", "tokens/s", "in the encoder"):
        assert words in said


def test_data_that_moved_is_named_and_found_again(
    photos: Path, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move("data", "elsewhere")
    found = look(environment)
    assert states(found) == {"data": "problem", "packs": "unknown"} and found.reading is None
    assert "data/photos.jsonl of source photos is not there" in detail(found, "data")
    assert "--root OLD=NEW" in detail(found, "data")
    assert states(look(environment, roots={"data": "elsewhere"})) == {}
    assert main(["doctor", "index"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("packidx: index cannot be read here: ") and err.count("\n") == 1
    assert "--root OLD=NEW" in err and "NO  data" in out and "ok  numpy" in out


def test_a_shard_that_was_written_anew_is_a_problem(photos: Path, environment: Environment) -> None:
    with open("data/photos.jsonl", "a") as file:
        file.write("{}\n")
    assert states(look(environment)) == {"data": "problem", "packs": "unknown"}


def test_another_processor_is_told_by_its_fingerprint(
    photos: Path, processors: Path, environment: Environment
) -> None:
    other = str(processors / "qwen3-vl")
    found = look(environment, processor=other)
    assert states(found) == {"encoder": "problem", "packs": "unknown"}
    planned = open_index("index").manifest["lengths"]["encoder"]["fingerprint"]
    assert planned[:12] in detail(found, "encoder")
    assert found.reading is not None and found.reading.how == "records"
    template = photos / "qwen" / "chat_template.jinja"
    template.write_text(template.read_text() + "{# changed #}")
    assert states(look(environment)) == {"encoder": "problem", "packs": "unknown"}


def test_a_processor_that_is_not_here_is_asked_for(photos: Path, environment: Environment) -> None:
    shutil.move("qwen", "moved")
    found = look(environment)
    assert states(found) == {"encoder": "unknown", "packs": "unknown"}
    assert "--processor DIR_OR_NAME" in detail(found, "encoder")
    assert found.reading is not None and found.reading.how == "records"
    assert states(look(environment, processor="moved")) == {}
    assert states(look(environment, roots={"qwen": "moved"})) == {}
    wrong = look(environment, processor="no/such/folder")
    assert states(wrong)["encoder"] == "problem"


def test_without_torch_records_are_read_and_packs_are_a_problem(
    photos: Path, environment: Environment
) -> None:
    found = look(replace(environment, torch=None))
    assert states(found) == {"packs": "problem"} and 'packidx[torch]"' in detail(found, "packs")
    assert found.reading is not None and found.reading.how == "records"


def test_code_is_run_because_the_user_names_it_not_the_manifest(
    talks: Path, environment: Environment
) -> None:
    name = f"own_{talks.name}"
    encode, transform = f"{name}:encode", f"{name}:shorten"
    estimate_lengths("talks.jsonl", "lengths", encode=encode, transform=transform, workers=1)
    plan_packs("lengths", "index", capacity=8)
    (talks / "was_imported").unlink()
    del sys.modules[name]
    found = look(environment)
    assert states(found) == dict.fromkeys(("encoder", "transform", "packs"), "unknown")
    assert f"--encode {encode}" in detail(found, "encoder")
    assert f"--transform {transform}" in detail(found, "transform")
    assert not (talks / "was_imported").exists()
    named = look(environment, encode=encode, transform=transform)
    assert states(named) == {} and named.reading is not None and named.reading.how == "packs"
    other = look(environment, encode=encode, transform=f"{name}:encode")
    assert states(other)["transform"] == "problem"
    Path(f"{name}.py").unlink()
    assert "whose module is not found here" in detail(look(environment), "encoder")


def test_estimated_lengths_are_for_other_trainers(talks: Path, environment: Environment) -> None:
    estimate_lengths("talks.jsonl", "lengths", workers=1)
    plan_packs("lengths", "index", capacity=8)
    found = look(environment)
    assert states(found) == dict.fromkeys(("lengths", "encoder", "packs"), "unknown")
    assert "20 heuristic" in detail(found, "lengths")
    assert found.reading is not None and found.reading.how == "records"


def test_records_of_tokens_and_bare_lengths(place: Path, environment: Environment) -> None:
    (place / "ids.jsonl").write_text('{"input_ids": [1, 2, 3]}\n' * 9)
    estimate_lengths("ids.jsonl", "lengths", workers=1)
    plan_packs("lengths", "index", capacity=8)
    found = look(environment)
    assert states(found) == {"encoder": "unknown", "packs": "unknown"}
    assert "9 exact" in detail(found, "lengths")
    pq.write_table(pa.table({"length": [5, 6, 7]}), "bare.parquet")
    plan_packs("bare.parquet", "bare", capacity=8)
    found = look(environment, "bare")
    assert states(found)["packs"] == "unknown" and found.reading is None
    assert "bare lengths" in detail(found, "packs")


def test_an_extra_that_the_data_needs_and_that_is_not_here(
    photos: Path, environment: Environment
) -> None:
    image = next(one for one in Path("data/images").rglob("*") if one.is_file()).read_bytes()
    with lmdb.open("images.lmdb", map_size=1 << 24) as database, database.begin(write=True) as one:
        one.put(b"0001", image)
    turns = [
        {"from": "human", "value": "<image>\nWhat is it?"},
        {"from": "gpt", "value": "A drawing."},
    ]
    record = {"conversations": turns, "image": "images.lmdb::0001"}
    Path("drawings.jsonl").write_text(json.dumps(record) + "\n")
    estimate_lengths("drawings.jsonl", "more", processor="qwen", workers=1)
    plan_packs("more", "drawings", capacity=8192)
    found = look(environment, "drawings")
    assert states(found) == {} and "lmdb (images in LMDB)" in detail(found, "extras")
    extras = [
        replace(one, installed=False) if one.name == "lmdb" else one for one in environment.extras
    ]
    found = look(replace(environment, extras=tuple(extras)), "drawings")
    assert states(found) == {"extras": "problem", "packs": "unknown"}
    assert 'pip install "packidx[lmdb]"' in detail(found, "extras")


def test_an_index_in_a_store(talks: Path, environment: Environment) -> None:
    encode = f"own_{talks.name}:encode"
    estimate_lengths("talks.jsonl", "lengths", encode=encode, workers=1)
    plan_packs("lengths", "index", capacity=8)
    with object_store(talks / "cache") as store:
        store.put_tree(talks / "index", "index")
        storage.write(f"{URL}/talks.jsonl", (talks / "talks.jsonl").read_bytes())
        (talks / "talks.jsonl").unlink()
        moved = {"talks.jsonl": f"{URL}/talks.jsonl"}
        found = look(environment, f"{URL}/index", roots=moved, encode=encode)
        assert states(found) == {} and "s3 (s3:// URLs)" in detail(found, "extras")
        assert found.reading is not None and found.reading.how == "packs"
        missing = look(environment, f"{URL}/nowhere")
        assert [one.state for one in missing.findings] == ["problem"]
        store.denied.append("index")
        refused = look(environment, f"{URL}/index")
        assert [one.state for one in refused.findings] == ["problem"]
        assert "loopback-secret" not in str(refused)


def test_what_is_damaged_is_found_by_cheap_looks(
    photos: Path, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(Path("index").rglob("samples-00000.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    found = look(environment)
    assert states(found)["files"] == "problem" and found.reading is None
    file.write_bytes(whole)
    manifest = next(Path("index").rglob("manifest.json"))
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    assert main(["doctor", "index"]) == 1
    out, err = capsys.readouterr()
    assert "was changed after it was written" in err and err.count("\n") == 1
    assert "ok  numpy" in out and "NO  index" in out


def test_a_pack_that_cannot_be_built_is_named(photos: Path, environment: Environment) -> None:
    for image in Path("data/images").rglob("*"):
        if image.is_file():
            image.unlink()
    found = look(environment)
    assert states(found) == {"packs": "problem"} and "missing_media" in detail(found, "packs")
