"""How long a sample is that the real processor builds, given what a trainer gives it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import decode
from PIL import Image
from transformers.video_utils import VideoMetadata

from packidx.processor.assemble import ProcessorFiles
from packidx.records.media.clips import Audio
from packidx.records.read import parse_record


def real_length(processor: Any, files: ProcessorFiles, record: dict[str, Any]) -> int | None:
    """Tokens that the real processor makes of a record, or None where it builds none.

    It is given text alone as its template reads it: as a string, or as a list.
    """
    talk = parse_record(record)
    assert files.template is not None
    messages = files.template.messages(talk)
    opened = Opened(processor)
    remaining = iter(talk.media)
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] != "text":
                medium = next(remaining)
                part[medium.kind] = opened.add(medium.kind, medium.ref)
    for built in _attempts(processor, messages, opened):
        if built is not None:
            return int(built["input_ids"].shape[-1])
    return None


class Opened:
    """A record's media as a processor takes them: whole videos, of which it samples frames."""

    def __init__(self, processor: Any) -> None:
        part = getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))
        self._rate = getattr(part, "sampling_rate", 16000)
        self.media: dict[str, list[Any]] = {}
        self.options: dict[str, Any] = {}

    def add(self, kind: str, path: str) -> Any:
        if kind == "image":
            opened: Any = Image.open(path).convert("RGB")
        elif kind == "audio":
            opened = waveform(path, self._rate).copy()
        else:
            frames, metadata = video(path)
            opened, metadata = frames.clone(), copy.deepcopy(metadata)
            self.options.setdefault("video_metadata", []).append(metadata)
        self.media.setdefault({"image": "images", "video": "videos"}.get(kind, kind), []).append(
            opened
        )
        return opened


@lru_cache
def waveform(path: str, rate: int) -> Any:
    """A file's samples at a rate; every class gets the same files."""
    return Audio(path).waveform(rate)


@lru_cache
def video(path: str) -> tuple[Any, Any]:
    """A file's frames, and what is known of them."""
    frames = decode(Path(path))
    with av.open(path) as container:
        fps = float(container.streams.video[0].average_rate)
    metadata = VideoMetadata(
        total_num_frames=len(frames),
        fps=fps,
        duration=len(frames) / fps,
        height=frames.shape[1],
        width=frames.shape[2],
        frames_indices=list(range(len(frames))),
    )
    return torch.from_numpy(frames).permute(0, 3, 1, 2), metadata


def _attempts(processor: Any, messages: Any, opened: Opened) -> Iterator[Any]:
    """What the processor builds by its template, or else called with the media in two forms."""
    options = {"return_tensors": "pt"}
    further = [opened.options, {**opened.options, "return_metadata": True}]
    for own in further if opened.options else [{}]:
        asked = {"processor_kwargs": copy.deepcopy(own)} if own else {}
        yield _tried(
            processor.apply_chat_template,
            messages,
            tokenize=True,
            return_dict=True,
            **asked,
            **options,
        )
    written = _tried(processor.apply_chat_template, messages, tokenize=False)
    if written is None:
        return
    nested = {name: [media] for name, media in opened.media.items()}
    for given in (opened.media, nested) if nested else ({},):
        yield _tried(processor, text=written, **given, **copy.deepcopy(opened.options), **options)


def _tried(call: Any, *given: Any, **options: Any) -> Any:
    try:
        return call(*given, **options)
    except Exception:  # a foreign class: whatever it raises, nothing was built
        return None
