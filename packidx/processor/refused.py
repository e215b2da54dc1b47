"""What no sample can be counted of, in words; and what ends a document, where there is such."""

from __future__ import annotations

import itertools

import numpy as np

from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import KINDS, MediaColumns
from packidx.processor.families import VisionFamily
from packidx.processor.families.base import no_pixels
from packidx.processor.text.sequence import Ending
from packidx.records.conversation import Conversation


def ending_of(files: ProcessorFiles, document: Conversation) -> Ending:
    """What ends a document.

    Raises:
        BadRecord: ``no_eos_token``.
    """
    if files.end_of_text is None:
        text = "has no eos_token, with which a document must end: state it in"
        raise BadRecord("no_eos_token", f"{files.name} {text} its tokenizer_config.json")
    policy = files.policy
    return Ending(files.end_of_text, policy.end_of_turn and any(policy.trains(document.turns)))


def media_token_in_text() -> BadRecord:
    """Why a text with feature tokens of its own is refused."""
    text = "a text holds a token that stands for media: remove or escape it"
    return BadRecord("media_token_in_text", text)


def cut_off(files: ProcessorFiles, tokens: int) -> BadRecord:
    """Why a sample is refused that the real processor would cut."""
    where = "take max_length and truncation out of its tokenizer_config.json and tokenizer.json"
    text = f"{tokens} tokens, of which {files.name} leaves {files.limit}: {where}"
    return BadRecord("cut_off", text)


def not_together(name: str, vision: VisionFamily, media: MediaColumns) -> dict[int, BadRecord]:
    """Why media that each can be used cannot be in one sample of processor `name`, by number."""
    errors = {}
    owners = media.owners
    mixed = media.mixed() if vision.one_kind_per_sample else {}
    for number, owner in enumerate(owners.tolist() if mixed else ()):
        if owner in mixed:
            text = f"{name} cannot encode images and videos of one sample together"
            errors[number] = BadRecord("unsupported_media", text)
    if vision.same_num_frames:
        videos = np.flatnonzero((media.kind == KINDS.index("video")) & (media.grid[:, 0] > 0))
        for last, number in itertools.pairwise(videos.tolist()):
            frames = media.grid[[last, number], 0].tolist()
            if owners[last] == owners[number] and frames[0] != frames[1]:
                text = f"{name} takes equally many frames of all videos of a sample, not "
                text += f"{frames[0]} and {frames[1]}: name as many of each in frame_indices"
                errors[number] = BadRecord("unsupported_media", text)
    return errors


def refuse_size(height: int, width: int) -> BadRecord:
    """Why an image of this size, in pixels, becomes no token."""
    if height <= 0 or width <= 0:
        return no_pixels(height, width)
    return BadRecord(
        "aspect_ratio", f"an image of {width}x{height} pixels: one side is over 200 times the other"
    )
