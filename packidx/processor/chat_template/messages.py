"""A conversation as the messages a template gets, plain or traced, and what they have in common.

Two conversations have the same `structure` if they differ in nothing but their texts: then a
template can only tell them apart by asking about these.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import jinja2.nodes

from packidx.errors import BadRecord
from packidx.processor.chat_template.tracing.trace import Trace
from packidx.processor.chat_template.tracing.traced import Traced
from packidx.processor.chat_template.tracing.values import Incomplete
from packidx.processor.chat_template.turns.fallback import REASONING
from packidx.processor.chat_template.turns.rendering import Hole
from packidx.records.conversation import Conversation, Turn, to_messages

AS_HELD, AS_LIST, AS_STRING = "as held", "as list", "as string"
"""Of `Form.text`."""
_PART = re.compile("""['"]type['"]""")  # of a part that is written as it stands in the code


class Unusual(Exception):
    """A conversation whose structure cannot be told."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a template gets the content of messages that are text alone."""

    empty_as_list: bool = True
    """Empty content is ``[]``, as `ProcessorMixin.apply_chat_template` has it when it tokenizes
    (tokenizers alone keep ``""``)."""
    text: str = AS_HELD
    """Text is what the record holds, a string or a list of parts; `AS_LIST` or `AS_STRING` for
    templates that see no other."""


def messages_of(conversation: Conversation, form: Form) -> list[dict[str, Any]]:
    """The messages as transformers hands them to a template."""
    messages = to_messages(conversation)
    for turn, message in zip(conversation.turns, messages, strict=True):
        if turn.extra:
            _normalise(message)
        if form.text == AS_STRING and turn.text_as_list:
            message["content"] = turn.parts[0] if turn.parts else ""
        content = message["content"]
        if type(content) is str and not content:
            message["content"] = [] if form.empty_as_list else ""
        elif form.text == AS_LIST and isinstance(content, str):
            message["content"] = [{"type": "text", "text": content}]
    return messages


def _normalise(message: dict[str, Any]) -> None:
    """What transformers does to messages with further keys before it renders them."""
    for key in [key for key, value in message.items() if value is None]:
        del message[key]
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message.setdefault("thinking", reasoning)
        message["reasoning_content"] = reasoning


def known_names(template: jinja2.nodes.Template) -> frozenset[str]:
    """The keys that a template may ask a message for; any other does not matter to it."""
    names = {node.attr for node in template.find_all(jinja2.nodes.Getattr)}
    for const in template.find_all(jinja2.nodes.Const):
        if isinstance(const.value, str):
            names.add(const.value)
    if names & set(REASONING):
        names |= set(REASONING)
    return frozenset(names)


def structure(
    conversation: Conversation, names: frozenset[str]
) -> tuple[tuple[Hashable, ...], list[str]]:
    """Everything about a conversation but its texts, and its texts.

    Raises:
        Unusual: it holds something that is neither.
    """
    key: list[Hashable] = []
    texts: list[str] = []
    for turn in conversation.turns:
        key.append(turn.role if turn.train is None else (turn.role, turn.train))
        if turn.text_as_list:
            key.append(2)
        for part in turn.parts:
            if isinstance(part, str):
                if not part:
                    raise Unusual("an empty text")
                texts.append(part)
                key.append(1)
            else:
                key.append(part.kind)
        if turn.extra:
            extra = {name: turn.extra[name] for name in turn.extra if name in names}
            if extra:
                key.append(_shape(extra, texts))
            if len(extra) < len(turn.extra):
                key.append(None)  # a template that writes whole messages writes these, too
    if conversation.tools is not None:
        try:
            key.append(marshal.dumps(conversation.tools, 2))
        except ValueError as error:
            raise Unusual(str(error)) from error
    return tuple(key), texts


def _shape(value: Any, texts: list[str]) -> Hashable:
    """`value` without its texts, which are appended to `texts`."""
    kind = type(value)
    if kind is str:
        texts.append(value)
        return ""
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise Unusual(f"a key that is a {type(key).__name__}")
        return ("dict", tuple(value), *(_shape(item, texts) for item in value.values()))
    if kind is list:
        return ("list", *(_shape(item, texts) for item in value))
    if value is None or kind in (bool, int, float):
        return (kind.__name__, repr(value))
    raise Unusual(f"a {kind.__name__}")


def traced_messages(
    conversation: Conversation, names: frozenset[str], form: Form, trace: Trace
) -> tuple[list[dict[str, Any]], list[Hole]]:
    """`messages_of` with traced texts, and whose each of them is; in the order of `structure`."""
    owners: list[Hole] = []

    def traced(value: Any, turn: int, kind: str) -> Any:
        if isinstance(value, str):
            owners.append(Hole(turn, kind))
            return Traced(trace, (len(owners) - 1,))
        if isinstance(value, dict):
            return {key: traced(item, turn, kind) for key, item in value.items()}
        if isinstance(value, list):
            return [traced(item, turn, kind) for item in value]
        return value

    turns = []
    for number, turn in enumerate(conversation.turns):
        parts = tuple(traced(part, number, "content") for part in turn.parts)
        known = {name: value for name, value in turn.extra.items() if name in names}
        extra = {name: traced(value, number, _kind(name)) for name, value in known.items()}
        turns.append(replace(turn, parts=parts, extra=extra))
    messages = messages_of(replace(conversation, turns=tuple(turns)), form)
    for number, turn in enumerate(conversation.turns):
        if turn.extra.keys() - names:
            messages[number] = Incomplete(messages[number])
    return messages, owners


def _kind(name: str) -> str:
    if name in REASONING:
        return "reasoning"
    return "tool" if name in ("tool_calls", "function_call") else "other"


def fitting_form(render: Callable[[Conversation], str], plain: Form) -> Form:
    """The form in which a template shows texts; `render` is in the form `plain`.

    Text is put into lists where the template shows it only so, as LLaVA's, and taken out of them
    where it takes strings alone: else it would be lost, or written as Python writes it.
    """
    string, listed = _shows(render, text_as_list=False), _shows(render, text_as_list=True)
    if string == listed:
        return plain
    return replace(plain, text=AS_STRING if string else AS_LIST)


def _shows(render: Callable[[Conversation], str], *, text_as_list: bool) -> bool:
    """Whether a template writes texts that are strings, or lists of one part."""
    words = {"user": "a question", "assistant": "an answer"}
    turns = [Turn(role, (text,), text_as_list=text_as_list) for role, text in words.items()]
    try:
        text = render(Conversation(tuple(turns)))
    except BadRecord:
        return False
    shown = all(word in text.casefold() for word in words.values())
    return shown and _PART.search(text) is None
