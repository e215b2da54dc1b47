"""Preference pairs: one side as a record of its own, what was asked and that side's answer.

The forms are those that the trainers document:

- TRL: ``chosen`` and ``rejected``, texts or messages, behind a ``prompt`` (text or messages), or
  whole conversations that begin with it;
- LLaMA-Factory: messages (``conversations``) and a message each in ``chosen`` and ``rejected``; or
  ``instruction`` and ``input``, and two texts;
- ms-swift: a record whose own answer is the chosen one, and ``rejected_response``, a text in place
  of its last message, or ``rejected_messages``, another whole conversation.

Both sides have the record's media; what it states of its text is dropped. Without a side such
records are refused, and so are answers with a verdict (``label`` of TRL and ms-swift, ``kto_tag``
of LLaMA-Factory): counted as they stand, they train on nothing, or on the answer to avoid.

Example: of ``{"prompt": "Which?", "chosen": "This.", "rejected": "That."}`` the side ``rejected``
is ``{"prompt": "Which?", "response": "That."}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import standard_message
from packidx.records.dialects.qa import is_blank, is_same, meaning_of
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media.held import texts_of
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    TURN_KEYS,
    content_of,
    cut,
    named,
    role_of,
    turn_key,
)

BESIDE = ("rejected_response", "rejected_messages")
"""Columns of an answer to avoid, beside a record that has the other one as its own."""
_WORDS = {"true": True, "false": False}
_ANSWER_TO = {"prompt": "response", "instruction": "output", "question": "answer"}
_ASKING = ("user", "human", "system")
_OF_TOOLS = ("tool", "observation", "function_response", "tool_response")
_SIDES = ("chosen", "rejected")
_OF_SIDES = (*_SIDES, *BESIDE)
_MESSAGES = ("prompt", "chosen", "rejected", "rejected_messages")  # or text
_SIGNS = frozenset(("rejected", "kto_tag", "label", *BESIDE))
_TAKE_ONE = "take one side, --pair chosen"
_WITHOUT = "keep the records to train on, without it"


class Preference:
    """Pairs and verdicts, which need to know the answer to train on: they are refused."""

    name = "preference"
    columns: frozenset[str] = frozenset()

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`; only records without a pair or a verdict are passed on."""
        record = raw.columns
        if _SIGNS.isdisjoint(record):
            return None
        has = {
            name
            for name in (*_OF_SIDES, "response", "prompt", "completion")
            if is_answer(record.get(name))
        }
        label, beside = record.get("label"), next((name for name in BESIDE if name in has), None)
        if {"chosen", "rejected"} <= has:
            what, cure = "a pair of answers in 'chosen' and 'rejected'", _TAKE_ONE
        elif {"rejected", "response"} <= has and any(is_answer(record.get(k)) for k in TURN_KEYS):
            what = "an answer and one to avoid, in 'rejected', beside turns that hold neither"
            cure = "put the answer behind the turns in the file, and leave 'rejected' out"
        elif beside is not None:
            what, cure = f"an answer to avoid in {beside!r}", _TAKE_ONE
        elif _verdict(record.get("kto_tag")) is not None:
            what, cure = "a verdict on its answer in 'kto_tag'", _WITHOUT
        elif {"prompt", "completion"} <= has and _verdict(label) is not None:
            what, cure = "a verdict on its 'completion' in 'label'", _WITHOUT
        elif _verdict(label) is False and type(label) is not int:
            what = "the verdict false on its answer in 'label' (ms-swift's KTO)"
            cure = "leave the record out, or, where 'label' says something else, that column"
        else:
            return None
        text = f"the record has {what}, and a pack needs to know which answer to train on: {cure}"
        raise BadRecord("preference_data", text)


def take_side(columns: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return the columns of one side of a pair, messages with the standard keys and roles.

    Args:
        columns: by their standard names; they are not changed.

    Raises:
        BadRecord: ``no_pair``, the record has none, or ``bad_pair``, it cannot be understood.
    """
    record, side = _standard(columns, layout), str(layout.pair)
    has_both = is_answer(record.get("chosen")) and is_answer(record.get("rejected"))
    beside = [name for name in BESIDE if is_answer(record.get(name))]
    if not (has_both or beside):
        has = [repr(name) for name in _OF_SIDES if is_answer(record.get(name))]
        lacks = f"only {' and '.join(has)}" if has else ", ".join(sorted(record)[:20]) or "nothing"
        text = f"the record has {lacks}, and --pair takes one side of a pair: give 'chosen' and"
        raise BadRecord("no_pair", f"{text} 'rejected', or 'rejected_response' beside an answer")
    for name in (f"{word}_{kind}{s}" for word in _SIDES for kind in LIST_KEYS for s in ("s", "")):
        if record.get(name) not in (None, "", [], ()):
            text = f"{name!r} are media of one side alone, which is not supported"
            raise BadRecord("bad_pair", f"{text}: both sides have those of the record")
    if record.get("input_ids") is not None:
        raise BadRecord("bad_pair", "the record has input_ids, and they name no side")
    rest = {k: v for k, v in record.items() if k not in _OF_SIDES and k != "_text_tokens"}
    own = _own_answers(record, rest)
    if side == "chosen" and not has_both:
        return rest
    rest = {name: value for name, value in rest.items() if name not in own}
    if has_both:
        return _answered(rest, record[side], side)
    if len(beside) > 1:
        raise BadRecord("bad_pair", f"the record has both {' and '.join(map(repr, BESIDE))}")
    answer, key = record[beside[0]], turn_key(rest)
    if "rejected_messages" in beside:
        turns = [answer] if isinstance(answer, OBJECT) else answer
        return {**{k: v for k, v in rest.items() if k != key}, "messages": turns}
    if not isinstance(answer, str):
        text = f"'rejected_response' is {named(answer)}, not one text"
        raise BadRecord("bad_pair", f"{text}: a pair has one answer to avoid")
    if key is None:
        return {**rest, "response": answer}
    turns = rest[key]
    if not isinstance(turns, list | tuple) or not turns or role_of(turns[-1]) in (None, *_ASKING):
        text = f"the last turn of {key!r} is not an answer that 'rejected_response' could stand for"
        raise BadRecord("bad_pair", text)
    return {**rest, key: [*turns[:-1], {"role": "assistant", "content": answer}]}


def _standard(columns: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return columns with standard messages; JSON of messages in text is decoded."""
    changed: dict[str, Any] = {}
    for name in (turn_key(columns), *_MESSAGES):
        value = None if name is None else columns.get(name)
        if name in _MESSAGES and isinstance(value, str) and value[:1] in ("[", "{"):
            try:
                decoded = orjson.loads(value)
            except ValueError:
                continue  # a text that begins with a bracket
            listed = decoded if isinstance(decoded, list) else [decoded]
            messages = [standard_message(each, layout) for each in listed]
            if not messages or any(role_of(each) is None for each in messages):
                continue
            value = decoded
        if isinstance(value, list | tuple):
            changed[str(name)] = [standard_message(each, layout) for each in value]
        elif isinstance(value, dict):
            changed[str(name)] = standard_message(value, layout)
    return {**columns, **changed}


def _verdict(value: Any) -> bool | None:
    """Return True for a good answer, as JSON, numbers and the cells of tables say it."""
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def is_answer(value: Any) -> bool:
    """Return True for text, a message or messages: no flag, number or empty cell."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, (str, *OBJECT)) for item in value)
    return bool(value) and isinstance(value, (str, *OBJECT))


def _own_answers(record: Mapping[str, Any], rest: Mapping[str, Any]) -> Collection[str]:
    """Return the columns of a record's own answer, which is the chosen one.

    Raises:
        BadRecord: ``bad_pair``, two of them differ.
    """
    own = {name: value for name, value in rest.items() if meaning_of(name) == "another answer"}
    stated = {name: value for name, value in own.items() if not is_blank(value)}
    chosen, key = record.get("chosen"), turn_key(rest)
    if not is_answer(chosen):
        chosen = next(iter(stated.values()), None) if key is None else rest[key]
    last = chosen[-1] if isinstance(chosen, list | tuple) and chosen else chosen
    said = "".join(texts_of(content_of(last) if isinstance(last, OBJECT) else last))
    for name, value in stated.items():
        others = texts_of(value)
        if others and not any(is_same(text, said) for text in others):
            text = f"{name!r} is {cut(value)}, and the chosen answer is {cut(said)}"
            raise BadRecord("bad_pair", f"{text}: --ignore {name} leaves one out")
    return own.keys()


def _answered(rest: dict[str, Any], answer: Any, side: str) -> dict[str, Any]:
    """Return `rest` with the answer of a side: beside its question, or behind its messages.

    Messages of a side that begin with those of the user are the whole conversation.
    """
    key = turn_key(rest)
    if isinstance(answer, str):
        question = next((name for name in _ANSWER_TO if rest.get(name) is not None), None)
        if question is not None and isinstance(rest[question], str):
            if key is not None:
                text = f"the record has both {question!r} and {key!r} before {side!r}"
                raise BadRecord("bad_pair", f"{text}: leave one of the two out")
            return {**rest, _ANSWER_TO[question]: answer}
        if question is None and key is None:
            text = "is text without a 'prompt': give what was asked in 'prompt', or turns"
            raise BadRecord("bad_pair", f"{side!r} {text}")
        answer = {"role": "assistant", "content": answer}
    turns = [answer] if isinstance(answer, OBJECT) else list(answer)
    if isinstance(turns[0], str):
        raise BadRecord("bad_pair", f"{side!r} is a list of texts: give one answer")
    asked, name = None if key is None else rest[key], key
    if (prompt := rest.get("prompt")) is not None:
        name, asked = "prompt", [prompt] if isinstance(prompt, OBJECT) else prompt
        if isinstance(prompt, str):
            asked = [{"role": "user", "content": prompt}]
        elif not is_answer(asked) or isinstance(asked[0], str):
            raise BadRecord("bad_pair", f"'prompt' is {named(prompt)}, neither text nor turns")
    kept = {name: value for name, value in rest.items() if name not in ("prompt", *TURN_KEYS)}
    if role_of(turns[0]) in _ASKING:
        if asked is not None and not _is_within(asked, turns):
            text = f"holds a whole conversation, which does not begin with {name!r}"
            raise BadRecord("bad_pair", f"{side!r} {text}: leave one of the two out")
        return {**kept, "messages": turns}
    if not isinstance(asked, list | tuple) or not asked:
        text = "is an answer, and nothing says what was asked: give a 'prompt'"
        raise BadRecord("bad_pair", f"{side!r} {text}")
    if role_of(asked[-1]) not in (*_ASKING, *_OF_TOOLS):
        text = f"{name!r} ends with an answer, before that in {side!r}"
        raise BadRecord("bad_pair", f"{text}: end it with what was asked")
    return {**kept, "messages": [*asked, *turns]}


def _is_within(asked: Any, turns: list[Any]) -> bool:
    """Return True if a conversation begins with what was asked, a system message before it or not,
    or equals the record's own messages but for the last."""
    said = [_said(turn) for turn in turns]
    first = [_said(turn) for turn in asked] if isinstance(asked, list | tuple) else [None]
    begins = [said[at : at + len(first)] for at in (0, 1)]
    if first in begins:
        return True
    return first[:-1] == said[: len(first) - 1] and len(first) == len(said)


def _said(turn: Any) -> tuple[Any, Any]:
    """Return a message's role and content."""
    if not isinstance(turn, OBJECT):
        return None, turn
    role = role_of(turn)
    return "user" if role == "human" else role, content_of(turn)
