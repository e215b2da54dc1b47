"""Processors of no family of ours: what they write for images is read off themselves."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import orjson
import pyarrow.parquet as pq
import pytest
from transformers import AyaVisionProcessor, GotOcr2ImageProcessor

from packidx import estimate_lengths
from packidx.encode import ProcessorEncoder
from packidx.encode.learn import EACH, INDEX, TUPLE, Table
from packidx.encode.loading import files_of, load_processor
from packidx.encode.probe import ProbedMedia
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import EXACT, HEURISTIC, Compared
from packidx.processor.families import FAMILIES
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|END|>{% endfor %}"
)
TOKENS = [
    "<image>",
    "<|IMG_PATCH|>",
    "<|START_OF_IMG|>",
    "<|END_OF_IMG|>",
    "TILE_GLOBAL",
    "<|END|>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Aya Vision (CohereLabs/aya-vision-8b), tiles of 56 pixels."""
    tmp = tmp_path_factory.mktemp("probe")
    processor = AyaVisionProcessor(
        GotOcr2ImageProcessor(
            size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=12
        ),
        tiles.tokenizer(tmp, TOKENS + [f"TILE_{number}" for number in range(1, 13)]),
        patch_size=14,
        img_size=56,
        downsample_factor=2,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(tmp / "aya")
    return tmp / "aya"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def probed(files: ProcessorFiles) -> ProbedMedia:
    assert isinstance(files.vision, ProbedMedia) and files.family is None
    return files.vision


def test_ids_are_the_processors(folder: Path) -> None:
    assert "AyaVisionProcessor" not in FAMILIES
    files = load_processor(folder)
    real = probed(files).processor
    rng = random.Random(1)
    several = set()
    for number in range(100):
        messages = tiles.conversation(rng, ["image"] * [0, 1, 1, 2, 3][number % 5], 5)
        outputs = real.apply_chat_template(messages, tokenize=True, return_dict=True)
        ids, images, _ = tiles.counted(files, messages)
        assert ids == tiles.real_ids(outputs)
        several.update(images.tokens.tolist())
    assert len(several) > 5


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
    assert "too large to try them out" in counts.errors[0].detail


def test_a_line_of_the_table_that_is_cut_is_learnt_again(folder: Path, own_cache: Path) -> None:
    vision = probed(load_processor(folder))
    wanted = vision.expand("image", [MediaInfo(50, 60), MediaInfo(50, 130)]).tokens.tolist()
    [path] = own_cache.glob("probes/*.jsonl")
    lines = [line + b"\n" for line in path.read_bytes().split(b"\n") if line]
    path.write_bytes(lines[0][:-20] + b"\n" + lines[1][:-20])
    assert Table(None).find(["image 50x60"]) == ["image 50x60"]
    again = probed(load_processor(folder))
    assert again.expand("image", [MediaInfo(50, 60), MediaInfo(50, 130)]).tokens.tolist() == wanted
    third = probed(load_processor(folder))
    third.__dict__["_learner"] = None
    assert third.expand("image", [MediaInfo(50, 130)]).tokens.tolist() == wanted[1:]


COUNT = """
import sys
from pathlib import Path
from packidx import estimate_lengths
estimate_lengths(sys.argv[1], sys.argv[2], processor=sys.argv[3], workers=1)
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_the_second_count_loads_no_torch(folder: Path, tmp_path: Path) -> None:
    tiles.Image.new("RGB", (90, 50)).save(tmp_path / "a.png")
    record = {"messages": [{"role": "user", "content": "<image>?"}], "images": ["a.png"]}
    (tmp_path / "a.jsonl").write_bytes(orjson.dumps(record))
    said = []
    for run in ("one", "two"):
        arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / run), str(folder)]
        command = [sys.executable, "-c", COUNT, *arguments]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said == ["['torch', 'transformers']\n", "[]\n"]
    one, two = (next((tmp_path / run).glob("part-00000*")) for run in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


# -- what an expansion depends on ------------------------------------------------------------------


class Numbered(AyaVisionProcessor):  # type: ignore[misc]
    """Writes each image's number before it, as MiniCPM does."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        return f"{image_idx + 1}: {super().replace_image_token(inputs, image_idx, **options)}"


class Together(AyaVisionProcessor):  # type: ignore[misc]
    """Writes how many images there are, with each."""

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        number = len(inputs["num_patches"])
        return f"one of {number}: {super().replace_image_token(inputs, image_idx, **options)}"


class ByContent(AyaVisionProcessor):  # type: ignore[misc]
    """Writes something else for a black image."""

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        flat = [image for each in images or () for image in each]
        black = any(image.getextrema() == ((0, 0),) * 3 for image in flat)
        self.dark = "dark " * black
        return super().__call__(images=images, text=text, **options)

    def replace_image_token(self, inputs: dict[str, Any], image_idx: int, **options: Any) -> str:
        return self.dark + str(super().replace_image_token(inputs, image_idx, **options))


class Rewriting(AyaVisionProcessor):  # type: ignore[misc]
    """Takes spaces away before an image, as Idefics2 does newlines."""

    def get_text_with_replacements(self, text: Any, *given: Any, **options: Any) -> Any:
        text = [each.replace(" <image>", "<image>") for each in text]
        return super().get_text_with_replacements(text, *given, **options)


def changed(folder: Path, kind: type) -> ProcessorFiles:
    real: Any = AyaVisionProcessor.from_pretrained(folder)
    real.__class__ = kind
    return files_of(real)


@pytest.mark.parametrize(
    ("kind", "by"), [(AyaVisionProcessor, EACH), (Numbered, INDEX), (Together, TUPLE)]
)
def test_what_an_expansion_depends_on_is_found_out(folder: Path, kind: type, by: str) -> None:
    files = changed(folder, kind)
    assert probed(files).profile.kinds["image"].by == by
    rng = random.Random(2)
    for number in range(30):
        messages = tiles.conversation(rng, ["image"] * [0, 1, 3, 2, 4][number % 5], 5)
        outputs = probed(files).processor.apply_chat_template(
            messages, tokenize=True, return_dict=True
        )
        assert tiles.counted(files, messages)[0] == tiles.real_ids(outputs)


def test_images_whose_content_decides_are_refused(folder: Path) -> None:
    files = changed(folder, ByContent)
    counts = probed(files).expand("image", [MediaInfo(50, 60)])
    assert counts.errors[0].reason == "unsupported_media"
    assert "two samples whose images have the same shapes differ" in counts.errors[0].detail


def test_a_text_rewritten_around_images_is_found_in_samples(folder: Path, tmp_path: Path) -> None:
    """The probes' words stand beside images without spaces, so only whole samples show it."""
    from packidx.encode import proof

    files = changed(folder, Rewriting)
    found = proof.compare(files, [], ["text", "image"])
    assert list(found.unequal) == ["image"] and found.equal == ("text",)
    assert "tokens, the processor's" in found.unequal["image"]
    talk = Conversation((Turn("user", ("?", Media("image"))),))
    counts = ConversationCounter(files, compared=found).count([talk], [[MediaInfo(50, 60)]])
    assert counts.errors[0].reason == "not_as_counted"
    assert found.unequal["image"] in counts.errors[0].detail


def test_texts_alone_that_the_processor_does_not_build_are_rejected(folder: Path) -> None:
    talks = [Conversation((Turn("user", ("?", *media)),)) for media in ((), (Media("image"),))]
    compared = Compared("transformers", 1, equal=("image",), unequal={"text": "none is built"})
    counter = ConversationCounter(load_processor(folder), compared=compared)
    counts = counter.count(talks, [[], [MediaInfo(50, 60)]])
    assert [counts.errors[0].reason, *counts.errors] == ["not_as_counted", 0]
    assert counts.method[1] == EXACT


def test_an_image_with_alpha_is_rgb_to_a_processor_that_converts_none(folder: Path) -> None:
    """LFM2-VL and DeepSeek-VL are such: counted by its size, the image must be built, too."""
    real: Any = AyaVisionProcessor.from_pretrained(folder)
    real.image_processor.do_convert_rgb = False
    encoder = ProcessorEncoder(real)
    image = tiles.Image.new("RGBA", (70, 40), (10, 200, 30, 90))
    samples = [
        encoder({"messages": [{"role": "user", "content": "<image>?"}], "images": [each]})
        for each in (image, image.convert("RGB"))
    ]
    assert samples[0]["input_ids"].tolist() == samples[1]["input_ids"].tolist()
    assert (samples[0]["pixel_values"] == samples[1]["pixel_values"]).all()


# -- who counted, and who does not -----------------------------------------------------------------


def test_rows_say_who_counted(folder: Path, tmp_path: Path) -> None:
    """Through `estimate`: such rows are `exact`, and a folder and its object are one."""
    tiles.Image.new("RGB", (90, 50)).save(tmp_path / "a.png")
    with_image = {"messages": [{"role": "user", "content": "<image>?"}], "images": ["a.png"]}
    without = {"messages": [{"role": "user", "content": "no image"}]}
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, (with_image, without))))
    estimate_lengths(str(tmp_path / "a.jsonl"), tmp_path / "lengths", processor=folder, workers=1)
    rows = pq.read_table(next((tmp_path / "lengths").glob("part-00000*"))).to_pylist()
    assert [row["method"] for row in rows] == ["exact", "exact"]
    by, form = "media counted by probing AyaVisionProcessor", "texts given as lists of parts"
    assert [row["detail"] for row in rows] == [by, form]
    assert rows[0]["length"] > rows[0]["image_tokens"] > 4

    real = probed(load_processor(folder)).processor
    assert files_of(real).fingerprint() == load_processor(folder).fingerprint()


def test_what_was_not_compared_is_no_more_than_a_guess(folder: Path) -> None:
    talk = Conversation((Turn("user", ("?", Media("image"))),))
    counter = ConversationCounter(load_processor(folder), compared=Compared(reason="no time"))
    assert counter.count([talk], [[MediaInfo(50, 60)]]).method.tolist() == [HEURISTIC]


def test_media_that_nobody_counts(folder: Path, tmp_path: Path) -> None:
    """A folder that transformers cannot load: texts are counted, records with images are not."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = json.loads((broken / "processor_config.json").read_text())
    config["processor_class"] = "NoSuchProcessor"
    (broken / "processor_config.json").write_text(json.dumps(config))
    files = load_processor(broken)
    assert files.vision is None and "takes no media" in (files.unknown or "")
    one = Conversation((Turn("user", ("?", Media("image"))),))
    counts = ConversationCounter(files).count(
        [one, Conversation((Turn("user", ("?",)),))], [[None], []]
    )
    assert list(counts.errors) == [0] and counts.errors[0].reason == "unsupported_media"
    assert counts.length[1] > 2 and counts.method[1] == HEURISTIC  # nobody compared it
