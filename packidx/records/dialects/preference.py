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

from collections.abc import Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import PAIR_SIDES
from packidx.records.conversation import Conversation
from packidx.records.dialects.messages import are_messages, standard_message
from packidx.records.dialects.qa import ANSWERS, QUESTIONS, is_blank, meaning_of
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.media import references as refs

BESIDE = ("rejected_response", "rejected_messages")
"""Columns of an answer to avoid, beside a record that has the other one as its own."""
_WORDS = {"true": True, "false": False}
_ASKING = ("user", "human", "system")
_OF_TOOLS = ("tool", "observation", "function_response", "tool_response")
_SIDES = (*PAIR_SIDES, *BESIDE)
_SIGNS = frozenset(("rejected", "kto_tag", "label", *BESIDE))


def refuse_preferences(raw: RawRecord) -> Conversation | None:
    """Pairs and verdicts, which need to know the answer to train on: they are refused."""
    record = raw.columns
    if _SIGNS.isdisjoint(record):
        return None
    names = (*_SIDES, *refs.TURN_KEYS, "prompt", "completion", "response")
    has = {name for name in names if is_answer(record.get(name))}
    bad = [name for name in BESIDE if name in has]
    if "rejected" in has and ("chosen" in has or {"response", refs.turn_key(record)} <= has):
        bad.append("rejected")
    tag, label = (_parse_verdict(record.get(name)) for name in ("kto_tag", "label"))
    is_swift = label is False and type(record["label"]) is not int
    bad += ["kto_tag"] * (tag is not None)
    bad += ["label"] * (is_swift or ({"prompt", "completion"} <= has and label is not None))
    if not bad:
        return None
    text = f"the record has an answer to avoid, or a verdict, in {' and '.join(map(repr, bad))}"
    cure = "take one side of a pair, --pair chosen, or keep the good records, without a verdict"
    raise BadRecord("preference_data", f"{text}: {cure}")


def take_side(columns: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return the columns of one side of a pair, messages with the standard keys and roles.

    Raises:
        BadRecord: ``no_pair``, the record has none, or ``bad_pair``, it cannot be understood.
    """
    record, side = {**columns, **_standard_messages(columns, layout)}, str(layout.pair)
    has = [name for name in _SIDES if is_answer(record.get(name))]
    has_both, beside = {*PAIR_SIDES} <= {*has}, [name for name in BESIDE if name in has]
    if not (has_both or beside):
        names = f"only {' and '.join(map(repr, has))}" if has else ", ".join(sorted(record)[:20])
        text = f"the record has {names or 'nothing'}, and --pair takes one side of a pair: give"
        sides = "'chosen' and 'rejected', or 'rejected_response' beside an answer"
        raise BadRecord("no_pair", f"{text} {sides}")
    if record.get("input_ids") is not None:
        raise _bad_pair("the record has input_ids, and they name no side")
    rest = {k: v for k, v in record.items() if k not in _SIDES and k != "_text_tokens"}
    if side == "chosen" and not has_both:
        return rest
    own = [n for n in rest if meaning_of(n) == "another answer" and not is_blank(rest[n])]
    rest = {name: value for name, value in rest.items() if meaning_of(name) != "another answer"}
    if has_both:  # another answer is left over
        return _with_answer(rest, record[side], side, next(n for n in ANSWERS if n not in own))
    if len(beside) > 1:
        raise _bad_pair(f"the record has both {' and '.join(map(repr, BESIDE))}")
    answer, key = record[beside[0]], refs.turn_key(rest)
    if "rejected_messages" in beside:
        turns = [answer] if isinstance(answer, refs.OBJECT) else answer
        return {**{k: v for k, v in rest.items() if k != key}, "messages": turns}
    if not isinstance(answer, str):
        raise _bad_pair(f"'rejected_response' is {refs.name_type(answer)}, not one text")
    if key is None:
        return _with_answer(rest, answer, side, own[0] if own else "response")
    turns = rest[key]
    if (
        not isinstance(turns, list | tuple)
        or not turns
        or refs.role_of(turns[-1]) in (None, *_ASKING)
    ):
        raise _bad_pair(f"the last turn of {key!r} is no answer for 'rejected_response' to replace")
    return {**rest, key: [*turns[:-1], {"role": "assistant", "content": answer}]}


def _bad_pair(text: str) -> BadRecord:
    return BadRecord("bad_pair", text)


def _standard_messages(columns: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return the columns that hold messages, in standard form; JSON of them in text is decoded."""
    changed: dict[str, Any] = {}
    for name in (refs.turn_key(columns) or "", "prompt", "chosen", "rejected", "rejected_messages"):
        value = columns.get(name)
        if isinstance(value, str) and value[:1] in ("[", "{"):
            try:
                decoded = orjson.loads(value)
            except ValueError:
                continue  # a text that begins with a bracket
            value = decoded if are_messages(decoded, layout) else None
        if isinstance(value, list | tuple):
            changed[name] = [standard_message(each, layout) for each in value]
        elif isinstance(value, dict):
            changed[name] = standard_message(value, layout)
    return changed


def _parse_verdict(value: Any) -> bool | None:
    """Return True for a good answer, as JSON, numbers and the cells of tables say it."""
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def is_answer(value: Any) -> bool:
    """Return True for text, a message or messages: no flag, number or empty cell."""
    items = value if isinstance(value, list | tuple) else [value]
    return bool(value) and all(isinstance(item, (str, *refs.OBJECT)) for item in items)


def _with_answer(rest: dict[str, Any], answer: Any, side: str, column: str) -> dict[str, Any]:
    """Return `rest` with the answer of a side: beside its question in `column`, or behind its
    messages.

    Messages of a side that begin with those of the user are the whole conversation.
    """
    key = refs.turn_key(rest)
    question = next((name for name in QUESTIONS if rest.get(name) is not None), None)
    if isinstance(answer, str):
        if question is None and key is None:
            raise _bad_pair(f"{side!r} is text without a 'prompt': give what was asked, or turns")
        if question is not None and isinstance(rest[question], str):
            if key is not None:
                raise _bad_pair(f"the record has both {question!r} and {key!r}: leave one out")
            return {**rest, column: answer}
        answer = {"role": "assistant", "content": answer}
    turns = [answer] if isinstance(answer, refs.OBJECT) else list(answer)
    if isinstance(turns[0], str):
        raise _bad_pair(f"{side!r} is a list of texts: give one answer")
    name = "prompt" if rest.get("prompt") is not None else key
    asked: Any = None if name is None else rest[name]
    asked = {"role": "user", "content": asked} if isinstance(asked, str) else asked
    asked = [asked] if isinstance(asked, refs.OBJECT) else asked
    if asked is not None and (not is_answer(asked) or isinstance(asked[0], str)):
        raise _bad_pair(f"{name!r} is {refs.name_type(asked)}, neither text nor turns")
    kept = {name: value for name, value in rest.items() if name not in ("prompt", *refs.TURN_KEYS)}
    if refs.role_of(turns[0]) in _ASKING:
        first, whole = (
            [refs.content_of(turn) for turn in each if refs.role_of(turn) in _ASKING]
            for each in (asked or (), turns)
        )
        begins = first in (whole[: len(first)], whole[1 : len(first) + 1])
        if not begins or len(turns) < len(asked or ()):
            raise _bad_pair(f"{side!r} is a conversation that does not begin with {name!r}")
        return {**kept, "messages": turns}
    if asked is None:
        raise _bad_pair(f"{side!r} is an answer, and nothing says what was asked: give a 'prompt'")
    if refs.role_of(asked[-1]) not in (*_ASKING, *_OF_TOOLS):
        raise _bad_pair(f"{name!r} ends with an answer, before {side!r}: end it with a question")
    return {**kept, "messages": [*asked, *turns]}
