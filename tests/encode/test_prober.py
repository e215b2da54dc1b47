"""Processors of no family of ours: blank media tell what media add, or samples are built."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
from pathlib import Path
from typing import Any

import family_processors as families
import family_processors_tiles as tiles
import family_talks
import orjson
import pyarrow.parquet as pq
import pytest
from counting import Length, lengths
from every_processor import build, processor_classes
from PIL import Image
from transformers import AutoProcessor, AyaVisionProcessor, GotOcr2ImageProcessor

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.loading import files_of, load_processor
from packidx.encode.media import NotBuilt, blank_medium
from packidx.encode.prober import ProbedMedia
from packidx.encode.whole import build_sample, ids_of
from packidx.errors import BadRecord, OptionError, PackidxError, SourceError
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.kinds import record_kind
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn
from packidx.records.read import parse_record

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|END|>{% endfor %}"
)
TOKENS = [
    *("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE_GLOBAL", "<|END|>"),
    *(f"TILE_{number}" for number in range(1, 13)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Aya Vision (CohereLabs/aya-vision-8b), tiles of 56 pixels."""
    tmp = tmp_path_factory.mktemp("probe")
    processor = AyaVisionProcessor(
        GotOcr2ImageProcessor(
            size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=12
        ),
        tiles.tokenizer(tmp, TOKENS),
        patch_size=14,
        img_size=56,
        downsample_factor=2,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(tmp / "aya")
    return tmp / "aya"


def probed(files: ProcessorFiles) -> ProbedMedia:
    assert isinstance(files.vision, ProbedMedia) and files.family is None
    return files.vision


# -- processors that depend on more than a medium's size ------------------------------------------


class Numbered(AyaVisionProcessor):  # type: ignore[misc]
    """Writes each image's number before it, as MiniCPM does."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        return f"{image_idx + 1}: {super().replace_image_token(inputs, image_idx, **options)}"


class Together(AyaVisionProcessor):  # type: ignore[misc]
    """Writes how many images there are, with each."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        number = "i" * len(inputs["num_patches"])
        return f"one of {number}: {super().replace_image_token(inputs, image_idx, **options)}"


class Rewriting(AyaVisionProcessor):  # type: ignore[misc]
    """Removes spaces before an image, as Idefics2 removes line breaks."""

    def get_text_with_replacements(self, text: Any, *given: Any, **options: Any) -> Any:
        text = [each.replace(" <image>", "<image>") for each in text]
        return super().get_text_with_replacements(text, *given, **options)


class Unwrapped(AyaVisionProcessor):  # type: ignore[misc]
    """Writes words beside its tokens, so that neighbouring text merges with them."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        return f"\n\n{super().replace_image_token(inputs, image_idx, **options)}\n"


class Tiled(AyaVisionProcessor):  # type: ignore[misc]
    """Writes a line break behind the images of some sizes alone, as GraniteDocling does."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        text = str(super().replace_image_token(inputs, image_idx, **options))
        return text + "\n" * ("TILE_5" in text and "TILE_6" not in text)


class AtTheEnd(AyaVisionProcessor):  # type: ignore[misc]
    """Appends words to a sample with images."""

    def get_text_with_replacements(self, text: Any, *given: Any, **options: Any) -> Any:
        text = [each + " seen" * ("<image>" in each) for each in text]
        return super().get_text_with_replacements(text, *given, **options)


class Stripping(AyaVisionProcessor):  # type: ignore[misc]
    """Strips white space at the end of lines, in texts without images, too."""

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        text = [text] if isinstance(text, str) else text
        text = [re.sub(r"[ \t]+\n", "\n", each) for each in text]
        return super().__call__(images=images, text=text, **options)


YES, ANSWER = ({"type": "text", "text": text} for text in ("Yes", "Two of them."))
IMAGE = {"type": "image", "image": Image.effect_noise((90, 50), 60)}


def said(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def changed(folder: Path, kind: type) -> ProcessorFiles:
    real: Any = AyaVisionProcessor.from_pretrained(folder)
    real.__class__ = kind
    return files_of(real)


def real_lengths(files: ProcessorFiles, talks: list[Conversation]) -> list[int]:
    built = [build_sample(probed(files).processor, files.template, talk) for talk in talks]
    return [len(ids_of(each)) for each in built]


@pytest.mark.parametrize(
    "kind", [AyaVisionProcessor, Numbered, Together, Rewriting, Unwrapped, AtTheEnd, Stripping]
)
def test_lengths_and_samples_are_the_processors_whatever_they_depend_on(
    folder: Path, kind: type
) -> None:
    files = changed(folder, kind)
    rng, talks = random.Random(2), []
    for number in range(40):
        sizes = [(rng.randrange(5, 300), rng.randrange(5, 300)) for _ in range(13)]
        images = [Media("image", Image.new("RGB", size)) for size in sizes]
        parts = [family_talks.words(rng), *images[: [0, 1, 1, 2, 3, 13][number % 6]]]
        rng.shuffle(parts)
        asked = Turn("user", tuple(parts), text_as_list=True)
        said_so = Turn("assistant", (family_talks.answer(rng),), text_as_list=True)
        talks.append(Conversation((asked, said_so)))
    counted = lengths(files, talks)
    for each, tokens in zip(counted, real_lengths(files, talks), strict=True):
        if isinstance(each, BadRecord):  # an answer that the processor changes has no labels
            assert kind is Stripping and each.reason == "not_built"
        else:
            assert each.is_exact and each.tokens == tokens
    built = [isinstance(each, Length) and each.is_built for each in counted]
    assert any(built) == (kind is not AyaVisionProcessor)
    encode = ProcessorEncoder(probed(files).processor)
    for num in (0, 1, 3):
        record = {"messages": [said("user", *[IMAGE] * num, ANSWER), said("assistant", ANSWER)]}
        sample = encode(record)
        [length] = real_lengths(files, [parse_record(record)])
        assert len(sample["input_ids"]) == length
        trained = sample["input_ids"][sample["labels"] != -100].tolist()
        assert probed(files).processor.tokenizer.decode(trained) == "Two of them.<|END|>"


def test_sizes_beside_which_text_merges_are_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a kind that was equal; what is too large to be built is not exact."""
    files = changed(folder, Tiled)
    image = Media("image", Image.effect_noise((560, 112), 60))
    talks = [Conversation((Turn("user", (image, "\nWhere?"), text_as_list=True),))]
    computed = [record_kind(talks[0], fine=True)]
    [built] = lengths(files, talks, computed)
    assert built == Length(real_lengths(files, talks)[0], is_exact=True, is_built=True)
    monkeypatch.setattr("packidx.estimate.compare._MOST_PATCHES", 1)
    [guessed] = lengths(files, talks, computed)
    assert isinstance(guessed, Length) and guessed.tokens != built.tokens and not guessed.is_exact


@pytest.mark.parametrize(
    ("policy", "turns", "num"),
    [
        ("last", [("user", YES, IMAGE), ("assistant", YES)] * 2, 1),
        ("all", [("user", YES), ("assistant", IMAGE, YES)], 1),
        ("all", [("user", IMAGE, YES), ("assistant", IMAGE, YES)] * 3, 3),
    ],
)
def test_labels_are_the_answers_where_texts_repeat(
    policy: str, turns: list[Any], num: int, folder: Path
) -> None:
    encode = ProcessorEncoder(folder, policy)
    sample = encode({"messages": [said(*turn) for turn in turns]})
    ids, tokenizer = sample["input_ids"], probed(encode.files).processor.tokenizer
    ends = (ids == tokenizer.convert_tokens_to_ids("<|END|>")).nonzero().flatten().tolist()
    wanted = [end for end, turn in zip(ends, turns, strict=True) if turn[0] == "assistant"][-num:]
    trained = (sample["labels"] != -100).nonzero().flatten().tolist()
    assert set(wanted) <= set(trained) and len(trained) == 2 * num


@pytest.mark.parametrize("token", ["<image>", "<|IMG_PATCH|>"])
@pytest.mark.parametrize("num_images", [0, 1])
def test_a_text_that_holds_a_media_token_takes_no_images_place(
    folder: Path, token: str, num_images: int
) -> None:
    media = (Media("image"),) * num_images
    talk = Conversation((Turn("user", (f"I typed {token}.", *media)),))
    counter = ConversationCounter(load_processor(folder))
    counts = counter.count([talk], [[MediaInfo(60, 50)] * num_images])
    assert counts.errors[0].reason == "media_token_in_text"


def test_an_image_that_no_memory_holds_is_refused_without_being_made(folder: Path) -> None:
    counts = probed(load_processor(folder)).expand(
        "image", [MediaInfo(300_000, 300_000), MediaInfo(50, 60)]
    )
    assert list(counts.errors) == [0] and counts.tokens[1] > 0
    assert "too large to try it out" in counts.errors[0].detail


def test_a_worker_gets_what_was_tried(folder: Path) -> None:
    vision = probed(load_processor(folder))
    wanted = vision.expand("image", [MediaInfo(50, 60), MediaInfo(50, 130)]).tokens.tolist()
    copy = pickle.loads(pickle.dumps(vision))
    assert "processor" not in vars(copy)
    assert copy.expand("image", [MediaInfo(50, 130)]).tokens.tolist() == wanted[1:]
    assert "processor" not in vars(copy)


def test_an_image_with_alpha_is_rgb_to_a_processor_that_converts_none(folder: Path) -> None:
    """LFM2-VL and DeepSeek-VL are such: counted by its size, the image must be built, too."""
    real: Any = AyaVisionProcessor.from_pretrained(folder)
    real.image_processor.do_convert_rgb = False
    encoder = ProcessorEncoder(real)
    image = Image.new("RGBA", (70, 40), (10, 200, 30, 90))
    samples = [
        encoder({"messages": [{"role": "user", "content": "<image>?"}], "images": [each]})
        for each in (image, image.convert("RGB"))
    ]
    assert samples[0]["input_ids"].tolist() == samples[1]["input_ids"].tolist()
    assert (samples[0]["pixel_values"] == samples[1]["pixel_values"]).all()


def test_rows_of_estimate(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (90, 50)).save(tmp_path / "a.png")
    with_image = {"messages": [{"role": "user", "content": "<image>?"}], "images": ["a.png"]}
    without = {"messages": [{"role": "user", "content": "no image"}]}
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, (with_image, without))))
    estimate_lengths(str(tmp_path / "a.jsonl"), tmp_path / "lengths", processor=folder, workers=1)
    rows = pq.read_table(next((tmp_path / "lengths").glob("part-00000*"))).to_pylist()
    assert [row["method"] for row in rows] == ["exact", "exact"]
    assert rows[0]["length"] > rows[0]["image_tokens"] > 4
    real = probed(load_processor(folder)).processor
    assert files_of(real).fingerprint() == load_processor(folder).fingerprint()


def test_media_that_nothing_counts(folder: Path, tmp_path: Path) -> None:
    """A folder whose processor cannot be loaded: records with images are rejected."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = json.loads((broken / "processor_config.json").read_text())
    config["processor_class"] = "NoSuchProcessor"
    (broken / "processor_config.json").write_text(json.dumps(config))
    files = load_processor(broken)
    assert files.vision is None and "takes no media" in (files.unknown or "")
    with pytest.raises(OptionError, match="cannot be used: .*pass your own encode"):
        ProcessorEncoder(broken)
    one = Conversation((Turn("user", ("?", Media("image"))),))
    counts = ConversationCounter(files).count(
        [one, Conversation((Turn("user", ("?",)),))], [[None], []]
    )
    assert list(counts.errors) == [0] and counts.errors[0].reason == "unsupported_media"
    assert counts.length[1] > 2


# -- families with settings that they do not count -------------------------------------------------

SIZES = [(56, 84), (224, 224), (100, 130), (28, 28)]


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probed-families")


def made(name: str, tmp: Path) -> tuple[Any, Path]:
    if name.endswith("Processor"):
        return build(name, processor_classes()[name], tmp)
    if name.startswith("internvl"):
        return families.family_processor(name, tmp)
    processor, folder = getattr(tiles, name)(tmp), tmp / name
    processor.save_pretrained(folder)
    return processor, folder


def question(*media: Media) -> Conversation:
    parts: list[str | Media] = ["What is it?"]
    for medium in media:
        parts += [medium, "Hm."]
    asked = Turn("user", tuple(parts), text_as_list=True)
    return Conversation((asked, Turn("assistant", ("So.",), text_as_list=True)))


@pytest.mark.parametrize(
    ("name", "changed", "refusal"),
    [
        ("llava", {"size": 224, "do_center_crop": False}, "its size is 224"),
        ("llava", {"size": {"shortest_edge": 224}, "do_center_crop": False}, "do_center_crop"),
        ("llava_next", {"do_resize": False}, "do_resize false"),
        ("internvl-small", {"do_resize": False}, "do_resize is False"),
    ],
)
def test_settings_that_a_family_does_not_count_are_probed(
    name: str, changed: dict[str, Any], refusal: str, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = made(name, tmp)
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["image_processor"] |= changed
    path.write_text(json.dumps(config))
    files = load_processor(folder)
    assert isinstance(files.vision, ProbedMedia)
    real = AutoProcessor.from_pretrained(folder)
    talks = [question(blank_medium("image", MediaInfo(*size), noise=True)) for size in SIZES]
    theirs = [len(ids_of(build_sample(real, files.template, talk))) for talk in talks]
    ours = lengths(files, talks)
    assert [each.tokens for each in ours if isinstance(each, Length)] == theirs
    assert "pixel_values" in ProcessorEncoder(folder)({"messages": [said("user", IMAGE)]})

    def fails(*_: Any) -> None:
        raise PackidxError("transformers is not there")

    monkeypatch.setattr(ProbedMedia, "__init__", fails)
    with pytest.raises(SourceError, match=refusal):
        load_processor(folder)


def test_settings_that_the_real_processor_cannot_count_are_refused(tmp: Path) -> None:
    processor = tiles.llava(tmp)
    processor.patch_size = None
    with pytest.raises(SourceError, match="patch_size"):
        tiles.saved(processor, tmp / "no-patches")


@pytest.mark.parametrize(
    "name", ["internvl-small", "llava_onevision", "LlavaNextVideoProcessor", "VideoLlavaProcessor"]
)
def test_videos_are_counted_or_rejected_as_the_processor_builds_them(name: str, tmp: Path) -> None:
    real, folder = made(name, tmp / "several")
    files = load_processor(folder)
    five, nine = (MediaInfo(48, 64, num, 2.0) for num in (5, 9))
    other = MediaInfo(90, 70, 5, 2.0)
    for shapes in ([five], [five, five], [five, other], [five, nine], [nine, five, nine]):
        talk = question(*(blank_medium("video", shape, noise=True) for shape in shapes))
        [ours] = lengths(files, [talk])
        try:
            theirs = len(ids_of(build_sample(real, files.template, talk)))
        except NotBuilt:
            assert isinstance(ours, BadRecord)
            continue
        assert isinstance(ours, BadRecord) or ours.tokens == theirs > 10
        assert not isinstance(ours, BadRecord) or len({shape.num_frames for shape in shapes}) > 1
