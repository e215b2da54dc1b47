"""What no sample can be counted of, in words; and what ends a document, where there is such."""

from __future__ import annotations

from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
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


def refuse_size(height: int, width: int) -> BadRecord:
    """Why an image of this size, in pixels, becomes no token."""
    if height <= 0 or width <= 0:
        return no_pixels(height, width)
    return BadRecord(
        "aspect_ratio", f"an image of {width}x{height} pixels: one side is over 200 times the other"
    )
