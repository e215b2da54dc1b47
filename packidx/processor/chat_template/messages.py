"""A conversation as the messages that a template gets."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jinja2.nodes

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import REASONING
from packidx.records.conversation import Conversation, Turn, to_messages

Message = dict[str, Any]
_AS_LISTS = "texts given as lists of parts"
_AS_STRINGS = "lists of texts given as strings"
_OPENED = "<medium>"  # as transformers writes what a template need not see
_WORD = "quokka"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {}}}
_Said = tuple[str, str, Message]
_ASKED: _Said = ("user", "Where?", {})
_SAID: _Said = ("assistant", "Here.", {})
_SHOWN: dict[str, list[_Said]] = {
    "system": [("system", _WORD, {}), _ASKED, _SAID],
    "user": [("user", _WORD, {}), _SAID],
    "assistant": [_ASKED, ("assistant", _WORD, {})],
    "tool": [
        _ASKED,
        ("assistant", "", {"tool_calls": [_CALL]}),
        ("tool", _WORD, {"name": "look", "tool_call_id": "call00001"}),
        _SAID,
    ],
}
"""Role, text and further keys of the messages in which a text of a role is shown to a template."""


class Form:
    """The way that a template gets messages: as the record holds them, or else as it shows them.

    A text that a template leaves out where it is a string, as LLaVA's does, becomes a list of one
    part. A list of texts that a template refuses, or writes as Python does, becomes a string. A
    role that it leaves out, such as ``developer``, becomes that which it is read as. What a
    template leaves out is found out by showing it a text of each role in each form.

    Args:
        render: messages as the template writes them.
        empty_as_list: no content is ``[]``, as `ProcessorMixin.apply_chat_template` has it when it
            tokenizes (tokenizers alone keep it).
    """

    def __init__(self, render: Callable[[list[Message]], str], empty_as_list: bool) -> None:
        self.empty_as_list = empty_as_list
        self._render = render
        self._found = functools.cache(self._find_form)

    def changes(self, conversation: Conversation) -> list[str]:
        """Return what is given to the template otherwise than the record holds it, in words."""
        changes: dict[str, None] = {}
        for turn in conversation.turns:
            role, change = self._form_of(turn)
            if change is not None:
                changes[change] = None
            if turn.extra.get("role", role) != role:
                changes[f"the role {turn.extra['role']} given as {role}"] = None
        return list(changes)

    def messages(self, conversation: Conversation) -> list[Message]:
        """The messages that a processor is given."""
        messages = to_messages(conversation)
        for turn, message in zip(conversation.turns, messages, strict=True):
            message["role"], change = self._form_of(turn)
            if change == _AS_LISTS:
                message["content"] = [{"type": "text", "text": message["content"]}]
            elif change == _AS_STRINGS:
                message["content"] = functools.reduce(operator.add, turn.parts, "")
        return messages

    def rendered(self, conversation: Conversation) -> list[Message]:
        """The messages as transformers hands them on to the template."""
        messages = self.messages(conversation)
        for turn, message in zip(conversation.turns, messages, strict=True):
            if turn.extra:
                _normalise_keys(message)
            content = message.get("content", "")
            if type(content) is list:
                for part in content:
                    if part["type"] != "text":
                        part[part["type"]] = _OPENED
            elif self.empty_as_list and content == "":
                message["content"] = []
        return messages

    def _form_of(self, turn: Turn) -> tuple[str, str | None]:
        """The role that a turn is given with, and how its content is changed."""
        stated = turn.extra.get("role", turn.role)
        role, change = self._found(turn.role, stated, turn.is_string)
        says = turn.parts or turn.text_as_list  # nothing at all is left as it is
        is_text = change and says and all(isinstance(part, str) for part in turn.parts)
        return role, change if is_text else None

    def _find_form(self, role: str, stated: str, is_string: bool) -> tuple[str, str | None]:
        for word in (stated, role):
            if self._is_shown(role, word, as_list=not is_string):
                return word, None
            if self._is_shown(role, word, as_list=is_string):
                return word, _AS_LISTS if is_string else _AS_STRINGS
        return role, None

    def _is_shown(self, role: str, word: str, *, as_list: bool) -> bool:
        """Return True if the template writes a text of this role, called `word`, that is a string,
        or a list of one part."""
        for others in (as_list, not as_list):
            messages: list[Message] = []
            for own, text, further in _SHOWN[role]:
                listed, name = (as_list, word) if own == role else (others, own)
                content = [{"type": "text", "text": text}] if listed else text
                messages.append({"role": name, "content": content, **further})
            try:
                written = self._render(messages).casefold()
            except BadRecord:
                continue
            if _WORD in written and f"'text': '{_WORD}'" not in written:
                return True
        return False


def _normalise_keys(message: Message) -> None:
    """Change a message with further keys as transformers does before it renders it."""
    for key in [key for key, value in message.items() if value is None]:
        del message[key]
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message.setdefault("thinking", reasoning)
        message["reasoning_content"] = reasoning


def find_names(template: jinja2.nodes.Template) -> frozenset[str]:
    """The keys that a template may ask a message for; any other does not matter to it."""
    names = {node.attr for node in template.find_all(jinja2.nodes.Getattr)}
    for const in template.find_all(jinja2.nodes.Const):
        if isinstance(const.value, str):
            names.add(const.value)
    if names & set(REASONING):
        names |= set(REASONING)
    return frozenset(names)
