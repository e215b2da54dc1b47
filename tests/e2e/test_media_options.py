"""Options of one medium, other tools' placeholders and settings without effect are refused."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from clips import write_clip
from packidx_cli.main import main
from PIL import Image
from reading import open_media
from transformers import AutoTokenizer

from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord
from packidx.records.media.paths import MediaRoot

Record = dict[str, Any]
VIDEO, IMAGE = {"type": "video", "video": "v.mp4"}, {"type": "image", "image": "a.png"}
FRAMES = [f"frames/{number}.png" for number in range(6)]
LISTED = {"type": "video", "video": FRAMES}


def said(content: Any, **more: Any) -> Record:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "Yes."}]
    return {"messages": turns, **more}


def shown(part: Record, **options: Any) -> Record:
    return said([{**part, **options}, {"type": "text", "text": "What?"}])


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_clip(folder / "v.mp4", frames=40)
    Image.new("RGB", (640, 480)).save(folder / "a.png")
    (folder / "frames").mkdir()
    for name in FRAMES:
        Image.new("RGB", (96, 64)).save(folder / name)
    with wave.open(str(folder / "s.wav"), "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(bytes(3200))
    return folder


def counted(
    records: list[Record], media: Path, tmp_path: Path, *more: str
) -> list[tuple[int | None, str | None]]:
    """Length and error of each record, through the command line."""
    lines = (json.dumps({"id": str(n), **record}) for n, record in enumerate(records))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    command = ["estimate", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "l"), "--quiet"]
    command += ["--media-root", str(media), "--workers", "1", "--max-rejected", "1", *more]
    assert main(command) == 0
    rows = ds.dataset([*map(str, (tmp_path / "l").glob("part-*.parquet"))]).to_table().to_pylist()
    assert [row["key"] for row in rows] == [str(n) for n in range(len(records))]
    return [(None if row["reason"] else row["length"], row["reason"]) for row in rows]


ASKED = [
    shown(VIDEO, sample_fps=2),
    shown(VIDEO, num_frames=8),
    shown(VIDEO, height=32, width=48),
    *(shown(VIDEO, **{name: 20_000}) for name in ("max_pixels", "min_pixels", "total_pixels")),
    *(shown(VIDEO, **{name: 2}) for name in ("video_start", "end")),
    shown(VIDEO, fps=1.0, max_pixels=20_000),
    shown(VIDEO, resized_height=28, resized_width=28),
    shown({"type": "video", "video": {"path": "v.mp4", "video_end": 2.0}}),
    shown(LISTED, max_pixels=2000),
    shown({"type": "video", "video": [{"image": name, "max_pixels": 999} for name in FRAMES]}),
    shown({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}),
]
STATED = [  # each is read as the record before it in the list that has no option
    shown(VIDEO),
    *(shown(VIDEO, **{name: None}) for name in ("fps", "max_pixels")),
    shown(VIDEO, video_start=0.0),
    shown(VIDEO, num_frames=40, height=64, width=96, fps=10.0),
    shown(VIDEO, num_frames=40),
    shown(VIDEO, duration=4.0, raw_fps=10),
    shown(LISTED),
    shown(LISTED, sample_fps=2, raw_fps=10),
    shown(LISTED, fps=2),
    shown({"type": "video", "video": "frames"}, fps=2),
    shown(IMAGE),
    shown({"type": "image_url", "image_url": {"url": "a.png", "detail": "auto"}}),
    shown(IMAGE, max_pixels=None, detail="high"),
    shown(IMAGE, max_pixels=12_845_056),  # the processor's own
]
PLAIN = (0, 7, 11)


def test_options_of_a_medium_are_refused_and_facts_are_read(
    media: Path, tmp_path: Path, processors: Path
) -> None:
    folder = str(processors / "qwen2.5-vl")
    rows = counted(STATED + ASKED, media, tmp_path, "--processor", folder)
    for number, (length, error) in enumerate(rows[: len(STATED)]):
        plain = max(each for each in PLAIN if each <= number)
        assert (length, error) == (rows[plain][0], None), STATED[number]
    for record, row in zip(ASKED, rows[len(STATED) :], strict=True):
        assert row == (None, "unsupported_media_option"), record
    encoder, root = ProcessorEncoder(folder), MediaRoot(str(media), True)
    for record in ASKED:  # as streams read them
        with pytest.raises(BadRecord, match="unsupported_media_option"):
            encoder(open_media(record, root))
    for number in PLAIN:
        built = encoder(open_media(STATED[number], root))
        assert len(built["input_ids"]) == rows[number][0]


CUTS: list[Record] = [{"start": 1, "end": 3.5}, {"video_start": 1.5}, {"video_end": 2}]
CUTS += [{"start_time": "00:00:01"}, {"end": "1:02"}, {"start time": 1.0}, {"clip_start": "2.5s"}]
WHOLE: list[Record] = [{"start": 0}, {"end": None}, {"end": "never"}]
WHOLE += [{"start": 0, "end": 4.0, "duration": 4.0}]


def test_a_part_of_a_video_is_not_the_video(media: Path, tmp_path: Path, processors: Path) -> None:
    options = (media, tmp_path, "--processor", str(processors / "qwen2.5-vl"))
    records = [said("<video>What?", video="v.mp4", **columns) for columns in CUTS + WHOLE]
    cut = {"start": 1, "end": 3}
    records += [said("<video>What?", videos=[FRAMES], **cut), said("What?", **cut)]
    records += [said("<image>What?", image="a.png", **cut)]
    rows = counted(records, *options)
    errors = [error for _, error in rows]
    refused, accepted = errors[: len(CUTS)], errors[len(CUTS) :]
    assert {*refused} == {"unused_column"} and {*accepted} == {None}
    ignored = counted(records[:1], *options, "--ignore", "start", "--ignore", "end")
    assert ignored == [rows[len(CUTS)]]


def test_options_that_equal_the_settings_pass(
    media: Path, tmp_path: Path, processors: Path
) -> None:
    records = [shown(VIDEO, fps=1.0), shown(VIDEO)]
    on = ["videos.fps=1", "videos.do_sample_frames=true"]
    given = [word for setting in on for word in ("--processor-set", setting)]
    folder = str(processors / "qwen2.5-vl")
    rows = counted(records, media, tmp_path, "--processor", folder, *given)
    assert rows[0] == rows[1] and rows[0][1] is None
    settings = {"videos.fps": 1, "videos.do_sample_frames": True}
    encoder, root = ProcessorEncoder(folder, settings=settings), MediaRoot(str(media), True)
    built = encoder(open_media(records[0], root))
    # 4 s at 1 frame/s: 2 steps in time of 64x96 pixels, which are 2x3 tokens.
    assert built["video_grid_thw"].tolist() == [[2, 4, 6]] and len(built["input_ids"]) == rows[0][0]
    newer = counted(
        [shown(VIDEO, fps=2), shown(VIDEO), shown(VIDEO, min_frames=8)],
        *(media, tmp_path, "--processor", str(processors / "qwen3-vl")),
    )
    assert newer[0] == newer[1] and newer[2] == (None, "unsupported_media_option")


MARKS = (
    *("<sound>", "<speech>", "<start_of_image>", "<image/>", "[image]", "<pic>", "<vid>"),
    *("<|endoftext10|>", "<img1>", "<video_0>", "<audio/>", "<image_soft_token>", "[VIDEO]"),
    *("<|vision_start|>", "<IMG_CONTEXT>", "<|image_1|>", "<ImageHere>", "<image_placeholder>"),
    *("<media>", "<frame>", "<|audio_bos|>", "<|AUDIO|>", "<start_of_audio>", "<|begin_of_image|>"),
    *("<speech></speech>", "<|media_pad|>", "<boi>", "<your_image>", "[INSERT IMAGE HERE]"),
)
TEMPLATED = ("{image}", "{{image_1}}", "%IMAGE%", "__image__", "$image1$", "<<image>>", "{ img }")
TEXTS = (
    "Does \\includegraphics{image} or ${image} cost $5 for a picture, in __init__, 50% of images?",
    "How does <img src='a.png'> differ from [image](http://x/a.png) and ![image][1]?",
    "<picture>\n<source srcset=a.png>\n</picture>\nIs it right?",
    "<video controls>\n<audio src=a.wav>\nWhat is played?",
    "x = batch[image]\ny = <ImageView>\n<fim_middle>",
    f"<image_url>a</image_url>\n<speech>hello there</speech> <image{'1' * 60}",
)


def test_placeholders_of_other_tools_are_refused(
    media: Path, tmp_path: Path, processors: Path
) -> None:
    processor = ["--processor", str(processors / "qwen2.5-vl")]
    beside = [said(f"{mark}\nWhat?", images=["a.png"]) for mark in MARKS]
    beside += [said(f"See {mark} here.", images=["a.png"]) for mark in MARKS]
    # Numbers may refer to images that are shown.
    alone = [mark for mark in MARKS if mark not in ("<img1>", "<video_0>")]
    beside += [said(f"<image>\nWhat?\n{mark}", images=["a.png"]) for mark in alone]
    beside += [said(f"{mark}\nWhat?", images=[]) for mark in MARKS]
    beside += [said(f"{mark}\nWhat?") for mark in MARKS if mark.startswith("<")]
    found = counted(beside, media, tmp_path, *processor)
    for record, (_, error) in zip(beside, found, strict=True):
        assert error in ("media_mismatch", "media_token_in_text"), record
    templated = [said(f"See {mark} here.", images=["a.png"]) for mark in TEMPLATED]
    assert {e for _, e in counted(templated, media, tmp_path, *processor)} == {"media_mismatch"}
    texts = [said(text, images=["a.png"]) for text in TEXTS]
    texts += [said(f"<image>{text}", images=["a.png"]) for text in TEXTS]
    texts += [said("<image>Compare it to [image 1] and <image 2>.", images=["a.png"])]
    texts += [said("<image>What does <sound> do in SSML?", images=["a.png"])]
    assert {error for _, error in counted(texts, media, tmp_path, *processor)} == {None}
    plain = [said(f"{text} Or {mark}") for text, mark in zip(TEXTS, MARKS, strict=False)]
    assert {error for _, error in counted(plain, media, tmp_path, *processor)} == {None}


IDS = [11, 12, 13, 14]


@pytest.mark.parametrize("pad", ["<|image_pad|>", "<|video_pad|>"])
@pytest.mark.parametrize("more", [{}, {"labels": [-100, -100, -100, -100, 14]}])
def test_ids_that_stand_for_media_are_refused(
    pad: str, more: dict[str, Any], processors: Path, tmp_path: Path
) -> None:
    processor = processors / "qwen2.5-vl"
    token = AutoTokenizer.from_pretrained(processor).convert_tokens_to_ids(pad)
    ids = [IDS[0], token, *IDS[1:]]
    records = [{"input_ids": IDS}, {"input_ids": ids, **more}, {"input_ids": [*IDS, 15]}]
    data = tmp_path / "ids.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["estimate", str(data), "-o", str(tmp_path / "lengths"), "--workers", "1"]
    assert main([*command, "--processor", str(processor)]) == 0
    rows = pq.read_table(next((tmp_path / "lengths").glob("part-00000*"))).to_pylist()
    assert [row["reason"] for row in rows] == [None, "media_token_in_text", None]
    assert [row["length"] for row in rows if row["reason"] is None] == [4, 5]


@pytest.mark.parametrize(
    ("setting", "enables"),
    [
        *((f"videos.{name}=2", "videos.do_sample_frames=true") for name in ("fps", "num_frames")),
        *((f"videos.{n}=8", "videos.do_sample_frames=true") for n in ("max_frames", "min_frames")),
        ("images.crop_size={}", "images.do_center_crop=true"),
        ("videos.pad_size={}", "videos.do_pad=true"),
        ("videos.max_video_tokens=9000", "videos.cap_pixels_per_frame=true"),
    ],
)
def test_a_setting_without_effect_is_refused(
    *, setting: str, enables: str, media: Path, tmp_path: Path, processors: Path, capsys: Any
) -> None:
    setting = setting.replace("{}", '{"height": 28, "width": 28}')
    (tmp_path / "a.jsonl").write_text(json.dumps(shown(VIDEO)) + "\n")
    command = ["estimate", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "l"), "--quiet"]
    command += ["--media-root", str(media), "--workers", "1"]
    command += ["--processor", str(processors / "qwen2.5-vl"), "--processor-set"]
    assert main([*command, setting]) == 1
    assert enables in " ".join(capsys.readouterr().err.split())
    if "cap_" in enables:
        assert main([*command, setting, "--processor-set", enables]) == 0
