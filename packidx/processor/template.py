"""Chat templates: a conversation as the text that is tokenized, and where its labels are.

Label spans must come out of any template without knowing it, and rendering is a cost of its own
(tens of µs a conversation), so each record is rendered **once**, plainly: what is tokenized is what
transformers would tokenize, by construction. The spans come from a *skeleton*: a conversation of
the same structure (roles, kinds of parts) whose texts are probes is rendered once and cut at the
probes, which leaves the template's own words between texts. A record's texts put into the skeleton
must give its plain rendering exactly; a string comparison proves it, record by record, and then
each text's place is known. A template that changes text (trims it, cuts it at `</think>`), looks
into it or lets it decide something fails the comparison and goes a slower way, down to
`_prefix_spans`; what no way explains is an error, never a guess.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import jinja2.meta

from packidx.errors import BadRecord, SourceError
from packidx.processor.environment import chat_environment
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation, Media, Turn, to_messages

MAX_SKELETONS = 1024
REASONING = ("reasoning_content", "thinking", "reasoning")
SPOKEN = {"tool_calls", *REASONING}
"""Keys of an assistant's message that hold its words, besides ``content``."""

# Private-use characters, which no template writes; a record that holds them is no exception.
_PROBE = "\ue0b0{}\ue0b1"
_PROBES = re.compile("\ue0b0([0-9]+)\ue0b1")
_START, _END = "\ue0b2", "\ue0b3"

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text."""

    text: str
    """What is tokenized, media placeholders not yet expanded."""
    label_spans: tuple[Span, ...]
    """Character ranges ``[start, end)`` that are trained on, ascending."""
    media: tuple[int, ...] = ()
    """First character of each medium's placeholder, in order of appearance."""


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """A template's words for one structure: ``words[0] texts[slots[0]] words[1] …``."""

    words: tuple[str, ...]
    slots: tuple[int, ...]

    def fill(self, texts: Sequence[str]) -> tuple[str, dict[int, Span]]:
        """The rendering with `texts` in place, and where each of them is."""
        pieces, where, at = [self.words[0]], {}, len(self.words[0])
        for slot, word in zip(self.slots, self.words[1:], strict=True):
            text = texts[slot]
            where[slot] = (at, at + len(text))
            pieces += (text, word)
            at += len(text) + len(word)
        return "".join(pieces), where


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        special_tokens: variables such as ``eos_token`` that the template may use.
        control_tokens: the tokenizer's special tokens; the one that directly follows an assistant
            turn's content ends the turn and is a label.
        media_tokens: kind of medium → placeholder token, where the processor has one.
        empty_as_list: render empty content as ``[]``, as `ProcessorMixin.apply_chat_template` does
            when it tokenizes (tokenizers alone keep ``""``).

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
            used = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise SourceError(f"the chat template is not valid Jinja: {error}") from error
        self.used_tokens = {k: v for k, v in sorted(self.special_tokens.items()) if k in used}
        self._ends = _any_of(self.control_tokens)
        self._placeholders = _any_of(self.media_tokens.values())
        self._kinds = {token: kind for kind, token in self.media_tokens.items()}
        self._skeletons: OrderedDict[Any, _Skeleton | None] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.source, self.special_tokens, self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "control_tokens": self.control_tokens,
            "media_tokens": self.media_tokens,
            "empty_as_list": self.empty_as_list,
            "policy": self.policy,
        }

    def render(self, conversation: Conversation) -> Rendered:
        """`conversation` as text, as transformers renders it without a generation prompt.

        Raises:
            BadRecord: ``template`` if the template fails or hides what the assistant says;
                ``bad_text`` if it holds half a surrogate pair;
                ``media_token_in_text`` if a text holds a placeholder token;
                ``media_not_rendered`` if the template leaves a medium out.
        """
        text = self._render(conversation)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRecord("bad_text", f"the text is not valid Unicode: {error}") from error
        media = self._find_media(conversation, text)
        spans = self._label_spans(conversation, text)
        return Rendered(text, spans, media)

    def _render(self, conversation: Conversation, *, prompt: bool = False) -> str:
        messages = to_messages(conversation)
        for turn, message in zip(conversation.turns, messages, strict=True):
            if turn.extra:
                _normalise(message)
            if self.empty_as_list and message.get("content") == "":
                message["content"] = []
        try:
            return self._template.render(
                messages=messages,
                tools=conversation.tools,
                documents=None,
                add_generation_prompt=prompt,
                **self.special_tokens,
            )
        except Exception as error:  # a template is foreign code: whatever it raises is its verdict
            raise BadRecord("template", f"the chat template refuses it: {error}") from error

    def _find_media(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        if self._placeholders is None:
            return ()
        found = [(m.start(), self._kinds[m.group()]) for m in self._placeholders.finditer(text)]
        media = [medium.kind for medium in conversation.media]
        if not found and not media:
            return ()
        for turn in conversation.turns:
            for part in turn.parts:
                if isinstance(part, str) and (hit := self._placeholders.search(part)):
                    detail = f"a {turn.role} turn's text holds {hit.group()!r}: remove or escape it"
                    raise BadRecord("media_token_in_text", detail)
        if [kind for _, kind in found] != media:
            reason = "media_not_rendered" if len(found) < len(media) else "media_token_in_text"
            detail = f"the rendered text has {len(found)} media placeholders for {len(media)} media"
            raise BadRecord(reason, detail)
        return tuple(at for at, _ in found)

    # -- label spans -----------------------------------------------------------------------------

    def _label_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        turns = conversation.turns
        if not any(turn.role in self.policy.roles for turn in turns):
            return ()
        if any(SPOKEN & turn.extra.keys() for turn in turns if turn.role in self.policy.roles):
            return self._prefix_spans(conversation, text)
        texts, owners = _texts(conversation)
        where = self._place(conversation, texts, text)
        for mark in (_mark_all, _mark_core):
            where = where or self._place_marked(conversation, text, mark)
        if where is None or any(
            turns[turn].role in self.policy.roles and slot not in where
            for slot, (turn, _) in enumerate(owners)
        ):
            return self._prefix_spans(conversation, text)
        spans = []
        for slot, (turn, is_last) in enumerate(owners):
            if turns[turn].role in self.policy.roles:
                start, end = where[slot]
                spans.append((start, self._turn_end(text, end) if is_last else end))
        return tuple(sorted(spans))

    def _turn_end(self, text: str, end: int) -> int:
        """`end`, or the end of the special token that stands there."""
        if self._ends is None or not self.policy.end_of_turn:
            return end
        found = self._ends.match(text, end)
        return found.end() if found else end

    def _place(
        self, conversation: Conversation, texts: list[str], text: str
    ) -> dict[int, Span] | None:
        """Where each text is in `text`, if the structure's skeleton explains `text` exactly."""
        skeleton = self._skeleton(conversation)
        if skeleton is None:
            return None
        filled, where = skeleton.fill(texts)
        if filled == text:
            return where
        filled, where = skeleton.fill([part.strip() for part in texts])
        return where if filled == text else None

    def _skeleton(self, conversation: Conversation) -> _Skeleton | None:
        turns = conversation.turns
        if conversation.tools or any(turn.extra for turn in turns):
            return self._probe(conversation)  # other keys may say anything: not worth a cache
        key = tuple(
            (turn.role, *("" if isinstance(part, str) else part.kind for part in turn.parts))
            for turn in turns
        )
        if key in self._skeletons:
            self._skeletons.move_to_end(key)
            return self._skeletons[key]
        skeleton = self._skeletons[key] = self._probe(conversation)
        if len(self._skeletons) > MAX_SKELETONS:
            self._skeletons.popitem(last=False)
        return skeleton

    def _probe(self, conversation: Conversation) -> _Skeleton | None:
        count = len(_texts(conversation)[0])
        probes = iter([_PROBE.format(slot) for slot in range(count)])
        try:
            rendering = self._render(_with_texts(conversation, lambda _, __: next(probes)))
        except BadRecord:
            return None
        cut = _PROBES.split(rendering)
        slots = tuple(int(slot) for slot in cut[1::2])
        if len(set(slots)) != len(slots):
            return None
        return _Skeleton(tuple(map(sys.intern, cut[0::2])), slots)  # mostly the same few words

    def _place_marked(
        self, conversation: Conversation, text: str, mark: Callable[[str], str]
    ) -> dict[int, Span] | None:
        """Where each trained text is, from a rendering with marks around each of them.

        Taking the marks out must give `text`; this is for templates that treat texts differently.
        """
        if _START in text or _END in text:
            return None
        texts, owners = _texts(conversation)
        trained = [
            slot
            for slot, (turn, _) in enumerate(owners)
            if conversation.turns[turn].role in self.policy.roles
        ]
        marked = iter([mark(part) if slot in trained else part for slot, part in enumerate(texts)])
        try:
            rendering = self._render(_with_texts(conversation, lambda _, __: next(marked)))
        except BadRecord:
            return None
        if rendering.replace(_START, "").replace(_END, "") != text:
            return None
        starts = [at - 2 * i for i, at in enumerate(_positions(rendering, _START))]
        ends = [at - 2 * i - 1 for i, at in enumerate(_positions(rendering, _END))]
        if not len(starts) == len(ends) == len(trained):
            return None
        spans = list(zip(starts, ends, strict=True))
        borders = [border for span in spans for border in span]
        return dict(zip(trained, spans, strict=True)) if borders == sorted(borders) else None

    def _prefix_spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """Spans from rendering the turns before each trained one with the generation prompt.

        What follows that prefix, up to the next special token, is what the model would generate:
        reasoning and tool calls included.
        """
        spans: list[Span] = []
        for number, turn in enumerate(conversation.turns):
            if turn.role not in self.policy.roles:
                continue
            before = replace(conversation, turns=conversation.turns[:number])
            prefix = self._render(before, prompt=True)
            if not text.startswith(prefix) or (spans and len(prefix) < spans[-1][1]):
                raise _hidden(number)
            forged = [p for p in turn.parts if isinstance(p, str) and self._has_end(p)]
            found = self._ends.search(text, len(prefix)) if self._ends else None
            if forged or found is None:
                raise _hidden(number)
            spans.append((len(prefix), found.end() if self.policy.end_of_turn else found.start()))
        return tuple(spans)

    def _has_end(self, part: str) -> bool:
        return self._ends is not None and self._ends.search(part) is not None


def _rebuild(source: str, tokens: dict[str, str], options: dict[str, Any]) -> ChatTemplate:
    return ChatTemplate(source, tokens, **options)


def _hidden(number: int) -> BadRecord:
    detail = f"the chat template does not show which tokens turn {number} (assistant) is made of"
    return BadRecord("template", detail)


def _any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(set(tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _texts(conversation: Conversation) -> tuple[list[str], list[tuple[int, bool]]]:
    """All texts, and for each its turn's number and whether it ends that turn.

    A turn without parts has one empty text: its end-of-turn token has a place, too.
    """
    texts: list[str] = []
    owners: list[tuple[int, bool]] = []
    for number, turn in enumerate(conversation.turns):
        parts = turn.parts or ("",)
        for place, part in enumerate(parts):
            if isinstance(part, str):
                texts.append(part)
                owners.append((number, place == len(parts) - 1))
    return texts, owners


def _with_texts(conversation: Conversation, text_of: Any) -> Conversation:
    """`conversation` with each text (of `_texts`, in order) replaced by ``text_of(turn, part)``."""
    turns: list[Turn] = []
    for turn in conversation.turns:
        parts: list[str | Media] = []
        for part in turn.parts or ("",):
            parts.append(text_of(turn, part) if isinstance(part, str) else part)
        turns.append(replace(turn, parts=tuple(p for p in parts if p != "")))
    return replace(conversation, turns=tuple(turns))


def _mark_all(text: str) -> str:
    return f"{_START}{text}{_END}"


def _mark_core(text: str) -> str:
    """Marks inside the white space, for templates that trim it."""
    core = text.strip()
    if not core:
        return text + _START + _END
    start = text.index(core)
    return f"{text[:start]}{_START}{core}{_END}{text[start + len(core) :]}"


def _positions(text: str, mark: str) -> list[int]:
    return [found.start() for found in re.finditer(mark, text)]


def _normalise(message: dict[str, Any]) -> None:
    """What transformers does to messages with further keys before it renders them."""
    for key in [key for key, value in message.items() if value is None]:
        del message[key]
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message.setdefault("thinking", reasoning)
        message["reasoning_content"] = reasoning
