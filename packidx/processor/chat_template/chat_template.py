"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Jinja renders a record once, as transformers does, and its label spans are found in that rendering
(`spans`). Records with tools or further keys, and those that a template writes in a way of their
own, are rendered again with marks around their texts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.nodes

from packidx.errors import BadRecord, SourceError
from packidx.processor.chat_template import environment, marks
from packidx.processor.chat_template.marks import Lost, Shown, Span
from packidx.processor.chat_template.messages import Form, Message, find_names
from packidx.processor.chat_template.placeholders import Placeholders
from packidx.processor.chat_template.spans import MAX_FORMS, Layout, split_form, with_stand_ins
from packidx.processor.chat_template.turns import (
    Render,
    TurnWords,
    block_spans,
    learn_words,
    marked_spans,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation, Turn

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Rendered:
    """A conversation as text."""

    text: str
    """The text that is tokenized, media placeholders not yet expanded."""
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
            self._plain = environment.compile_template(source, self.special_tokens)
            parsed = environment.make_environment().parse(source)
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        used = {node.name for node in parsed.find_all(jinja2.nodes.Name)}
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self.day = environment.format_now("%Y-%m-%d") if "strftime_now" in used else None
        """Today, if the template writes the date."""
        self._names = find_names(parsed)
        self._has_blocks = _GENERATION.search(source) is not None
        self._placeholders = Placeholders(self.media_tokens, self._render_plain)
        self._form = Form(self._render_messages, empty_as_list)
        self._layouts: dict[Hashable, Layout | None] = {}

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
        document as `Placeholders` writes it.

        Raises:
            BadRecord: ``template`` if the template fails or hides what the assistant says;
                ``bad_text`` if it holds half a surrogate pair;
                ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the template leaves a medium out;
                ``not_rendered`` if it leaves out tools, calls or reasoning.
            MemoryError: it ran out.
        """
        if conversation.is_document:
            text, spans, media = self._placeholders.write(conversation)
            is_trained = any(self.policy.trains(conversation.turns))
            return Rendered(text, spans if is_trained else (), media)
        text = self._render_plain(conversation)
        environment.check_unicode(text)
        shown = None
        if marks.says_more(conversation):
            shown = self._render_marked(conversation)
            marks.check_written(conversation, text, shown, self._writes_tools(conversation, text))
        media = self._placeholders.find(conversation, text)
        return Rendered(text, self._find_label_spans(conversation, text, shown), media)

    def _writes_tools(self, conversation: Conversation, text: str) -> bool:
        """Return False if a rendering is the same without the record's tools."""
        if not conversation.tools:
            return True
        try:
            return self._render_plain(replace(conversation, tools=None)) != text
        except BadRecord:
            return True

    def messages(self, conversation: Conversation) -> list[Message]:
        """`conversation` as the messages that a processor is given."""
        return self._form.messages(conversation)

    def changes(self, conversation: Conversation) -> list[str]:
        """Return what is given otherwise than the record holds it, in words: see `Form`."""
        plain = conversation.is_document or conversation.input_ids is not None
        return [] if plain else self._form.changes(conversation)

    def _render_plain(
        self,
        conversation: Conversation,
        *,
        prompt: bool = False,
        by: Render | None = None,
    ) -> str:
        """Jinja's rendering, by the template or by its bordered one."""
        messages = self._form.rendered(conversation)
        return self._render_messages(messages, conversation.tools, prompt, by)

    def _render_messages(
        self,
        messages: list[Message],
        tools: list[Any] | None = None,
        prompt: bool = False,
        by: Render | None = None,
    ) -> str:
        try:
            return (by or self._plain)(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt
            )
        except MemoryError:  # says nothing of the record
            raise
        except Exception as error:  # a template is foreign code: whatever it raises is its verdict
            detail = f"the chat template refuses it: {error}"
            raise BadRecord("template", detail) from error

    # -- label spans -------------------------------------------------------------------------------

    @cached_property
    def _words(self) -> TurnWords:
        return learn_words(self._render_plain, self.control_tokens, self._placeholders.pattern)

    @cached_property
    def _bordered(self) -> Render:
        """The template with marks around its ``{% generation %}`` blocks."""
        return environment.compile_template(self.source, self.special_tokens, environment.Bordered)

    def _find_label_spans(
        self, conversation: Conversation, text: str, shown: Shown | None
    ) -> tuple[Span, ...]:
        """Return the label spans of a record in its rendering `text`.

        Raises:
            BadRecord: ``template``, the rendering does not show them.
        """
        wanted = self.policy.trains(conversation.turns)
        if not any(wanted):
            return ()
        further = [turn.extra for turn in conversation.turns if turn.extra]
        if conversation.tools is None and not any(
            extra[name] for extra in further for name in extra.keys() & self._names
        ):
            form, cores = split_form(conversation.turns)
            if (key := (form, *wanted)) not in self._layouts:
                if len(self._layouts) >= MAX_FORMS:
                    self._layouts.clear()
                self._layouts[key] = self._learn_layout(conversation)
            layout = self._layouts[key]
            if layout is not None and (spans := layout.find(cores, text)) is not None:
                return spans if self._has_blocks else self._words.begun(text, spans)
        return self._marked_spans(conversation, text, shown)

    def _learn_layout(self, conversation: Conversation) -> Layout | None:
        """Return how the template writes conversations of this form; None if that does not show."""
        talk = replace(conversation, turns=with_stand_ins(conversation.turns))
        try:
            shown = self._render_marked(talk)
            return Layout.of(shown, self._find_marked_spans(shown, talk.turns))
        except (BadRecord, Lost):
            return None

    def _marked_spans(
        self, conversation: Conversation, text: str, shown: Shown | None = None
    ) -> tuple[Span, ...]:
        """Return the label spans of a record by marks around its texts."""
        why = "it writes other words where texts have marks"
        try:
            shown = shown or self._render_marked(conversation)
            if shown.text == marks.MARKED.sub(marks.STAND_IN, text):
                return self._find_marked_spans(shown, self._keep_known_keys(conversation).turns)
        except (BadRecord, Lost) as error:
            why = str(error)
        raise BadRecord("template", f"the chat template does not show what is trained on: {why}")

    def _render_marked(self, conversation: Conversation) -> Shown:
        """Return a rendering with marks around texts.

        Raises:
            BadRecord: ``template``, the template does not take them.
        """
        try:
            return marks.render_with_marks(
                partial(self._render_plain, by=self._bordered), self._keep_known_keys(conversation)
            )
        except Lost as error:
            raise BadRecord("template", f"marks do not show in it: {error}") from error

    def _find_marked_spans(self, shown: Shown, turns: Sequence[Turn]) -> tuple[Span, ...]:
        find = block_spans if self._has_blocks else marked_spans
        return find(shown, turns, self._words, self.policy)

    def _keep_known_keys(self, conversation: Conversation) -> Conversation:
        """Return a record without keys that the template has no name for."""
        turns = [
            replace(turn, extra={k: v for k, v in turn.extra.items() if k in self._names})
            for turn in conversation.turns
        ]
        return replace(conversation, turns=tuple(turns))
