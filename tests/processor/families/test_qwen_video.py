"""Qwen's families count and build images and videos as the real processors do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import decode, write_clip
from family_processors_qwen import (
    FAMILIES,
    conversation,
    qwen_counter,
    qwen_processor,
)
from family_talks import info_of, run_processor
from PIL import Image
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.models.glm4v.image_processing_glm4v import smart_resize as glm_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as qwen3_resize
from transformers.video_utils import VideoMetadata

from packidx.encode.media import media_tensors
from packidx.errors import BadRecord
from packidx.format.schema import METHODS
from packidx.processor.counter import ConversationCounter
from packidx.processor.families.base import FamilyMedia, smart_resize
from packidx.processor.families.qwen import QWEN2_5_VL, QWEN3_VL
from packidx.processor.fingerprint import complete_settings
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE, MediaRoot

CLIPS: list[tuple[str, dict[str, Any]]] = [
    ("a.mp4", {"frames": 13, "size": (98, 66)}),
    ("b.mp4", {"frames": 16, "size": (32, 48), "fps": "30000/1001", "codec": "mpeg4"}),
    ("c.mp4", {"frames": 5, "size": (130, 18), "fps": "15/2"}),
    ("d.mp4", {"frames": 2, "size": (64, 64), "fps": "25"}),
    ("e.avi", {"frames": 9, "size": (50, 40), "fps": "3", "codec": "mpeg4"}),
    ("f.mov", {"frames": 3, "size": (16, 16), "fps": "1"}),
    ("g.mp4", {"frames": 40, "size": (28, 28), "fps": "12"}),
    ("h.mp4", {"frames": 7, "size": (60, 44), "times": [0, 1, 2, 5, 9, 14, 15]}),
]


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "processors"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("clips")
    return [write_clip(folder / name, **options) for name, options in CLIPS]


def ids_of(counter: ConversationCounter, talk: Conversation, infos: list[MediaInfo]) -> list[int]:
    """The sample's ids: the expanded text tokenized, every run of feature tokens written out."""
    media = counter.count_media([talk], [infos])
    expanded = counter.expand(talk, 0, media)
    files = counter.files
    assert files is not None and files.tokenizer is not None
    ids = np.array(files.tokenizer.encode(expanded.text).ids)
    repeats = np.ones(len(ids), np.int64)
    repeats[np.isin(ids, files.feature_ids)] = [n for runs in expanded.runs for n in runs]
    return np.repeat(ids, repeats).tolist()


def built_media(
    counter: ConversationCounter, processor: Any, talk: Conversation, infos: list[MediaInfo]
) -> dict[str, torch.Tensor]:
    """The tensors of a sample's media, by the processor's own parts."""
    assert counter.files is not None
    media = counter.count_media([talk], [infos])
    return media_tensors(
        counter.files,
        talk,
        media,
        lambda kind: getattr(processor, f"{kind}_processor"),
        lambda *given: None,
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_conversations(name: str, tmp: Path, clips: list[Path]) -> None:
    processor, counter = qwen_processor(name, tmp)[0], qwen_counter(name, tmp)
    files = counter.files
    assert files is not None and isinstance(files.vision, FamilyMedia)
    assert files.family == FAMILIES[name]
    options = {"largest": 99, "thoughts": name != "qwen3.5"}
    talks = [conversation(random.Random(f"{name}{i}"), clips, **options) for i in range(300)]
    infos = [[info_of(one) for one in talk.media] for talk in talks]
    counts = counter.count(talks, infos)
    assert not counts.errors
    assert set(counts.method.tolist()) == {METHODS.index("exact")}
    wrong: list[tuple[int, str]] = []
    seen = {"video": 0, "several": 0, "both": 0, "image": 0, "none": 0}
    for number, talk in enumerate(talks):
        real = run_processor(processor, talk)
        ids = real["input_ids"][0].tolist()
        rows = sum(len(real[key]) for key in ("pixel_values", "pixel_values_videos") if key in real)
        if len(ids) != counts.length[number]:
            wrong.append((number, "length"))
        if rows != counts.vision_patches[number]:
            wrong.append((number, "patches"))
        if ids != ids_of(counter, talk, infos[number]):
            wrong.append((number, "ids"))
        assert counts.image_tokens[number] == ids.count(processor.image_token_id)
        num_videos = [medium.kind for medium in talk.media].count("video")
        if number % 4 == 0:
            built = built_media(counter, processor, talk, infos[number])
            names = {*files.vision.model_inputs} & set(real)
            assert set(built) == names
            if not all(torch.equal(built[key], real[key]) for key in names):
                wrong.append((number, "tensors"))
        kinds = {m.kind for m in talk.media}
        seen["video"] += num_videos
        seen["several"] += num_videos > 1
        seen["both"] += len(kinds) == 2
        seen["image"] += kinds == {"image"}
        seen["none"] += not kinds
    assert not wrong
    assert min(seen.values()) > 20, seen


def one_video(ref: Any, **facts: Any) -> Conversation:
    stated = {name: fact for name, fact in facts.items() if fact is not None}
    turns = Turn("user", ("What?", Media("video", ref, stated))), Turn("assistant", ("A cat.",))
    return Conversation(turns)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_extracted_frames_and_those_that_the_record_names(
    name: str, tmp: Path, clips: list[Path]
) -> None:
    """What transformers makes of the same frames, told their numbers."""
    processor, counter = qwen_processor(name, tmp)[0], qwen_counter(name, tmp)
    cases: list[tuple[Conversation, Conversation, dict[str, Any]]] = []
    for num in (2, 5, 12):
        images = [Image.new("RGB", (70, 40), (n * 9, n, 200 - n)) for n in range(num)]
        cases.append((one_video(images), one_video(images), {}))
    frames = decode(clips[0])
    for indices in ((0, 4, 8, 12), (3, 5, 11), (12, 0, 0, 7, 7), tuple(range(13))):
        for fps in (None, 29.97):
            metadata = VideoMetadata(13, fps=fps or 10.0, frames_indices=list(indices))
            talk = one_video(str(clips[0]), frame_indices=indices, fps=fps)
            whole = one_video(frames[list(indices)])
            cases.append((talk, whole, {"video_metadata": [metadata]}))
    for talk, whole, given in cases:
        info = media_info(talk.media[0], MediaRoot("/", True))
        real = run_processor(processor, whole, do_sample_frames=False, **given)
        counts = counter.count([talk], [[info]])
        assert counts.length[0] == real["input_ids"].shape[1]
        assert counts.vision_patches[0] == len(real["pixel_values_videos"])
        assert ids_of(counter, talk, [info]) == real["input_ids"][0].tolist()
        built = built_media(counter, processor, talk, [info])
        assert all(torch.equal(built[key], real[key]) for key in built)


def test_too_short(tmp: Path, tmp_path: Path) -> None:
    """Qwen3-VL refuses a video of one frame; Qwen2.5-VL shows it twice."""
    path = write_clip(tmp_path / "one.mp4", frames=1)
    talk = one_video(str(path))
    info = info_of(talk.media[0])
    processor, counter = qwen_processor("qwen3-vl", tmp)[0], qwen_counter("qwen3-vl", tmp)
    counts = counter.count([talk], [[info]])
    assert counts.errors[0].reason == "too_few_frames"
    with pytest.raises(ValueError, match="t:1 must be larger"):
        run_processor(processor, talk)
    processor, counter = qwen_processor("qwen2.5-vl", tmp)[0], qwen_counter("qwen2.5-vl", tmp)
    counts = counter.count([talk], [[info]])
    assert counts.length[0] == run_processor(processor, talk)["input_ids"].shape[1]


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_videos_that_cannot_be(name: str, tmp: Path) -> None:
    files = qwen_counter(name, tmp).files
    assert files is not None and isinstance(files.vision, FamilyMedia)
    vision = files.vision
    videos = {
        "aspect_ratio": MediaInfo(40, 8040, 10, 10.0),
        "broken_media": MediaInfo(0, 40, 10, 10.0),
        "media_too_large": MediaInfo(1 << 24, 1 << 24, 1 << 20, 10.0),
        "": MediaInfo(40, 8000, 10, 10.0),
    }
    counts = vision.count_videos(list(videos.values()))
    assert [counts.errors[i].reason for i in range(3)] == list(videos)[:3]
    assert set(counts.errors) == {0, 1, 2}
    assert counts.tokens[:3].tolist() == [0, 0, 0] and counts.tokens[3] > 0
    assert not counts.grids[:3].any()
    assert vision.count_videos([]).tokens.shape == (0,)
    if name == "qwen3-vl":  # it writes seconds: one video's rate says nothing of the others
        counts = vision.count_videos([MediaInfo(40, 80, 9, 1e-5, (0, 4)), videos[""]])
        assert counts.errors[0].reason == "unknown_fps" and counts.tokens[1] > 0


def test_a_record_that_lies_about_the_size(tmp: Path, clips: list[Path]) -> None:
    processor, counter = qwen_processor("qwen2.5-vl", tmp)[0], qwen_counter("qwen2.5-vl", tmp)
    talk = one_video(str(clips[0]), height=98, width=66)
    with pytest.raises(BadRecord, match="height is 98, but the video has 66"):
        built_media(counter, processor, talk, [media_info(talk.media[0], ANYWHERE)])


# -- settings, swept -------------------------------------------------------------------------------

SAMPLING2 = [{"fps": 2}, {"fps": 0.7}, {"fps": 1, "max_frames": 31}, {"fps": 9, "min_frames": 7}]
SAMPLING2 += [{"num_frames": 8}, {"num_frames": 5}, {"fps": 2, "temporal_patch_size": 3}]
SAMPLING3 = [{}, {"fps": 1}, {"fps": 0.3}, {"fps": 5, "max_frames": 33}, {"min_frames": 9}]
RATES = [1.0, 7.5, 10.0, 23.976, 24.0, 25.0, 30000 / 1001, 30.0, 59.94, None]


def vision_of(family: Any, settings: dict[str, Any]) -> Any:
    video = complete_settings(settings, family.video_defaults)
    return family.build(dict(family.image_defaults), video, {})


@pytest.mark.parametrize("settings", SAMPLING2)
def test_sampling_of_qwen2(settings: dict[str, Any]) -> None:
    real = Qwen2VLVideoProcessor(do_sample_frames=True, **settings)
    vision = vision_of(QWEN2_5_VL, settings | {"do_sample_frames": True})
    tried = moved = 0
    for total in [*range(1, 90), *range(100, 3000, 37)]:
        for fps in RATES:
            try:
                metadata = VideoMetadata(total, fps=fps)
                want = real.sample_frames(metadata).tolist()
            except (ValueError, ZeroDivisionError):
                with pytest.raises(BadRecord):
                    vision.sample_frames(MediaInfo(64, 64, total, fps))
                continue
            # Its rounding may add a frame beyond the end, which no decoder gives.
            want = [number for number in want if number < total]
            got = vision.sample_frames(MediaInfo(64, 64, total, fps)).tolist()
            assert len(got) == len(want)
            tried += 1
            moved += got != want
            assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= 1
    assert tried > 500
    assert moved <= tried // 100  # torch's vectors round with the width of the CPU's


@pytest.mark.parametrize("settings", SAMPLING3)
def test_sampling_of_qwen3(settings: dict[str, Any]) -> None:
    real = Qwen3VLVideoProcessor(**settings)
    vision = vision_of(QWEN3_VL, settings)
    for total in [*range(1, 90), *range(100, 3000, 37)]:
        for fps in RATES:
            want = real.sample_frames(VideoMetadata(total, fps=fps)).tolist()
            assert vision.sample_frames(MediaInfo(64, 64, total, fps)).tolist() == want


@pytest.mark.parametrize(
    ("family", "kind", "settings"),
    [
        (QWEN2_5_VL, Qwen2VLVideoProcessor, {}),
        (QWEN2_5_VL, Qwen2VLVideoProcessor, {"cap_pixels_per_frame": True}),
        (
            QWEN2_5_VL,
            Qwen2VLVideoProcessor,
            {"cap_pixels_per_frame": True, "max_video_tokens": 999, "temporal_patch_size": 3},
        ),
        (QWEN3_VL, Qwen3VLVideoProcessor, {}),
        (QWEN3_VL, Qwen3VLVideoProcessor, {"cap_pixels_per_frame": True}),
        (
            QWEN3_VL,
            Qwen3VLVideoProcessor,
            {"cap_pixels_per_frame": True, "size": {"shortest_edge": 99, "longest_edge": 9 << 20}},
        ),
    ],
)
def test_sizes_of_videos(family: Any, kind: Any, settings: dict[str, Any]) -> None:
    real = kind(**settings)
    vision = vision_of(family, settings)
    rng = random.Random(1)
    infos = []
    for _ in range(400):
        scale = rng.choice([40, 300, 2500])
        sides = rng.randrange(3, scale), rng.randrange(3, scale)
        if max(sides) / min(sides) < 100:
            num = rng.choice([2, 3, 4, 5, 11, 64, 250])
            infos.append(MediaInfo(*sides, num, extracted=True))
    counts = vision.count_videos(infos)
    for info, grid in zip(infos, counts.grids.tolist(), strict=True):
        if grid[0]:
            frames = torch.empty(1, info.num_frames, 3, info.height, info.width, device="meta")
            height, width = real.resize(
                frames,
                size=real.size,
                resample=None,
                factor=real.patch_size * real.merge_size,
                temporal_factor=real.temporal_patch_size,
                cap_pixels_per_frame=real.cap_pixels_per_frame,
            ).shape[-2:]
            assert grid[1:] == [height // real.patch_size, width // real.patch_size], info
            assert grid[0] == -(-info.num_frames // real.temporal_patch_size)
        else:
            assert info.num_frames < real.temporal_patch_size


@pytest.mark.parametrize(
    ("reference", "limits"),
    [
        (qwen3_resize, (2, 32, 4096, 25_165_824)),
        (qwen3_resize, (2, 32, 131_072, 786_432)),
        (qwen3_resize, (2, 28, 3136, 1_003_520)),
        (qwen3_resize, (4, 32, 65_536, 16_777_216)),
        (qwen3_resize, (1, 28, 100, 5000)),
        (glm_resize, (2, 28, 12_544, 9_633_792)),
    ],
)
def test_smart_resize_of_videos(reference: Any, limits: tuple[int, int, int, int]) -> None:
    temporal, factor, low, high = limits
    rng = np.random.default_rng(7)
    random_ones = [rng.integers(1, [800, scale, scale], (20_000, 3)) for scale in (40, 900, 40_000)]
    ties = np.array([(f, h, w) for f in range(1, 14) for h in range(1, 99, 3) for w in (8, 48, 80)])
    edge = np.arange(1, 4000)
    exact = [np.stack([edge * 0 + n, edge, high // n // edge + 1 - n % 2], 1) for n in (2, 4, 5, 8)]
    sizes = np.concatenate([*random_ones, ties, *exact])
    pairs = smart_resize(
        *sizes.T[1:], factor, low, high, frames=sizes[:, 0], temporal_factor=temporal
    )
    got = np.stack(pairs, axis=1).tolist()
    wrong = []
    for (frames, height, width), pair in zip(sizes.tolist(), got, strict=True):
        try:
            want = reference(frames, height, width, *limits)
        except (ValueError, ZeroDivisionError):
            want = (0, 0)
        if tuple(pair) != want:
            wrong.append((frames, height, width, pair, want))
    assert not wrong[:3]
