"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Jinja renders a record once, as transformers does, and its label spans are found in that rendering
by the layout of its form. The form of a conversation is all of it but the *cores* of its texts:
texts without the white space at their ends. Per form the template renders stand-in texts once, with
marks around them. That gives its layout: the words before, between and behind the cores, and where
the label spans are among them. If words and a record's cores make up its rendering, its spans are
those; else its own texts get marks, as those of records with tools or further keys.

Example: ``<user>Hi<end><model>Yes<end>`` is the words ``<user>``, ``<end><model>`` and ``<end>``
around two cores; the label span begins at the end of the second and ends at that of the third.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from packidx.errors import BadRecord, SourceError
from packidx.processor.chat_template import marks
from packidx.processor.chat_template.marks import BORDERS, Lost, Shown, Span, find_gaps
from packidx.processor.chat_template.messages import Form, Message, find_names
from packidx.processor.chat_template.turns import (
    Render,
    TurnWords,
    block_spans,
    compile_any,
    learn_words,
    marked_spans,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn

# -- Jinja as transformers 5.23 has it (`utils/chat_template_utils.py`) ----------------------------

_DICT = frozenset(dir(dict))
_OWN = (jinja2.utils.Namespace, jinja2.runtime.LoopContext)


class Generation(jinja2.ext.Extension):
    """``{% generation %} … {% endgeneration %}``: rendered as its body, between `borders`."""

    tags = {"generation"}
    borders = ("", "")

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: jinja2.runtime.Macro) -> str:
        before, after = self.borders
        return before + str(caller()) + after


class Bordered(Generation):
    """``{% generation %}`` blocks between `BORDERS`."""

    borders = BORDERS


def _raise_error(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def format_now(layout: str) -> str:
    """``strftime_now``"""
    return datetime.now().strftime(layout)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of transformers in half the time: it does not guard a message's keys, nor the
    macros, loops and namespaces of the template itself."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict:
            if attribute in obj and attribute not in _DICT:
                return obj[attribute]  # Jinja asks for an attribute first, which a dict has not
        elif type(obj) in _OWN and attribute[0] != "_" and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_macro = type(obj) is jinja2.runtime.Macro
        if is_macro or obj is jinja2.utils.Namespace:  # as `Context.call`, which asks what it is
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            if not is_macro:
                return obj(*args, **kwargs)
            more = kwargs or obj.caller or obj.catch_kwargs or obj.catch_varargs
            if more or len(args) != obj._argument_count or context.eval_ctx.autoescape:
                return obj(context.eval_ctx, *args, **kwargs)
            return obj._func(*args)  # as `Macro.__call__`
        return super().call(context, obj, *args, **kwargs)


def compile_template(
    source: str, given: Mapping[str, Any], generation: type[Generation] = Generation
) -> Callable[..., str]:
    """Return a function that renders a template with the variables that it is called with, and
    those `given`; it raises a jinja2.TemplateError if it is not valid."""
    template = make_environment(generation).from_string(source)
    always, environment = {**template.globals, **given}, template.environment

    def render(**variables: Any) -> str:  # as `Template.render`, which copies the globals
        context = jinja2.runtime.Context(environment, always | variables, None, template.blocks)
        text = "".join(template.root_render_func(context))
        context.vars.clear()  # macros in it refer to it, so that only garbage collection frees it
        return text

    return render


def make_environment(generation: type[Generation] = Generation) -> jinja2.Environment:
    """A sandboxed environment that renders chat templates as transformers 5.23 does."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals.update(raise_exception=_raise_error, strftime_now=format_now)
    return environment


def check_unicode(text: str) -> None:
    """Raise a BadRecord (``bad_text``) if a text holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord("bad_text", f"the text is not valid Unicode: {error}") from error


# -- one record ------------------------------------------------------------------------------------

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

MAX_FORMS = 4096
"""Layouts that are kept."""


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


def split_form(turns: Sequence[Turn]) -> tuple[Hashable, list[str]]:
    """Return the form of messages, and the cores of their texts."""
    form: list[Hashable] = []
    cores = []
    for turn in turns:
        form.append((turn.role, turn.text_as_list, len(turn.parts)))
        for part in turn.parts:
            if not isinstance(part, str):
                form.append((part.kind,))
            elif core := part.strip():
                cores.append(core)
                form.append(None if len(core) == len(part) else part.partition(core)[::2])
            else:
                form.append(part)
    return tuple(form), cores


def with_stand_ins(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return messages of the same form with other cores."""

    def stand_in(part: str | Media, number: int) -> str | Media:
        if not isinstance(part, str) or not (core := part.strip()):
            return part
        return part.replace(core, f"Quokka {number}.", 1)

    return tuple(
        replace(turn, parts=tuple(stand_in(part, number) for part in turn.parts))
        for number, turn in enumerate(turns)
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """A template's words around the cores of a form's texts."""

    words: Sequence[str]
    """``[n + 1]`` what is before, between and behind the cores that are written."""
    cores: Sequence[int]
    """``[n]`` their numbers among all cores."""
    borders: Sequence[tuple[int, int]]
    """Starts and ends of label spans in turn: number of the words, and characters into these."""

    @classmethod
    def of(cls, shown: Shown, spans: Sequence[Span]) -> Layout | None:
        """Return the layout of a rendering with these label spans; None if the template takes texts
        apart or writes them twice."""
        cores = [each.number for each in shown.stretches]
        if len({*cores}) < len(cores) or not all(e.begins and e.ends for e in shown.stretches):
            return None
        starts = [0, *(each.end for each in shown.stretches)]
        ends = [*(each.start for each in shown.stretches), len(shown.text)]
        words = [shown.text[start:end] for start, end in zip(starts, ends, strict=True)]
        borders = []
        for border in itertools.chain(*spans):
            number = bisect.bisect_right(starts, border) - 1
            if border > ends[number]:
                return None
            borders.append((number, border - starts[number]))
        return cls(words, cores, borders)

    def find(self, cores: Sequence[str], text: str) -> tuple[Span, ...] | None:
        """Return the label spans of the rendering `text` of a record with these cores; None if it
        has another layout."""
        pieces = [self.words[0]]
        for number, words in zip(self.cores, self.words[1:], strict=True):
            pieces += cores[number], words
        if "".join(pieces) != text:
            return None
        ends = [0, *itertools.accumulate(map(len, pieces))]
        places = iter([ends[2 * number] + into for number, into in self.borders])
        return tuple(zip(places, places, strict=True))


class Placeholders:
    """The tokens that a template writes for media.

    Args:
        tokens: by kind.
        render: a conversation as the template writes it.
    """

    def __init__(self, tokens: Mapping[str, str], render: Callable[[Conversation], str]) -> None:
        self.pattern = compile_any(tokens.values())
        self.of_kind = dict(tokens)
        self._render = render
        self._around: dict[str, str] = {}

    def find(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        """First character of each medium's placeholder in the rendering `text`.

        Some templates write a turn's images before its videos: the nth placeholder of a kind is the
        nth medium of that kind, wherever it stands.

        Raises:
            BadRecord: ``media_token_in_text`` or ``media_not_rendered``.
        """
        if self.pattern is None:
            return ()
        written = [(match.group(), match.start()) for match in self.pattern.finditer(text)]
        media = [self.of_kind.get(medium.kind, "") for medium in conversation.media]
        if not written and not media:
            return ()
        for turn in conversation.turns:
            for part in turn.parts:
                if isinstance(part, str) and (hit := self.pattern.search(part)):
                    detail = f"a {turn.role} turn's text holds {hit.group()!r}: remove or escape it"
                    raise BadRecord("media_token_in_text", detail)
        tokens = [token for token, _ in written]
        if tokens == media:
            return tuple([at for _, at in written])
        if sorted(tokens) != sorted(media):
            reason = "media_not_rendered" if len(written) < len(media) else "media_token_in_text"
            numbers = f"{len(written)} media placeholders for {len(media)} media"
            raise BadRecord(reason, f"the rendered text has {numbers}")
        left = {own: iter([at for token, at in written if token == own]) for own in set(tokens)}
        return tuple([next(left[token]) for token in media])

    def write(self, conversation: Conversation) -> tuple[str, tuple[Span, ...], tuple[int, ...]]:
        """A document's text, where its own words are, and its media's placeholders.

        Raises:
            BadRecord: ``bad_text``; ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the processor takes no such media.
        """
        text, spans = "", list[Span]()
        for part in conversation.turns[0].parts:
            if not isinstance(part, str):
                text += self._write_medium(part.kind)
                continue
            touches = bool(spans) and spans[-1][1] == len(text)  # a token may reach over both
            start = spans.pop()[0] if touches else len(text)
            text += part
            spans.append((start, len(text)))
        check_unicode(text)
        return text, tuple(spans), self.find(conversation, text)

    def _write_medium(self, kind: str) -> str:
        """Return what is written for a medium of a kind: its token, and the template's words."""
        token = self.of_kind.get(kind)
        if token is None:
            raise BadRecord("media_not_rendered", f"a document has a {kind}, which has no place")
        if kind not in self._around:
            parts = ("Text", Media(kind), "Text", Media(kind), "Text")
            around = [gap.strip() for gap in find_gaps(self._render, Turn("user", parts))[1:3]]
            usable = len(around) == 2 and around[0] == around[1] and around[0].count(token) == 1
            self._around[kind] = around[0] if usable else token
        return self._around[kind]


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
            self._plain = compile_template(source, self.special_tokens)
            parsed = make_environment().parse(source)
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        used = {node.name for node in parsed.find_all(jinja2.nodes.Name)}
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self.day = format_now("%Y-%m-%d") if "strftime_now" in used else None
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
        check_unicode(text)
        shown = None
        if marks.says_more(conversation):
            shown = self._render_marked(conversation)
            marks.check_written(conversation, text, shown, self._writes_tools(conversation, text))
        media = self._placeholders.find(conversation, text)
        return Rendered(text, self._find_label_spans(conversation, text, shown), media)

    def adds_special_tokens(self, text: str) -> bool:
        """Return True if a processor's tokenizer adds its special tokens to a rendering: if the
        template wrote no BOS (transformers 5.23, `ProcessorMixin.apply_chat_template`)."""
        bos = self.special_tokens.get("bos_token")
        return not (bos and text.startswith(bos))

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
        return compile_template(self.source, self.special_tokens, Bordered)

    def _find_label_spans(
        self, conversation: Conversation, text: str, shown: Shown | None
    ) -> tuple[Span, ...]:
        """Return the label spans of a record in its rendering `text`; raise a BadRecord
        (``template``) if it does not show them."""
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
        """Return a rendering with marks around texts; raise a BadRecord (``template``) if the
        template does not take them."""
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
