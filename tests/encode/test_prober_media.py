"""Videos and sound of processors of no family of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from clips import decode, write_clip, write_sound
from counting import Length, lengths
from every_processor import build
from every_processor.real import real_length
from PIL import Image
from reading import open_media

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.encode.media import info_of
from packidx.encode.prober import ProbedMedia
from packidx.encode.whole import build_sample, ids_of, sampled_frames
from packidx.processor.assemble import ProcessorFiles
from packidx.records.media.paths import MediaRoot
from packidx.records.read import parse_record
from packidx.torch import PackedDataset

CLASSES = {
    "Gemma4Processor": ["gemma4"],  # samples frames, and writes their times
    "Qwen3OmniMoeProcessor": ["qwen3_omni_moe_thinker"],
    "VideoLlama3Processor": ["video_llama_3"],
    "Qwen2AudioProcessor": ["qwen2_audio"],
}


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probed-media")


@pytest.fixture(scope="module")
def media(tmp: Path) -> dict[str, str]:
    """Files of every kind, by name."""
    Image.new("RGB", (90, 60), (200, 30, 60)).save(tmp / "a.png")
    write_clip(tmp / "short.mp4", frames=37, size=(66, 48), fps="30000/1001")
    write_clip(tmp / "long.mp4", frames=71, size=(48, 90), fps="15/2")
    write_sound(tmp / "a.wav", samples=16001)
    write_sound(tmp / "b.flac", samples=70007, rate=44100, channels=2, codec="flac")
    return {path.name: str(path) for path in tmp.iterdir() if path.is_file()}


def built(name: str, tmp: Path) -> tuple[Any, ProcessorFiles, Path]:
    processor, folder = build(name, CLASSES[name], tmp)
    return processor, load_processor(folder), folder


def part(kind: str, ref: Any, **facts: Any) -> dict[str, Any]:
    return {"type": kind, kind: ref, **facts}


def record(*parts: Any) -> dict[str, Any]:
    asked = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
    said = [{"type": "text", "text": "So."}]
    turns = {"user": asked, "assistant": said}
    return {"messages": [{"role": role, "content": what} for role, what in turns.items()]}


def records_of(media: dict[str, str]) -> list[dict[str, Any]]:
    image, short, long = (media[name] for name in ("a.png", "short.mp4", "long.mp4"))
    wav, flac = media["a.wav"], media["b.flac"]
    return [
        record("only text"),
        record(part("video", short), "\nwhat?"),
        record("a", part("video", long), part("video", short)),
        record(part("audio", wav), "?"),
        record("first ", part("audio", flac), " then ", part("audio", wav)),
        record(part("image", image), part("video", short), part("audio", wav), "all?"),
        record(part("audio", flac), "\n", part("image", image)),
    ]


@pytest.fixture
def counted(media: dict[str, str], tmp: Path, tmp_path: Path) -> Any:
    """(name of a class) → rows of the lengths of `records_of`, and the processor's lengths."""

    def count(name: str) -> tuple[list[dict[str, Any]], list[int | None]]:
        processor, files, folder = built(name, tmp)
        given = records_of(media)
        shard = tmp_path / "data.jsonl"
        shard.write_text("".join(json.dumps(each) + "\n" for each in given))
        estimate_lengths(str(shard), tmp_path / "lengths", processor=folder, media_root="/")
        [part_file] = (tmp_path / "lengths").glob("part-*.parquet")
        rows = sorted(pq.read_table(part_file).to_pylist(), key=lambda row: row["row"])
        return rows, [real_length(processor, files, each) for each in given]

    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gemma4Processor", "Qwen3OmniMoeProcessor"])
def test_lengths_are_the_processors(name: str, counted: Any) -> None:
    rows, real = counted(name)
    assert None not in real
    assert [row["reason"] for row in rows] == [None] * len(rows)
    assert [row["length"] for row in rows] == real
    assert {row["method"] for row in rows} == {"exact"}
    kinds = ("image", "video", "audio")
    for number, held in ((0, ()), (3, ("audio",)), (5, kinds)):
        row = rows[number]
        if row["detail"] != "built by the processor":  # which of its tokens are media is not known
            assert [row[f"{kind}_tokens"] > 0 for kind in kinds] == [kind in held for kind in kinds]
    assert [medium["kind"] for medium in rows[5]["media"]] == ["image", "video", "audio"]


@pytest.mark.slow
def test_packs_with_videos_and_sound_are_read_back(
    media: dict[str, str], tmp: Path, tmp_path: Path
) -> None:
    processor, files, folder = built("Gemma4Processor", tmp)
    given = records_of(media)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
    estimate_lengths(str(tmp_path / "data.jsonl"), tmp_path / "l", processor=folder, media_root="/")
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=1 << 14)
    packs = PackedDataset(tmp_path / "i", ProcessorEncoder(folder))
    assert len(packs) == 1 and files.template is not None
    pack = packs[0].joined()
    ids = pack["input_ids"].split(pack["lengths"].tolist())
    for number, own in zip(pack["sample_ids"].tolist(), ids, strict=True):
        talk = parse_record(open_media(given[number], MediaRoot("/")))
        real = build_sample(processor, files.template, talk, every_frame=True)
        assert own.tolist() == ids_of(real)
    assert len(pack["input_features"]) == len(pack["input_features_mask"]) == 5
    assert len(pack["pixel_values_videos"]) == 4 * 32 and len(pack["pixel_values"]) == 2


@pytest.mark.slow
def test_a_processor_of_sound_alone_counts_sound_and_refuses_the_rest(counted: Any) -> None:
    rows, real = counted("Qwen2AudioProcessor")
    heard = [0, 3, 4]
    for number, row in enumerate(rows):
        if number in heard:
            assert (row["method"], row["length"]) == ("exact", real[number])
        else:
            assert row["reason"] == "unsupported_media"
    assert [rows[number]["audio_tokens"] > 0 for number in heard] == [False, True, True]


@pytest.mark.slow
def test_videos_whose_content_decides_are_built(media: dict[str, str], tmp: Path) -> None:
    """VideoLLaMA 3 drops patches that do not change."""
    processor, files, _ = built("VideoLlama3Processor", tmp)
    assert isinstance(files.vision, ProbedMedia)
    assert files.vision.unpredictable >= {"video"} and "image" not in files.vision.unpredictable
    for name in ("short.mp4", "long.mp4"):
        talk = parse_record(open_media(record(part("video", media[name]), "?"), MediaRoot("/")))
        real = build_sample(processor, files.template, talk, every_frame=True)
        assert lengths(files, [talk]) == [Length(len(ids_of(real)), is_exact=True, is_built=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gemma4Processor", "Qwen3OmniMoeProcessor"])
def test_frames_that_are_sampled_beforehand_make_the_same_sample(
    name: str, media: dict[str, str], tmp: Path
) -> None:
    """Only these are decoded for training; the processor itself would get all of them."""
    processor, files, _ = built(name, tmp)
    assert files.template is not None
    talk = parse_record(open_media(record(part("video", media["long.mp4"]), "?"), MediaRoot("/")))
    samples = [
        build_sample(processor, files.template, talk, every_frame=every) for every in (True, False)
    ]
    assert ids_of(samples[0]) == ids_of(samples[1])
    assert samples[0].keys() == samples[1].keys()
    for key, value in samples[0].items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(samples[1][key]), key)
    taken = sampled_frames(processor, files.template, info_of(talk.media[0]))
    assert len(taken) == (32 if name == "Gemma4Processor" else 71)


@pytest.mark.slow
def test_frames_that_the_record_names_are_used(media: dict[str, str], tmp: Path) -> None:
    processor, files, _ = built("Gemma4Processor", tmp)
    assert files.template is not None
    for number, frame in enumerate(decode(Path(media["short.mp4"]))[:4]):
        Image.fromarray(frame).save(tmp / f"{number}.png")
    frames = [str(tmp / f"{number}.png") for number in range(4)]
    for given_record in (
        record(part("video", media["long.mp4"], frame_indices=[0, 20, 70]), "?"),
        record(part("video", frames, fps=2.0), "?"),
        record(part("video", frames, fps=2.0, frame_indices=[0, 8, 16, 24]), "?"),
        record(part("video", frames, fps=2.0), " and ", part("video", media["long.mp4"])),
    ):
        talk = parse_record(open_media(given_record, MediaRoot("/")))
        real = ids_of(build_sample(processor, files.template, talk, every_frame=True))
        assert real == ids_of(build_sample(processor, files.template, talk))
        [length] = lengths(files, [talk])
        assert isinstance(length, Length) and length.tokens == len(real) and length.is_exact
