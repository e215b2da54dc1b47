"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Rendering with Jinja costs tens of µs, so it is done once for all records of a shape: a record's
texts are put into a `Skeleton`, which was learned from a record of the same shape, with marks in
place of its texts. It has been compared with Jinja's own rendering of that record, and one of
`COMPARED` records that it serves is compared again. Where marks cannot stand for texts, Jinja
renders each record. So what is tokenized is what transformers would tokenize.
"""

from __future__ import annotations

import contextlib
import re
import threading
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.meta

from packidx.errors import BadRecord, LimitError, SourceError
from packidx.processor.chat_template.asked import MARKS, NOTHING, asked_by
from packidx.processor.chat_template.environment import (
    Generation,
    chat_environment,
    check_unicode,
    now,
)
from packidx.processor.chat_template.messages import (
    Form,
    Message,
    Unusual,
    asked_by_name,
    names_in,
    structure,
    with_texts,
)
from packidx.processor.chat_template.placeholders import Documents, Placeholders, any_of
from packidx.processor.chat_template.skeleton import (
    LearntShape,
    Shape,
    Skeleton,
    Unlike,
    fillers_of,
    held_in,
    learn,
    region_at,
    shapes_of,
)
from packidx.processor.chat_template.turns import (
    CharPosition,
    Hole,
    Lost,
    Region,
    Span,
    TurnWords,
    by_prefix,
    find_turns,
    learn_words,
    trained_spans,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation

MAX_SHAPES = 4096
COMPARED = 1024
"""Of so many records one is compared with Jinja's rendering, whichever they are."""
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


_UNKNOWN = Skeleton((), [], False)


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
        self._asked = asked_by(environment.parse(source), source)
        self._words: TurnWords | None = None
        self._skeletons: dict[Hashable, Skeleton | None] = {}
        self._dates: dict[str, str] = {}
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
            LimitError: it is rendered otherwise than others of its shape.
            MemoryError: it ran out.
        """
        if conversation.is_document:
            text, spans, media = self._documents.write(conversation)
            check_unicode(text)
            return Rendered(
                text, spans if any(self.policy.trains(conversation.turns)) else (), media
            )
        if self._asked is None:
            return self._render_slowly(conversation)
        try:
            structured, texts = structure(conversation, self._names)
            shapes, cores = shapes_of(texts, self._asked)
        except (Unusual, Unlike):
            return self._render_slowly(conversation)
        skeleton = self._skeleton(conversation, structured, shapes, cores)
        if skeleton is None:
            return self._render_slowly(conversation)
        text, borders = skeleton.fill(cores)
        if not text.isascii():
            check_unicode(text)
        if texts and not zlib.crc32(texts[-1][-64:].encode(errors="replace")) % COMPARED:
            self._compare(conversation, text)
        if skeleton.media is None or self._placeholders.are_in(texts):
            media = self._placeholders.find(conversation, text)
        else:
            media = tuple([borders[i] + offset for i, offset in skeleton.media])
        if skeleton.lost:
            spans = self._search_spans(conversation, text)
        else:
            spans = skeleton.label_spans(text, borders, self.policy)
        return Rendered(text, spans, media)

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

    def _render(self, conversation: Conversation, *, prompt: bool = False) -> str:
        """Jinja's rendering."""
        messages = self._form.rendered(conversation)
        return self._write(self._template, messages, conversation.tools, prompt)

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
    def _marked_template(self) -> jinja2.Template:
        """The template with marks around its ``{% generation %}`` blocks."""
        if not self._has_blocks:
            return self._template
        bordered = type("Bordered", (Generation,), {"borders": (MARKS[2], MARKS[3])})
        environment = chat_environment(bordered)
        environment.globals["strftime_now"] = self._today
        return environment.from_string(self.source)

    def _today(self, layout: str) -> str:
        """``strftime_now``, written down."""
        self._dates[layout] = now(layout)
        return self._dates[layout]

    @staticmethod
    def _is_of_today(skeleton: Skeleton) -> bool:
        return all(now(layout) == said for layout, said in skeleton.dates)

    @cached_property
    def _documents(self) -> Documents:
        return Documents(self._render, self.media_tokens, self.policy)

    @cached_property
    def _form(self) -> Form:
        return Form(partial(self._write, self._template), self.empty_as_list)

    # -- shapes ------------------------------------------------------------------------------------

    def _compare(self, conversation: Conversation, text: str) -> None:
        if self._render(conversation) != text:
            raise LimitError(
                "the chat template renders the record otherwise than others of its shape; "
                "please tell us of this template, and leave the record out"
            )

    def _skeleton(
        self,
        conversation: Conversation,
        structured: Hashable,
        shapes: Sequence[Shape],
        cores: Sequence[str],
    ) -> Skeleton | None:
        """The skeleton of the record's shape: of any cores, whatever words they hold; or of those
        that hold the same words as the record's. None where there is none."""
        assert self._asked is not None  # it gave the shapes
        for of_any in (True, False) if self._asked.held else (True,):
            words = self._asked.held if of_any else held_in(cores, self._asked)
            key = (structured, tuple(shapes), words)
            skeleton = self._skeletons.get(key, _UNKNOWN)
            if skeleton is _UNKNOWN or (skeleton and not self._is_of_today(skeleton)):
                with self._lock:
                    skeleton = self._learned(conversation, shapes, cores, words)
                    if len(self._skeletons) >= MAX_SHAPES:
                        del self._skeletons[next(iter(self._skeletons))]
                    self._skeletons[key] = skeleton
            if skeleton is not None:
                return skeleton
        return None

    def _marked(self, conversation: Conversation, texts: Sequence[str]) -> str:
        """The rendering of other texts, with marks around ``{% generation %}`` blocks."""
        marked, _ = with_texts(conversation, self._names, texts)
        messages = asked_by_name(self._form.rendered(marked), conversation, self._names)
        return self._write(self._marked_template, messages, conversation.tools)

    def _learned(
        self,
        conversation: Conversation,
        shapes: Sequence[Shape],
        cores: Sequence[str],
        words: Sequence[str],
    ) -> Skeleton | None:
        """The skeleton of the record's shape, whichever of `words` are in its cores; None where
        there is none."""
        assert self._asked is not None  # see `_skeleton`
        _, owners = with_texts(conversation, self._names, [""] * len(shapes))
        self._dates.clear()
        try:
            fillers = fillers_of(len(cores), self._asked, words)
            learnt = learn(partial(self._marked, conversation), shapes, owners, fillers)
            plain = self._render(conversation)
        except MemoryError:
            raise
        except Exception:  # marks do not do, or it is refused: Jinja's own rendering says which
            return None
        skeleton = learnt.skeleton
        skeleton.dates = tuple(self._dates.items())
        if skeleton.fill(cores)[0] != plain:
            return None
        if not any(hole.is_json for hole in skeleton.holes):
            media = self._placeholders.positions(conversation, learnt.rendering)
            skeleton.media = None if media is None else tuple(map(learnt.placed, media))
        try:
            turns = self._turns(conversation, learnt, owners)
            skeleton.set_turns(list(map(learnt.region, turns)), self.policy)
        except Lost:
            skeleton.lost = True
        return skeleton

    # -- label spans -------------------------------------------------------------------------------

    def _turns(
        self, conversation: Conversation, learnt: LearntShape, owners: Sequence[Sequence[Hole]]
    ) -> list[Region[CharPosition]]:
        """The trained turns in a rendering of marks.

        Raises:
            Lost: marks do not show one.
        """
        wanted = self.policy.trains(conversation.turns)
        if not any(wanted):
            return []
        if self._words is None:
            self._words = learn_words(self._render, self._control, self._placeholders.pattern)
        turns = find_turns(
            learnt.rendering, conversation.turns, self._words, self.policy, self._has_blocks
        )
        if not self._has_blocks and any(
            wanted[owner.turn] and owner.kind == "content"
            for text in learnt.open_texts
            for owner in owners[text]
        ):
            raise Lost("the end of a text")
        return [turn for turn in turns if wanted[turn.turn]]

    def _search_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Label spans of one record, by marks around its own texts, or by what stands before each
        turn."""
        wanted = self.policy.trains(conversation.turns)
        if not any(wanted):
            return ()
        regions: list[Region[int]] | None = None
        for shapes, cores in self._own_shapes(conversation):
            with contextlib.suppress(BadRecord, Unlike, Lost):
                _, owners = with_texts(conversation, self._names, [""] * len(shapes))
                learnt = learn(partial(self._marked, conversation), shapes, owners, [cores] * 2)
                filled, borders = learnt.skeleton.fill(cores)
                if filled != text:
                    continue
                turns = map(learnt.region, self._turns(conversation, learnt, owners))
                regions = [region_at(turn, borders) for turn in turns]
                break
        if regions is None and self._has_blocks:
            raise BadRecord("template", "it is not clear which turn a generation block belongs to")
        if regions is None:
            regions = by_prefix(
                self._render, conversation, text, wanted, self._control, self.policy
            )
        return trained_spans(regions, text, self.policy)

    def _own_shapes(self, conversation: Conversation) -> Iterator[tuple[list[Shape], list[str]]]:
        """Shapes of a record's texts, and their cores: cut at the template's words, first with
        marks for white space alone; then none, which does where blocks show the turns."""
        try:
            _, texts = structure(conversation, self._names)
        except Unusual:
            return
        asked = NOTHING if self._asked is None else self._asked
        asked = replace(asked, equal=frozenset(), distinct=False)
        for marks_space in (True, False) if any(map(str.isspace, texts)) else (False,):
            with contextlib.suppress(Unlike):
                yield shapes_of(texts, asked, marks_space=marks_space)
        if self._has_blocks:
            yield [(text,) for text in texts], []


def _refusal(error: Exception) -> BadRecord:
    return BadRecord("template", f"the chat template refuses it: {error}")
