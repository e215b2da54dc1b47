"""A conversation as a sample of LoongForge's packed JSON: questions, answers, and what neither is.

``texts`` knows pairs of a question and its answer alone (`records.texts` reads it back). So every
conversation gives pairs that hold all its words in order; one that is more than such pairs (a
system turn, tools, a turn that is not trained on, tokens) is kept beside them as messages, of which
`dialects.parse` makes the same conversation again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from packidx.records.conversation import Conversation, Media, Turn, content_of, to_record

Names = list[str | list[str]]
"""Member names of a sample's media, in order of appearance; of a video's frames a list."""


def pairs_of(conversation: Conversation) -> list[tuple[str, str]]:
    """All words of a conversation as (question, answer), media as ``<image>`` and the like.

    Turns before an answer that are not the assistant's are joined by newlines; where either side of
    a pair is missing it is empty. Tool calls stand as JSON after what their turn says.
    """
    pairs: list[tuple[str, str]] = []
    asked: list[str] = []
    for turn in conversation.turns:
        if turn.role == "assistant":
            pairs.append(("\n".join(asked), "\n".join(_said(turn))))
            asked = []
        else:
            asked += _said(turn)
    if asked:
        pairs.append(("\n".join(asked), ""))
    return pairs


def is_pairs(conversation: Conversation) -> bool:
    """Whether `pairs_of` says all of a conversation: `records.texts` would read the same one.

    Sizes and token counts that a record states of its media are hints, and no part of what is said;
    which frames of a video are meant is.
    """
    turns = conversation.turns
    if conversation.input_ids is not None or conversation.tools is not None:
        return False
    if not turns or len(turns) % 2:
        return False
    roles = ("user", "assistant") * (len(turns) // 2)
    return (
        all(
            turn.role == role and turn.train is None and not _extra(turn) and not _has_seams(turn)
            for turn, role in zip(turns, roles, strict=True)
        )
        and not any(turn.text_as_list for turn in turns)
        and not conversation.has_literal
        and not any(_has_frames(medium) for medium in conversation.media)
    )


def messages_of(conversation: Conversation, names: Names) -> dict[str, Any]:
    """A conversation as a record of OpenAI's dialect, or of tokens, its media by their `names`."""
    left = iter(names)
    return to_record(conversation, lambda turn: _message(turn, left))


def _said(turn: Turn) -> list[str]:
    text = "".join(part if isinstance(part, str) else f"<{part.kind}>" for part in turn.parts)
    calls = turn.extra.get("tool_calls")
    # What is no JSON has no words either: who writes the record's messages refuses it.
    called = orjson.dumps(calls, default=str).decode() if calls else None
    return [words for words in (text, called) if words] or [""]


def _extra(turn: Turn) -> dict[str, Any]:
    """A turn's other keys; null says nothing but of content, and columns of a table have it in all
    rows."""
    return {
        key: value for key, value in turn.extra.items() if value is not None or key == "content"
    }


def _has_seams(turn: Turn) -> bool:
    """Whether two pieces of text meet, or one is empty: in one text, nobody would see where."""
    pieces = [isinstance(part, str) for part in turn.parts]
    met = any(piece and following for piece, following in zip(pieces, pieces[1:], strict=False))
    return met or "" in turn.parts


def _has_frames(medium: Media) -> bool:
    stated = (medium.num_frames, medium.fps, medium.frame_indices)
    return isinstance(medium.ref, list | tuple) or any(value is not None for value in stated)


def _message(turn: Turn, names: Iterator[str | list[str]]) -> dict[str, Any]:
    content = content_of(turn, lambda medium: _named(medium, next(names)))
    message = {"role": turn.role, "content": content, **_extra(turn)}
    return message if turn.train is None else {**message, "train": turn.train}


def _named(medium: Media, name: str | list[str]) -> dict[str, Any]:
    facts = {
        "height": medium.height,
        "width": medium.width,
        "n_tokens": medium.tokens,
        "num_frames": medium.num_frames,
        "fps": medium.fps,
        "frame_indices": medium.frame_indices,
        "num_samples": medium.num_samples,
        "sampling_rate": medium.sampling_rate,
    }
    stated = {key: value for key, value in facts.items() if value is not None}
    return {"type": medium.kind, medium.kind: name, **stated}
