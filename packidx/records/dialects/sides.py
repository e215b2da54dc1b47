"""One side of a preference pair as a record of its own: what was asked, and that side's answer.

The forms are those that the trainers document:

- TRL: ``chosen`` and ``rejected``, texts or turns, behind a ``prompt`` (text or turns), or whole
  conversations that hold it themselves;
- LLaMA-Factory: turns (``conversations``) and a turn each in ``chosen`` and ``rejected``; or
  ``instruction`` and ``input``, and two texts;
- ms-swift: a record whose own answer is the chosen one, and ``rejected_response``, a text in place
  of its last turn, or ``rejected_messages``, another whole conversation.

Media are those of the record, for both sides. What it states of its text is of neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.preferences import (
    BESIDE,
    has_pair,
    is_answer,
)
from packidx.records.dialects.webdataset import media_first
from packidx.records.layout import TURN_KEYS
from packidx.records.media.held import kind_of_name
from packidx.records.media.references import LIST_KEYS, OBJECT, cut, media_entries, named

_ANSWER_TO = {"prompt": "response", "instruction": "output", "question": "answer"}
_ASKING = ("user", "human", "system")
_OF_SIDES = ("chosen", "rejected", *BESIDE)
_OF_BOTH = ("_text_tokens",)  # counted by whoever knew of no sides


def take_side(record: dict[str, Any], side: str) -> dict[str, Any]:
    """The record of one side of a pair.

    Args:
        record: in the standard names; it is not changed.
        side: ``chosen`` or ``rejected``.

    Raises:
        BadRecord: ``no_pair``, the record has none, or ``bad_pair``, it cannot be understood.
    """
    if not has_pair(record):
        raise BadRecord("no_pair", _what_lacks(record))
    _refuse_own_media(record)
    if record.get("input_ids") is not None:
        raise BadRecord("bad_pair", "the record has input_ids, of which nobody says the side")
    rest = {k: v for k, v in record.items() if k not in _OF_SIDES and k not in _OF_BOTH}
    if is_answer(record.get("chosen")) and is_answer(record.get("rejected")):
        return _answered(record, rest, side)
    return rest if side == "chosen" else _instead(record, rest)


def _what_lacks(record: Mapping[str, Any]) -> str:
    has = ", ".join(sorted(record)[:20]) or "nothing"
    there = [repr(name) for name in _OF_SIDES if is_answer(record.get(name))]
    lacks = f"only {' and '.join(there)}" if there else f"{has}"
    return (
        f"the record has {lacks}, and --pair takes one side of a pair: give 'chosen' and "
        "'rejected', or 'rejected_response' beside an answer, or leave --pair out"
    )


def _refuse_own_media(record: Mapping[str, Any]) -> None:
    for kind in LIST_KEYS:
        for name in (f"rejected_{kind}s", f"rejected_{kind}", f"chosen_{kind}s", f"chosen_{kind}"):
            if record.get(name) not in (None, "", [], ()):
                text = f"{name!r} are media of one side alone, which is not supported"
                raise BadRecord("bad_pair", f"{text}: both sides have those of the record")


def _answered(record: Mapping[str, Any], rest: dict[str, Any], side: str) -> dict[str, Any]:
    """`rest` with the answer in the column of a side."""
    answer = record[side]
    if not isinstance(answer, str):
        turns = [answer] if isinstance(answer, OBJECT) else list(answer)
        if isinstance(turns[0], str):
            raise BadRecord("bad_pair", f"{side!r} is a list of texts: give one answer")
        return _with_turns(rest, turns, side)
    question = next((name for name in _ANSWER_TO if rest.get(name) is not None), None)
    if question is not None and isinstance(rest[question], str):
        return {**rest, _ANSWER_TO[question]: answer}
    if question is None and _turn_key(rest) is None:
        text = "is text without a 'prompt': give what was asked in 'prompt', or turns"
        raise BadRecord("bad_pair", f"{side!r} {text}")
    return _with_turns(rest, [{"role": "assistant", "content": answer}], side)


def _with_turns(rest: dict[str, Any], turns: list[Any], side: str) -> dict[str, Any]:
    """`rest` with the turns of a side, behind those of the prompt unless they hold it."""
    key = _turn_key(rest)
    asked = _prompt(rest) if rest.get("prompt") is not None else None if key is None else rest[key]
    kept = {name: value for name, value in rest.items() if name not in ("prompt", *TURN_KEYS)}
    if _role(turns[0]) in _ASKING:
        if asked is not None and not _is_within(asked, turns):
            text = f"holds a whole conversation, which does not begin with {_name(rest)}"
            raise BadRecord("bad_pair", f"{side!r} {text}: leave one of the two out")
        return media_first({**kept, "messages": turns})
    if not isinstance(asked, list | tuple) or not asked:
        text = "is an answer, and nothing says what was asked: give a 'prompt'"
        raise BadRecord("bad_pair", f"{side!r} {text}")
    if _role(asked[-1]) not in (*_ASKING, "tool", "observation", "function_response"):
        text = f"{_name(rest)} ends with an answer, before that in {side!r}"
        raise BadRecord("bad_pair", f"{text}: end it with what was asked")
    return media_first({**kept, "messages": [*asked, *turns]})


def _instead(record: Mapping[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """`rest` with the rejected answer that stands beside its own."""
    whole, answer = record.get("rejected_messages"), record.get("rejected_response")
    key = _turn_key(rest)
    if is_answer(whole) and is_answer(answer):
        raise BadRecord("bad_pair", f"the record has both {' and '.join(map(repr, BESIDE))}")
    if is_answer(whole):
        turns = [whole] if isinstance(whole, OBJECT) else whole
        return {**{k: v for k, v in rest.items() if k != key}, "messages": turns}
    if not isinstance(answer, str):
        text = f"'rejected_response' is {named(answer)}, not one text"
        raise BadRecord("bad_pair", f"{text}: a pair has one answer to avoid")
    if key is None:
        return {**rest, "response": answer}
    turns = rest[key]
    if not isinstance(turns, list | tuple) or not turns or _role(turns[-1]) in (None, *_ASKING):
        text = f"the last turn of {key!r} is no answer that 'rejected_response' could stand for"
        raise BadRecord("bad_pair", text)
    return {**rest, key: [*turns[:-1], {"role": "assistant", "content": answer}]}


def _prompt(rest: Mapping[str, Any]) -> list[Any]:
    prompt = rest["prompt"]
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    turns = [prompt] if isinstance(prompt, OBJECT) else prompt
    if not is_answer(turns) or isinstance(turns[0], str):
        raise BadRecord("bad_pair", f"'prompt' is {named(prompt)}, neither text nor turns")
    return list(turns)


def _is_within(asked: Any, turns: list[Any]) -> bool:
    """Whether a conversation begins with what was asked, a system turn before it or not; or is
    what the record has as its own turns."""
    said = [_said(turn) for turn in turns]
    first = [_said(turn) for turn in asked] if isinstance(asked, list | tuple) else [None]
    begins = [said[at : at + len(first)] for at in (0, 1)]
    if first in begins:
        return True
    return first[:-1] == said[: len(first) - 1] and len(first) == len(said)


def _said(turn: Any) -> tuple[Any, Any]:
    """A turn's role and what it says."""
    if not isinstance(turn, OBJECT):
        return None, turn
    role = _role(turn)
    return "user" if role == "human" else role, turn.get("content", turn.get("value"))


def _role(turn: Any) -> Any:
    return turn.get("role", turn.get("from")) if isinstance(turn, OBJECT) else None


def _turn_key(record: Mapping[str, Any]) -> str | None:
    return next((key for key in TURN_KEYS if record.get(key) is not None), None)


def _name(rest: Mapping[str, Any]) -> str:
    return repr("prompt" if rest.get("prompt") is not None else _turn_key(rest))


TEXTS = "texts"

_FILES = ("media_files", "name")
_KINDS = ("media_type", "media")


def with_texts(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with messages and media in the standard names; itself if it is another's.

    Where its texts have no placeholder for its media, these stand before the first question.

    Raises:
        BadRecord: ``no_messages``, ``bad_turn`` or ``bad_media``.
    """
    if not is_texts(record):
        return record
    texts = record[TEXTS]
    kept = {k: v for k, v in record.items() if k not in (TEXTS, *_FILES, *_KINDS)}
    kept["messages"] = texts if isinstance(texts, list) else _messages(texts)
    stated = stated_type(record)
    return media_first({**kept, **_media(kept, _files(record, stated), stated)})


def is_texts(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this dialect."""
    return record.get(TEXTS) is not None and all(record.get(key) is None for key in TURN_KEYS)


def stated_type(record: Mapping[str, Any]) -> Any:
    """What a record of this dialect says of the kind of its media; None where it does not."""
    return next((record[key] for key in _KINDS if record.get(key) is not None), None)


def _files(record: dict[str, Any], stated: Any) -> list[Any]:
    names = _FILES if stated is not None else _FILES[:1]  # else a name is just a name
    return list(_flat(next((record[n] for n in names if record.get(n) is not None), [])))


def _media(record: dict[str, Any], files: list[Any], stated: Any) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for file in files:
        kind = _kind(file, stated)
        if (own := media_entries(record, kind)[0]) is not None:
            raise BadRecord("bad_media", f"the record has {own!r} beside the files of its texts")
        lists.setdefault(LIST_KEYS[kind][0], []).append(file)
    return lists


def _messages(texts: Any) -> list[dict[str, str]]:
    if not isinstance(texts, dict) or texts.get("captions") is None:
        text = f"'texts' is {named(texts)}, neither a list of turns nor prompts and captions"
        raise BadRecord("no_messages", text)
    captions = list(_flat(texts["captions"]))
    prompts = list(_flat(texts.get("prompts") or [""] * len(captions)))
    if len(prompts) != len(captions):
        raise BadRecord("bad_turn", f"'texts' has {len(prompts)} prompts, {len(captions)} captions")
    if not captions:
        raise BadRecord("no_messages", "'texts' is empty")
    messages = []
    for prompt, caption in zip(prompts, captions, strict=True):
        for role, text in (("user", prompt), ("assistant", caption)):
            if not isinstance(text, str):
                raise BadRecord("bad_turn", f"'texts' has {cut(text)} where a text must be")
            messages.append({"role": role, "content": text})
    return messages


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(value, list) or depth == 8:
        yield value
        return
    for item in value:
        yield from _flat(item, depth + 1)


def _kind(file: Any, stated: Any) -> str:
    if not isinstance(file, str):
        raise BadRecord("bad_media", f"a name of a medium is {named(file)}, not text")
    own = kind_of_name(file)
    stated = stated if isinstance(stated, str) else None
    kind = stated if stated in LIST_KEYS else own
    others = {"image": ("video", "audio"), "video": ("audio",), "audio": ("image",)}
    if stated == "text" or own in others.get(stated, ()):
        text = f"media_type says {stated}, but {cut(file)} is among the files of the texts"
        raise BadRecord("bad_media", text)
    if kind is None:
        text = f"{cut(file)} is of no known kind: neither media_type nor its ending says which"
        raise BadRecord("bad_media", text)
    return str(kind)
