"""`precompute`: true counts in every record, and not another byte changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision_cpu  # noqa: F401
from PIL import Image
from reading import open_media
from record_files import WRITERS, chats

from packidx.errors import SourceError
from packidx.estimate import estimate_lengths
from packidx.precompute import precompute
from packidx.records.media.paths import MediaRoot

WRITTEN = re.compile(rb',"_text_tokens":\d+(?:,"mm_inputs_meta":\{"images_meta":[^{}]*\})?')


def table(folder: Path) -> pa.Table:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return pa.concat_tables([pq.read_table(folder / entry["path"]) for entry in manifest["files"]])


def media_tokens(meta: dict[str, Any] | None) -> int:
    entries = [entry for entries in (meta or {}).values() for entry in entries or []]
    return sum(int(e["n_tokens"] if isinstance(e, dict) else e[-1]) for e in entries)


@pytest.fixture
def processor(processors: Path) -> str:
    return str(processors / "qwen2.5-vl")


# -- the counts ------------------------------------------------------------------------------------


def test_sums_are_what_the_real_processor_builds(
    corpus: Path, processor: str, tmp_path: Path
) -> None:
    from packidx.encode import ProcessorEncoder

    lines = (corpus / "photos.jsonl").read_text().splitlines()[:12]
    (tmp_path / "few.jsonl").write_text("\n".join(lines))
    precompute(str(tmp_path / "few.jsonl"), tmp_path / "out", processor, media_root=corpus)
    encoder = ProcessorEncoder(processor)
    for line in (tmp_path / "out" / "few.jsonl").read_text().splitlines():
        record = json.loads(line)
        built = encoder(open_media(json.loads(line), MediaRoot(str(corpus), True)))
        meta = record["mm_inputs_meta"]
        assert record["_text_tokens"] + media_tokens(meta) == len(built["input_ids"])
        for path, entry in zip(record["images"], meta["images_meta"], strict=True):
            with Image.open(corpus / path) as image:
                assert entry[:2] == [image.height, image.width]


def test_videos_state_what_they_were_counted_by(processors: Path, tmp_path: Path) -> None:
    frames = [f"{number}.png" for number in range(6)]
    for name in frames:
        Image.new("RGB", (96, 64)).save(tmp_path / name)
    stated = {"path": "x.mp4", "num_frames": 50, "height": 90, "width": 160, "fps": 25.0}
    records = [
        {"messages": [{"role": "user", "content": "<video> <image> what?"}], "videos": [video]}
        for video in ({"frames": frames}, {"frames": frames, "fps": 2.0}, stated)
    ]
    lines = [json.dumps({**record, "images": ["0.png"]}) for record in records]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    processor = processors / "qwen3-vl"
    estimate_lengths(str(tmp_path / "a.jsonl"), tmp_path / "exact", processor=processor, workers=1)
    expected = table(tmp_path / "exact")
    assert set(expected["method"].to_pylist()) == {"exact"}
    out = tmp_path / "out"
    precompute(str(tmp_path / "a.jsonl"), out, processor, workers=1)
    values = [
        json.loads(line)["mm_inputs_meta"]["videos_meta"][0]
        for line in (out / "a.jsonl").read_text().splitlines()
    ]
    assert [value[:5] for value in values] == [
        [6, 64, 96, 0.0, 0.0],
        [6, 64, 96, 2.0, 3.0],
        [50, 90, 160, 25.0, 2.0],
    ]
    assert [value[5] for value in values] == expected["video_tokens"].to_pylist()
    (out / "a.jsonl").rename(tmp_path / "b.jsonl")  # beside the media again
    for number, name in enumerate((None, processor)):
        lengths = tmp_path / f"lengths{number}"
        estimate_lengths(str(tmp_path / "b.jsonl"), lengths, processor=name, workers=1)
        assert table(lengths)["length"].equals(expected["length"])


# -- what is written -------------------------------------------------------------------------------

GOOD = '{"messages": [{"role": "user", "content": "hello"}]%s}'


def test_lines_keep_every_other_byte(processor: str, tmp_path: Path) -> None:
    deep = '{"messages":' + "[" * 1010 + "]" * 1010 + ',"_text_tokens": 1}'
    lines = [
        GOOD % "",
        GOOD % ', "n": 123456789012345678901234567890, "b": "}  ,{", "c": 1.50 ',
        "[1, 2]",
        '{"messages":[{"role":"user","content":"<image>é\\u00e9"}],"image":{"path":"x","height":30,'
        '"width":40}}',
        '{"cut": ',
        '{"messages": [], "_text_tokens": 7}',
        deep,
        GOOD % ',"_text_tokens":-1',
        '{"messages":[{"role":"user","content":"<image>"}],"image":"none.png"}',
    ]
    Image.new("RGB", (40, 30)).save(tmp_path / "x", "png")
    text = "\n".join(lines).encode() + b'\r\n \n{"a": "\xff"}'
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    summary = precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, workers=1)
    assert (summary.num_samples, summary.num_rejected) == (10, 7)
    assert summary.methods == {"exact": 3}
    assert summary.rejected.keys() >= {"bad_json", "no_messages", "bad_text_tokens"}
    assert summary.rejected["missing_media"] == 1
    (shard,) = json.loads((tmp_path / "out" / ".packidx.json").read_bytes())["shards"]
    assert shard["rejected"] == summary.rejected
    found = (tmp_path / "out" / "a.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    assert [WRITTEN.sub(b"", line) for line in found] == [
        line.strip() for line in text.split(b"\n") if line.strip()
    ]
    counted = [orjson.loads(found[number]) for number in (0, 1, 3)]
    assert all(record["_text_tokens"] > 5 for record in counted)
    assert [record.get("mm_inputs_meta") for record in counted] == [
        *(None, None, {"images_meta": [[30, 40, 6]]})
    ]


@pytest.mark.parametrize("kind", ["json", "jsonl.gz", "json.zst"])
def test_json_in_all_its_forms_becomes_lines(processor: str, tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    for record in (records := chats(20)):
        Image.new("RGB", (60, 40)).save(tmp_path / record["images"][0])
    (tmp_path / "data" / f"a.{kind}").write_bytes(WRITERS[kind](records))
    options = {"media_root": tmp_path, "workers": 1}
    for source, out in (("data", "one"), ("one", "two")):
        summary = precompute(str(tmp_path / source), tmp_path / out, processor, **options)
        assert summary.methods == {"exact": 20}
    lines = (tmp_path / "one" / "a.jsonl").read_bytes()
    assert (tmp_path / "two" / "a.jsonl").read_bytes() == lines
    for record, line in zip(records, lines.splitlines(), strict=True):
        written = orjson.loads(line)
        assert written.pop("_text_tokens") > 5
        assert written.pop("mm_inputs_meta") == {"images_meta": [[40, 60, 6]]}
        assert written == record


def test_old_values_give_way_wherever_they_stand(processor: str, tmp_path: Path) -> None:
    head = '{"_text_tokens":1, "mm_inputs_meta" : {"images_meta":[[40,30,9]]} ,'
    body = '"messages":[{"role":"user","content":"<image>"}],"image":"a.png"'
    lines = [f'{head}{body},"_text_tokens": 2}}', f'{{{body},"\\u005ftext_tokens":3}}']
    Image.new("RGB", (30, 40)).save(tmp_path / "a.png")
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    precompute(str(tmp_path / "a.jsonl"), tmp_path / "out", processor, workers=1)
    found = (tmp_path / "out" / "a.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in found]
    assert values[0]["_text_tokens"] == values[1]["_text_tokens"] > 10
    assert all(value["mm_inputs_meta"] == {"images_meta": [[40, 30, 6]]} for value in values)
    assert all(line.count("text_tokens") == 1 for line in found)


def test_a_mix_names_the_columns(processor: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"chat": [{"role": "user", "content": "hi"}], "n": 1}\n')
    columns = {"messages": "chat", "text_tokens": "n"}
    (tmp_path / "mix.json").write_text(
        json.dumps({"one": {"file_name": "a.jsonl", "columns": columns}})
    )
    precompute(str(tmp_path / "mix.json"), tmp_path / "out", processor, workers=1)
    found = json.loads((tmp_path / "out" / "a.jsonl").read_text())
    assert found.keys() == {"chat", "n"}
    assert found["n"] > 5
    precompute(str(tmp_path / "a.jsonl"), tmp_path / "two", processor, columns=columns, workers=1)
    assert json.loads((tmp_path / "two" / "a.jsonl").read_text()) == found


def test_a_data_set_that_cannot_be_counted_is_not_written(processor: str, tmp_path: Path) -> None:
    """As with tags forgotten; layouts are recorded."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    turns = [{"who": "user", "text": "hi"}, {"who": "assistant", "text": "yes"}]
    source.write_bytes(orjson.dumps({"messages": turns}) + b"\n")
    tags = {"role_tag": "who", "content_tag": "text"}
    precompute(str(source), out, processor, tags=tags, workers=1)
    assert b"_text_tokens" in (out / "a.jsonl").read_bytes()
    (stated,) = json.loads((out / ".packidx.json").read_bytes())["lengths"]["sources"]
    assert stated["layout"] == {"tags": tags}
    with pytest.raises(SourceError, match="none of the 1 records could be counted"):
        precompute(str(source), tmp_path / "two", processor, workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out"]
