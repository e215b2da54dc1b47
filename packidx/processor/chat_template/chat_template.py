"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Jinja renders a record once, as transformers does, and its label spans are found in that rendering
(`spans`). Records whose texts hold the template's own words are rendered again with marks around
them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.nodes

from packidx.errors import BadRecord, SourceError
from packidx.processor.chat_template import environment, marks
from packidx.processor.chat_template.marks import Lost, Span
from packidx.processor.chat_template.messages import Form, Message, names_in
from packidx.processor.chat_template.placeholders import Documents, Placeholders
from packidx.processor.chat_template.spans import (
    MAX_FORMS,
    are_apart,
    form_of,
    is_masked,
    masked,
    spans_by_words,
    with_stand_ins,
)
from packidx.processor.chat_template.turns import (
    TurnWords,
    block_spans,
    learn_words,
    marked_spans,
)
from packidx.processor.chat_template.unwritten import check_written
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Rendered:
    """A conversation as text."""

    text: str
    """What is tokenized, media placeholders not yet expanded."""
    label_spans: tuple[Span, ...]
    """Character ranges ``[start, end)`` that are trained on, ascending."""
    media: tuple[int, ...] = ()
    """First character of each medium's placeholder, in the record's order of appearance; a template
    may write them in another."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: variables such as ``eos_token`` that the template may use.
        control_tokens: the tokenizer's special tokens; the one that ends an assistant's turn is a
            label.
        media_tokens: kind of medium → the placeholder that the template writes, where the processor
            has one.
        empty_as_list: render empty content as ``[]``, as `ProcessorMixin.apply_chat_template` does
            when it tokenizes (tokenizers alone keep ``""``).
        policy: what is trained on.

    Raises:
        SourceError: `source` is not a valid template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        control_tokens: Iterable[str] = (),
        media_tokens: Mapping[str, str] | None = None,
        empty_as_list: bool = True,
        policy: LabelPolicy = DEFAULT_POLICY,
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.control_tokens = tuple(control_tokens)
        self.media_tokens = dict(media_tokens or {})
        self.empty_as_list = empty_as_list
        self.policy = policy
        try:
            self._template = environment.chat_environment().from_string(source)
            parsed = self._template.environment.parse(source)
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        used = {node.name for node in parsed.find_all(jinja2.nodes.Name)}
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self.day = environment.now("%Y-%m-%d") if "strftime_now" in used else None
        """Today, if the template writes the date."""
        self._names = names_in(parsed)
        self._has_blocks = _GENERATION.search(source) is not None
        self._placeholders = Placeholders(self.media_tokens)
        self._form = Form(self._write, empty_as_list)
        self._documents = Documents(self._render, self._placeholders)
        self._are_apart: dict[Hashable, bool] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            "control_tokens": self.control_tokens,
            "media_tokens": self.media_tokens,
            "empty_as_list": self.empty_as_list,
            "policy": self.policy,
        }
        return partial(ChatTemplate, **options), (self.source, self.special_tokens)

    @property
    def plain_source(self) -> str:
        """The Jinja text with every line end as ``\\n``, as text mode and Jinja read it."""
        return self.source.replace("\r\n", "\n")

    def render(self, conversation: Conversation) -> Rendered:
        """`conversation` as text, as transformers renders it without a generation prompt; a
        document as `Documents` writes it.

        Raises:
            BadRecord: ``template`` if the template fails or hides what the assistant says;
                ``bad_text`` if it holds half a surrogate pair;
                ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the template leaves a medium out;
                ``not_rendered`` if it leaves out tools, calls or reasoning.
            MemoryError: it ran out.
        """
        if conversation.is_document:
            text, spans, media = self._documents.write(conversation)
            is_trained = any(self.policy.trains(conversation.turns))
            return Rendered(text, spans if is_trained else (), media)
        text = self._render(conversation)
        environment.check_unicode(text)
        check_written(self._render, conversation, text)
        media = self._placeholders.find(conversation, text)
        return Rendered(text, self._spans(conversation, text), media)

    def messages(self, conversation: Conversation) -> list[Message]:
        """`conversation` as the messages that a processor is given."""
        return self._form.messages(conversation)

    def changes(self, conversation: Conversation) -> list[str]:
        """Return what is given otherwise than the record holds it, in words: see `Form`."""
        plain = conversation.is_document or conversation.input_ids is not None
        return [] if plain else self._form.changes(conversation)

    def _render(
        self,
        conversation: Conversation,
        *,
        prompt: bool = False,
        by: jinja2.Template | None = None,
    ) -> str:
        """Jinja's rendering, by the template or by one of its marked ones."""
        messages = self._form.rendered(conversation)
        return self._write(messages, conversation.tools, prompt, by)

    def _write(
        self,
        messages: list[Message],
        tools: list[Any] | None = None,
        prompt: bool = False,
        template: jinja2.Template | None = None,
    ) -> str:
        try:
            return (template or self._template).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self.special_tokens,
            )
        except MemoryError:  # says nothing of the record
            raise
        except Exception as error:  # a template is foreign code: whatever it raises is its verdict
            detail = f"the chat template refuses it: {error}"
            raise BadRecord("template", detail) from error

    # -- label spans -------------------------------------------------------------------------------

    @cached_property
    def _words(self) -> TurnWords:
        return learn_words(self._render, self.control_tokens, self._placeholders.pattern)

    @cached_property
    def _own(self) -> list[str]:
        """Words that tell where messages are."""
        tokens, words = list(self.control_tokens), self._words
        if self._has_blocks:
            return [*marks.BORDERS, *([] if self.policy.end_of_turn else tokens)]
        return [words.header.strip(), *([words.stop] if words.stop else tokens)]

    @cached_property
    def _bordered(self) -> jinja2.Template:
        """The template with marks around its ``{% generation %}`` blocks."""
        return environment.chat_environment(environment.Bordered).from_string(self.source)

    def _spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Return the label spans of a record in its rendering `text`.

        Raises:
            BadRecord: ``template``, the rendering does not show them.
        """
        if not any(self.policy.trains(conversation.turns)):
            return ()
        if any(turn.extra for turn in conversation.turns):
            conversation = self._known(conversation)
        form = form_of(conversation)
        if form not in self._are_apart:
            if len(self._are_apart) >= MAX_FORMS:
                self._are_apart.clear()
            self._are_apart[form] = self._try_form(conversation)
        spans = self._told_spans(conversation, text) if self._are_apart[form] else None
        return self._marked_spans(conversation, text) if spans is None else spans

    def _try_form(self, conversation: Conversation) -> bool:
        """Return True if the words around messages tell the spans of records of this form."""
        talk, words = with_stand_ins(self._known(conversation))
        try:
            text = self._render(talk)
        except BadRecord:
            return False
        return are_apart(text, self._told_spans(talk, text), talk.turns, words)

    def _told_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...] | None:
        """Return the label spans by words or blocks; None if these do not tell."""
        words, policy = self._words, self.policy
        talk = masked(conversation, self._own)
        try:
            if not self._has_blocks and talk is conversation:
                return spans_by_words(text, talk.turns, words, policy)
            shown = marks.read_marks(self._render(talk, by=self._bordered), ())
            if not is_masked(text, shown.text):
                return None
            if self._has_blocks:
                return block_spans(shown, talk.turns, words, policy)
            return spans_by_words(shown.text, talk.turns, words, policy)
        except (BadRecord, Lost):
            return None

    def _marked_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Return the label spans of a record by marks around its texts."""
        known, text = self._known(conversation), marks.MARKED.sub(marks.STAND_IN, text)
        why = "it writes other words where texts have marks"
        try:
            shown = marks.show(partial(self._render, by=self._bordered), known)
            if shown.text == text:
                find = block_spans if self._has_blocks else marked_spans
                return find(shown, known.turns, self._words, self.policy)
        except (BadRecord, Lost) as error:
            why = str(error)
        raise BadRecord("template", f"the chat template does not show what is trained on: {why}")

    def _known(self, conversation: Conversation) -> Conversation:
        """Return a record without keys that the template has no name for, and without marks."""
        turns = [
            replace(
                turn,
                parts=tuple(
                    marks.MARKED.sub(marks.STAND_IN, part) if isinstance(part, str) else part
                    for part in turn.parts
                ),
                extra={name: turn.extra[name] for name in turn.extra if name in self._names},
            )
            for turn in conversation.turns
        ]
        return replace(conversation, turns=tuple(turns))
