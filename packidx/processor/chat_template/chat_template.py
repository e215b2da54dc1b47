"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Rendering with Jinja costs tens of µs, so it is done once for all records of a shape: a record's
texts are put into a `Skeleton`, which was learned with marks in place of its texts. It is compared
with Jinja's own rendering of the first record that it serves, and of one in `COMPARED` later ones.
Records that marks cannot stand for are rendered by Jinja, each by itself: such with tools or
reasoning, and texts that hold a word which the template looks for. So what is tokenized is what
transformers would tokenize.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.meta

from packidx.errors import BadRecord, LimitError, SourceError
from packidx.processor.chat_template.environment import chat_environment, check_unicode, now
from packidx.processor.chat_template.marks import HOLE, MARKED, Lost, Shown, Span, show
from packidx.processor.chat_template.messages import Form, Message, names_in
from packidx.processor.chat_template.placeholders import Documents, Placeholders, any_of
from packidx.processor.chat_template.skeleton import (
    Skeleton,
    shape_of,
    skeleton_of,
    without_unknown,
)
from packidx.processor.chat_template.turns import (
    Region,
    TurnWords,
    find_turns,
    learn_words,
    tags_of,
    trained_spans,
)
from packidx.processor.chat_template.unwritten import check_written
from packidx.processor.chat_template.watch import Bordered, watched
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation

MAX_SHAPES = 4096
COMPARED = 1024
"""Of so many records one is compared with Jinja's rendering, whichever they are."""
_UNLIKE = (
    "the chat template renders the record otherwise than others of its shape; "
    "please tell us of this template, and leave the record out"
)
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


_UNKNOWN = Skeleton([], (), (), (), (), ())


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
            environment.globals["strftime_now"] = self._today
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            used = jinja2.meta.find_undeclared_variables(parsed)
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self._names = names_in(parsed)
        self._has_blocks = _GENERATION.search(source) is not None
        self._control = any_of(self.control_tokens)
        self._placeholders = Placeholders(self.media_tokens)
        self._asked: set[str] = set()
        self._skeletons: dict[Hashable, Skeleton | None] = {}
        self._layouts: dict[str, None] = {}
        """Of the dates that it writes: a skeleton does for one time."""
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
                ``media_not_rendered`` if the template leaves a medium out;
                ``not_rendered`` if it leaves out tools, calls or reasoning.
            LimitError: it is rendered otherwise than others of its shape.
            MemoryError: it ran out.
        """
        if conversation.is_document:
            text, spans, media = self._documents.write(conversation)
            is_trained = any(self.policy.trains(conversation.turns))
            return Rendered(text, spans if is_trained else (), media)
        said_more = any(turn.extra or turn.role == "system" for turn in conversation.turns[1:])
        if conversation.tools or said_more or conversation.turns[0].extra:
            check_written(self._render, conversation, self._names)
        shape = shape_of(conversation, self._names)
        if shape is None:
            return self._render_slowly(conversation)
        key, cores = shape
        if self._layouts:
            key = key, *map(now, self._layouts)
        skeleton = self._skeletons.get(key, _UNKNOWN)
        if skeleton is _UNKNOWN:
            with self._lock:
                skeleton = self._learned(conversation)
                self._keep(key, skeleton)
        if skeleton is None or not skeleton.takes(cores):
            return self._render_slowly(conversation)
        text, filled = skeleton.fill(cores)
        if not text.isascii():
            check_unicode(text)
        for token, number in skeleton.placeholders:
            if text.count(token) != number:
                return self._render_slowly(conversation)
        is_first = not skeleton.is_compared
        if is_first or not zlib.crc32(text[-128:].encode()) % COMPARED:
            if self._render(conversation) == text:
                skeleton.is_compared = True
            elif is_first:
                self._keep(key, None)
                return self._render_slowly(conversation)
            else:
                raise LimitError(_UNLIKE)
        return Rendered(text, skeleton.spans_at(filled), skeleton.media_at(filled))

    def messages(self, conversation: Conversation) -> list[Message]:
        """`conversation` as the messages that a processor is given."""
        return self._form.messages(conversation)

    def changes(self, conversation: Conversation) -> list[str]:
        """Return what is given otherwise than the record holds it, in words: see `Form`."""
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

    def _today(self, layout: str) -> str:
        """``strftime_now``, whose layout is written down."""
        self._layouts[layout] = None
        return now(layout)

    @cached_property
    def _documents(self) -> Documents:
        return Documents(self._render, self._placeholders)

    @cached_property
    def _form(self) -> Form:
        return Form(self._write, self.empty_as_list)

    # -- shapes ------------------------------------------------------------------------------------

    def _keep(self, key: Hashable, skeleton: Skeleton | None) -> None:
        if len(self._skeletons) >= MAX_SHAPES:
            del self._skeletons[next(iter(self._skeletons))]
        self._skeletons[key] = skeleton

    @cached_property
    def _watched(self) -> jinja2.Template:
        return watched(self.source, {"strftime_now": self._today}, self._asked)

    @cached_property
    def _bordered(self) -> jinja2.Template:
        """The template with marks around its ``{% generation %}`` blocks."""
        environment = chat_environment(Bordered)
        environment.globals["strftime_now"] = self._today
        return environment.from_string(self.source)

    def _learned(self, conversation: Conversation) -> Skeleton | None:
        """The skeleton of a record's shape; None where there is none."""
        if MARKED.search(self.source):
            return None
        self._asked.clear()
        try:
            known = without_unknown(conversation, self._names)
            shown = show(partial(self._render, by=self._watched), known, core=HOLE)
            asked = {*self._asked, *tags_of(self._words.header)}
            media = self._placeholders.positions(known, shown.text)
            if media is None:
                return None
            regions = self._regions(known, shown)
            spans = trained_spans(regions, self.policy)
            tokens = self._placeholders.tokens
            return skeleton_of(shown, spans, media, tokens, sorted(asked))
        except (BadRecord, Lost):  # marks do not do, or it is refused: Jinja says which
            return None

    # -- label spans -------------------------------------------------------------------------------

    @cached_property
    def _words(self) -> TurnWords:
        return learn_words(self._render, self._control, self._placeholders.pattern)

    def _regions(self, conversation: Conversation, shown: Shown) -> list[Region]:
        """The trained turns in a rendering with marks.

        Raises:
            Lost: marks do not show one.
        """
        turns = conversation.turns
        if not any(self.policy.trains(turns)):
            return []
        return find_turns(shown, turns, self._words, self.policy, self._has_blocks)

    def _search_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Label spans of one record."""
        if not any(self.policy.trains(conversation.turns)):
            return ()
        known = without_unknown(conversation, self._names)
        try:
            regions = self._search_regions(known, text)
            return trained_spans(regions, self.policy)
        except Lost as error:
            why = f"the chat template does not show what is trained on: {error}"
            raise BadRecord("template", why) from error

    def _search_regions(self, known: Conversation, text: str) -> list[Region]:
        """The trained turns in the rendering `text`, by marks around its texts, or by blocks and
        the words around turns alone.

        Raises:
            Lost: it does not show one.
        """
        lost: list[Exception] = []
        ways = (show, partial(show, blanks=True), partial(show, is_marked=False))
        for way in ways if not MARKED.search(text) else ():
            try:
                shown = way(partial(self._render, by=self._bordered), known)
                if shown.text == text:
                    return self._regions(known, shown)
            except (BadRecord, Lost) as error:
                lost.append(error)
        raise Lost(lost[0] if lost else "it may hold what marks are made of")
