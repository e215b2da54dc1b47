"""Random conversations with media, put to packidx and to a real processor, and what differs."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packidx.encode import ProcessorEncoder
from packidx.encode.loading import load_processor
from packidx.format.schema import METHODS
from packidx.processor.counter import ConversationCounter
from packidx.processor.counts import Counts
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn, to_messages
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE

CLEAN = [
    "\n",
    "  ",
    "\n\nDescribe it.\n",
    " what?",
    "漢字 한글 العربية",
    "👩‍👩‍👧 naïve é",
    "x = 1;\n",
]


def words(rng: random.Random) -> str:
    """Text that often begins and ends with white space, and sometimes is quite strange."""
    if rng.random() < 0.3:
        return text(rng)
    return "".join(rng.choices(CLEAN, k=rng.randrange(1, 4)))


def answer(rng: random.Random) -> str:
    """Text with white space around it, and nothing in it that templates cut it at."""
    return rng.choice(CLEAN) + rng.choice(["Yes, 2 of them.", "はい", "No"]) + rng.choice(CLEAN)


def picture(rng: random.Random, sizes: Sequence[tuple[int, int]]) -> Image.Image:
    """An image of one of `sizes` (width, height), or of up to 300 x 300 pixels."""
    size = rng.choice([*sizes, (rng.randrange(1, 300), rng.randrange(1, 300))])
    return Image.new("RGB", size, rng.randrange(1 << 24)).convert(rng.choice(MODES))


def clip(rng: random.Random, frames: Sequence[int]) -> Media:
    """A video as an array of frames."""
    shape = rng.choice(frames), rng.randrange(16, 90), rng.randrange(16, 90), 3
    array = np.full(shape, rng.randrange(256), np.uint8)
    return Media("video", array, {"fps": rng.choice([2.0, 10.0, 24.0, 29.97, 30000 / 1001])})


def conversation(
    rng: random.Random,
    sizes: Sequence[tuple[int, int]],
    frames: Sequence[int] = (),
    share: float = 0.5,
) -> Conversation:
    """One to three questions and answers; media in `share` of the questions.

    Args:
        sizes: (width, height) of images to try besides random ones.
        frames: numbers of frames of videos to try; none for no video. At most one video a
            conversation, as batches of videos must have equal shapes.
    """
    turns = [Turn("system", (words(rng),))] if rng.random() < 0.3 else []
    has_video = bool(frames) and rng.random() < 0.5
    for number in range(rng.randrange(1, 4)):
        parts: list[str | Media] = [words(rng)] if rng.random() < 0.8 else []
        if rng.random() < share:
            parts += [Media("image", picture(rng, sizes)) for _ in range(rng.choice([1, 1, 2]))]
        if has_video and number == 0:
            parts.append(clip(rng, frames))
        parts += [words(rng)] if rng.random() < 0.8 else []
        rng.shuffle(parts)
        turns.append(Turn("user", tuple(parts) or (words(rng),)))
        turns.append(Turn("assistant", (answer(rng),)))
    return Conversation(tuple(turns))


def info_of(medium: Media) -> MediaInfo:
    """Size and length of an opened medium, or of a video file."""
    if isinstance(medium.ref, str):
        return media_info(medium, ANYWHERE)
    if medium.kind == "image":
        return MediaInfo(medium.ref.height, medium.ref.width)
    num, height, width = medium.ref.shape[:3]
    return MediaInfo(height, width, num_frames=num, fps=medium.stated.get("fps"))


def messages_of(talk: Conversation, lists: bool = False) -> list[dict[str, Any]]:
    """The messages that transformers is given: content as text, or a list with opened media.

    Args:
        lists: text alone is a list, too, as some templates need it.
    """
    messages = to_messages(talk)
    for turn, message in zip(talk.turns, messages, strict=True):
        if lists and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        if isinstance(message["content"], list):
            for part, given in zip(turn.parts, message["content"], strict=True):
                if isinstance(part, Media):
                    given[part.kind] = part.ref
    return messages


def processor_options(processor: Any, **options: Any) -> dict[str, Any]:
    """`options` of the processor's call, as its `apply_chat_template` takes them.

    Older releases take them beside the arguments of the template.
    """
    named = inspect.signature(processor.apply_chat_template).parameters
    return {"processor_kwargs": options} if "processor_kwargs" in named else options


def run_processor(processor: Any, talk: Conversation, lists: bool = False, **options: Any) -> Any:
    """What the real processor makes of it; videos come with what a decoder knows of them.

    Args:
        lists: of `messages_of`.
        options: of the processor's call; only for conversations with videos.
    """
    videos = [medium for medium in talk.media if medium.kind == "video"]
    metadata = [
        {
            "total_num_frames": len(video.ref),
            "fps": video.stated["fps"],
            "duration": len(video.ref) / video.stated["fps"],
            "frames_indices": list(range(len(video.ref))),
        }
        for video in videos
        if "fps" in video.stated
    ]
    options |= {"video_metadata": metadata} if metadata else {}
    given = processor_options(processor, **options) if videos else {}
    return processor.apply_chat_template(
        messages_of(talk, lists), tokenize=True, return_dict=True, return_tensors="pt", **given
    )


def count(folder: Path, talks: Sequence[Conversation]) -> Counts:
    """Packidx's counts of them."""
    infos = [[info_of(medium) for medium in talk.media] for talk in talks]
    counts = ConversationCounter(load_processor(folder)).count(talks, infos)
    assert not {number: str(error) for number, error in counts.errors.items()}
    assert set(counts.method.tolist()) == {METHODS.index("exact")}
    return counts


def counted(counter: ConversationCounter, talk: Conversation) -> tuple[list[int], Counts]:
    """Token ids of a conversation as packidx counts them, and its counts."""
    counts = counter.count([talk], [[info_of(medium) for medium in talk.media]])
    for error in counts.errors.values():
        raise error
    ids: list[int] = counter.tokens_of(talk, counts.media).ids.tolist()
    assert counts.length[0] == len(ids)
    return ids, counts


def media_differences(ids: list[int], feature_ids: set[int], counts: Counts, number: int) -> int:
    """Media of sample `number` whose first or last token is not where the real ids have it."""
    wrong = 0
    for medium in range(*counts.media.offsets[number : number + 2].tolist()):
        first = int(counts.media.at[medium])
        last = first + int(counts.media.tokens[medium]) - 1
        inside = ids[first] in feature_ids and ids[last] in feature_ids
        outside = ids[first - 1] not in feature_ids and ids[last + 1] not in feature_ids
        wrong += not (inside and outside)
    return wrong


def compare(
    name: str,
    folder: Path,
    processor: Any,
    talks: Sequence[Conversation],
    rows: Callable[..., int],
    lists: bool = False,
) -> dict[str, int]:
    """How often packidx and the real processor differ on `talks`, by what differs.

    Args:
        rows: what the real processor returned → patches in its pixels.
        lists: of `messages_of`.
    """
    counts = count(folder, talks)
    files = load_processor(folder)
    counter = ConversationCounter(files)
    assert files.family == name
    found = {"ids": 0, "patches": 0, "media": 0}
    for number, talk in enumerate(talks):
        real = run_processor(processor, talk, lists)
        ids = real["input_ids"][0].tolist()
        found["ids"] += ids != counted(counter, talk)[0] or len(ids) != counts.length[number]
        found["patches"] += rows(real) != counts.vision_patches[number]
        found["media"] += media_differences(ids, set(files.feature_ids), counts, number)
    return found


def encoder_differences(
    folder: Path,
    processor: Any,
    talks: Sequence[Conversation],
    names: Sequence[str],
    lists: bool = False,
) -> int:
    """How many of `talks` the encoder turns into other tensors than the real processor.

    Videos are given to the encoder as lists of frames, of which it takes all.

    Args:
        names: of the tensors; those that a conversation has are compared.
        lists: the real processor is given text alone as a list, as its template needs it.
    """
    encoder = ProcessorEncoder(str(folder))
    wrong = 0
    for talk in talks:
        real = run_processor(processor, talk, lists, do_sample_frames=False)
        messages = messages_of(talk)
        for part in (part for one in messages for part in one["content"]):
            if isinstance(part, dict) and part["type"] == "video":
                part["fps"] = next(one.stated["fps"] for one in talk.media if one.kind == "video")
                part["video"] = [Image.fromarray(frame) for frame in part["video"]]
        found = encoder({"messages": messages})
        same = found["input_ids"].equal(real["input_ids"][0])
        for name in names:
            same &= (name in found) == (name in real)
            same &= name not in found or found[name].equal(real[name])
        wrong += not same
    return wrong


WORDS = [
    *("the", " cat", "Hello", " world", "12345", "it's", "ÀÉ", "e\u0301", "\u0344", "naïve", "ﬁ"),
    *("漢字", "한글", "\u1100\u1161\u11a8", "العربية", "हिन्दी", "👩‍👩‍👧", "🇩🇪", "🙂"),
    *("\ufeff", "\u200d"),
    *(" ", "  ", "\t", "\n", "\n\n", "\r\n", "   \n  ", "\u3000", "\xa0", "\x00", "…", "{{ x }}"),
    *("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<think>", "</think>"),
    *("<|im_end", "|>", "<|box_start|>", "\ue0b00\ue0b1", "\ue0b2", "\ue0b3", "# Tools", "%}"),
]
SIZES = [(1, 1), (1, 200), (200, 1), (13, 17), (28, 28), (56, 56), (57, 99), (224, 224), (333, 97)]
MODES = ["RGB", "L", "RGBA", "P", "LA", "1", "CMYK"]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randrange(1, 12)))


def image(rng: random.Random, largest: int = 400) -> Image.Image:
    size = rng.choice([*SIZES, (rng.randrange(2, largest), rng.randrange(2, largest))])
    mode = rng.choice(MODES)
    picture = Image.frombytes("L", size, rng.randbytes(size[0] * size[1]))
    return picture.convert("RGB").convert(mode)


def content(rng: random.Random, images: bool) -> str | list[dict[str, Any]]:
    if not images or rng.random() < 0.4:
        return rng.choice([text(rng), text(rng), text(rng), ""])
    parts: list[dict[str, Any]] = []
    for _ in range(rng.randrange(1, 5)):
        parts.append({"type": "text", "text": text(rng)})
        if rng.random() < 0.6:
            parts.append({"type": "image", "image": image(rng)})
    rng.shuffle(parts)
    return parts


def record(rng: random.Random, *, images: bool = True, late_system: bool = True) -> dict[str, Any]:
    """An OpenAI-style record, images opened; roles in any order, with system turns in between."""
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": content(rng, False)})
    for _ in range(rng.randrange(1, 5)):
        role = rng.choice(["user", "user", "tool", "assistant"])
        messages.append({"role": role, "content": content(rng, images and role != "assistant")})
        messages.append({"role": "assistant", "content": content(rng, False)})
        if rng.random() < 0.1 and late_system:
            messages.append({"role": "system", "content": text(rng)})
    return {"messages": messages}
