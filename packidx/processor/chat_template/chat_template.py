"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Rendering with Jinja costs tens of µs, so it is done once for all records that the template treats
alike: a record's texts are put into a `Skeleton`, which was learned from a record of the same
structure by *tracing* its rendering (`packidx.processor.chat_template.tracing.trace`). A skeleton
holds only for records whose texts answer whatever the template asked of them as that record's did;
it has been compared with Jinja's own rendering of that record; and a template that cannot be traced
is rendered by Jinja each time. So what is tokenized is what transformers would tokenize. The way a
record takes, and with it the outcome, depends on the record alone, never on those before it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.meta

from packidx.errors import BadRecord, SourceError
from packidx.processor.chat_template import limits
from packidx.processor.chat_template.documents import Documents
from packidx.processor.chat_template.environment import Generation, chat_environment
from packidx.processor.chat_template.limits import TooLarge, check_unicode, in_time
from packidx.processor.chat_template.messages import (
    Form,
    Message,
    Unusual,
    known_names,
    structure,
    traced_messages,
)
from packidx.processor.chat_template.placeholders import Placeholders, any_of
from packidx.processor.chat_template.skeleton import DEAD, Dead, Skeleton, Tree, rendering_of
from packidx.processor.chat_template.tracing.environment import tracing_environment
from packidx.processor.chat_template.tracing.trace import Trace
from packidx.processor.chat_template.turns.fallback import Search
from packidx.processor.chat_template.turns.find import find_turns
from packidx.processor.chat_template.turns.rendering import Lost, Words, learn_words
from packidx.processor.chat_template.turns.spans import Span, trained_spans
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation

MAX_STRUCTURES = 4096
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
            environment = chat_environment()
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            used = jinja2.meta.find_undeclared_variables(parsed)
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self._names = known_names(parsed)
        self._has_blocks = _GENERATION.search(source) is not None
        self._control = any_of(self.control_tokens)
        self._placeholders = Placeholders(self.media_tokens)
        self._tracing = tracing_environment()
        self._words: Words | None = None
        self._trees: dict[Any, Tree] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            "control_tokens": self.control_tokens,
            "media_tokens": self.media_tokens,
            "empty_as_list": self.empty_as_list,
            "policy": self.policy,
        }
        return partial(ChatTemplate, **options), (self.source, self.special_tokens)

    def render(self, conversation: Conversation) -> Rendered:
        """`conversation` as text, as transformers renders it without a generation prompt; a
        document as `Documents` writes it.

        Raises:
            BadRecord: ``template`` if the template fails or hides what the assistant says;
                ``bad_text`` if it holds half a surrogate pair;
                ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the template leaves a medium out.
            LimitError: the template does not come to an end.
            MemoryError: it ran out.
        """
        if conversation.is_document:
            text, spans, media = self._documents.write(conversation)
            check_unicode(text)
            return Rendered(
                text, spans if any(self.policy.trains(conversation.turns)) else (), media
            )
        try:
            key, texts = structure(conversation, self._names)
        except Unusual:
            return in_time(self._render_slowly, conversation)
        values = texts.copy()
        tree = self._trees.get(key)
        try:
            skeleton = None if tree is None else tree.find(values)
            if skeleton is None:
                skeleton, values = in_time(self._learn, conversation, key, texts)
            if isinstance(skeleton, Dead):
                return in_time(self._render_slowly, conversation)
            text, borders = skeleton.fill(values)
            if len(text) > limits.MAX_TEXT:
                raise TooLarge
        except TooLarge as error:
            raise _refusal(error) from error
        if not text.isascii():
            check_unicode(text)
        if skeleton.media is None or self._placeholders.are_in(texts):
            media = self._placeholders.find(conversation, text)
        else:
            media = tuple([borders[i] + offset for i, offset in skeleton.media])
        if skeleton.lost:
            spans = in_time(self._search_spans, conversation, text)
        else:
            spans = skeleton.label_spans(text, borders, self.policy)
        return Rendered(text, spans, media)

    def messages(self, conversation: Conversation) -> list[Message]:
        """`conversation` as the messages that a processor is given."""
        return self._form.messages(conversation)

    def changes(self, conversation: Conversation) -> list[str]:
        """What is given otherwise than the record holds it, in words: see `Form`."""
        plain = conversation.is_document or conversation.input_ids is not None
        return [] if plain else self._form.changes(conversation)

    def _render_slowly(self, conversation: Conversation) -> Rendered:
        text = self._render(conversation)
        check_unicode(text)
        media = self._placeholders.find(conversation, text)
        return Rendered(text, self._search_spans(conversation, text), media)

    def _render(
        self,
        conversation: Conversation,
        *,
        prompt: bool = False,
        borders: tuple[str, str] | None = None,
    ) -> str:
        """Jinja's rendering."""
        template = self._template
        if borders is not None:
            bordered = type("Bordered", (Generation,), {"borders": borders})
            template = chat_environment(generation=bordered).from_string(self.source)
        messages = self._form.rendered(conversation)
        return self._write(template, messages, conversation.tools, prompt)

    def _write(
        self,
        template: jinja2.Template,
        messages: list[Message],
        tools: list[Any] | None = None,
        prompt: bool = False,
    ) -> str:
        try:
            return template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self.special_tokens,
            )
        except MemoryError:  # says nothing of the record
            raise
        except Exception as error:  # a template is foreign code: whatever it raises is its verdict
            raise _refusal(error) from error

    @cached_property
    def _traced_template(self) -> jinja2.Template:
        return self._tracing.from_string(self.source)

    @cached_property
    def _documents(self) -> Documents:
        return Documents(self._render, self.media_tokens, self.policy)

    @cached_property
    def _form(self) -> Form:
        return Form(partial(self._write, self._template), self.empty_as_list)

    # -- label spans -------------------------------------------------------------------------------

    def _search_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Label spans without a skeleton."""
        wanted = self.policy.trains(conversation.turns)
        if not any(wanted):
            return ()
        search = Search(self._render, conversation, text, self._control, self.policy, wanted)
        if self._has_blocks:
            regions = search.by_blocks()
        else:
            marked = search.by_marks()
            regions = search.by_prefix() if marked is None else marked
        return trained_spans(regions, text, self.policy)

    def _learn(
        self, conversation: Conversation, key: Any, texts: list[str]
    ) -> tuple[Skeleton | Dead, list[str]]:
        """The record's skeleton, remembered for others; and the values it takes from here on."""
        with self._lock:
            trace = Trace(texts)
            leaf = self._trace(conversation, trace)
            made = len(trace.values) - len(trace.pending)
            tree = self._trees.get(key)
            if tree is None:
                if len(self._trees) >= MAX_STRUCTURES:
                    del self._trees[next(iter(self._trees))]
                tree = self._trees[key] = Tree()
            if not tree.add(trace.questions, leaf):
                leaf = DEAD
            return leaf, trace.values[:made]

    def _trace(self, conversation: Conversation, trace: Trace) -> Skeleton | Dead:
        messages, owners = traced_messages(conversation, self._names, self._form, trace)
        try:
            self._tracing.current = trace
            text = self._write(self._traced_template, messages, conversation.tools)
            skeleton, rendering = rendering_of(trace, text, owners)
            plain = self._render(conversation)
        except MemoryError:
            raise
        except Exception:  # not traceable, or refused: Jinja's own rendering says which
            return DEAD
        made = len(trace.values) - len(trace.pending)
        if skeleton.fill(trace.values[:made])[0] != plain:
            return DEAD
        if all(trace.cut_only[hole] for hole in skeleton.holes):
            skeleton.media = self._placeholders.positions(conversation, rendering)
        wanted = self.policy.trains(conversation.turns)
        if any(wanted):
            try:
                if self._words is None:
                    self._words = learn_words(
                        self._render, self._control, self._placeholders.pattern
                    )
                turns = find_turns(
                    rendering, conversation.turns, self._words, self.policy, self._has_blocks
                )
                skeleton.set_turns([turn for turn in turns if wanted[turn.turn]], self.policy)
            except Lost:
                skeleton.lost = True
        return skeleton


def _refusal(error: Exception) -> BadRecord:
    return BadRecord("template", f"the chat template refuses it: {error}")
