"""Counting: conversations and what is known of their media in, columns of counts out.

What can be exact is: the template's rendering is tokenized, and media are expanded by their
family's arithmetic. What cannot falls back, and says so in `method`. All of a batch is counted at
once: media in one vectorised pass, texts in one call of the tokenizer, sums as columns.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packidx.arrays import Bools, Int64s
from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counts import (
    EXACT,
    HEURISTIC,
    PRECOMPUTED,
    UNKNOWN,
    Counts,
    MediaColumns,
    Spans,
    Texts,
    combine,
    fill,
    stated,
)
from packidx.processor.families import MediaModel
from packidx.processor.kinds import KINDS
from packidx.processor.requests import requested
from packidx.processor.text.encoder import TextEncoder, TokenBatch
from packidx.processor.text.sequence import (
    Ending,
    Expanded,
    FeatureRuns,
    expand,
    locate_runs,
    place_media,
    places,
    trained_tokens,
)
from packidx.records.conversation import Conversation, MediaInfo

BYTES_PER_TOKEN = 3
"""Of UTF-8, in a guess."""


class SampleTokens(NamedTuple):
    """The tokens of one sample as the rules make it."""

    ids: Int64s
    """``[T]``"""
    trained: Bools
    """``[T]`` True for label tokens."""
    starts: list[list[int]]
    """First token of each run of feature tokens, by medium, in order of the text."""
    order: Sequence[int]
    """The number of each of these media in the conversation."""


class ConversationCounter:
    """Counts what `ProcessorEncoder` with the same processor builds.

    Args:
        files: the processor; None counts from what records state, and guesses the rest.
    """

    def __init__(self, files: ProcessorFiles | None) -> None:
        self.files = files
        self.text = None if files is None else TextEncoder(files.tokenizer)
        limit = None if files is None else files.limit
        self._limit = sys.maxsize if limit is None else limit

    @property
    def _loaded(self) -> tuple[ProcessorFiles, TextEncoder]:
        assert self.files is not None and self.text is not None  # without them texts are guessed
        return self.files, self.text

    def fingerprint(self) -> str | None:
        """The processor's, or None without one."""
        return None if self.files is None else self.files.fingerprint()

    def count(
        self,
        conversations: Sequence[Conversation],
        infos: Sequence[Sequence[MediaInfo | None]],
    ) -> Counts:
        """Count a batch; `infos` are what is known of each one's media, in order of appearance."""
        media = self.count_media(conversations, infos)
        return combine(self._count_texts(conversations, media), media)

    # -- media -------------------------------------------------------------------------------------

    def count_media(
        self,
        conversations: Sequence[Conversation],
        infos: Sequence[Sequence[MediaInfo | None]],
    ) -> MediaColumns:
        """The media side of `count`; what cannot be used is in the columns' errors."""
        listed = [medium for c in conversations for medium in c.media]
        known = [info for of_sample in infos for info in of_sample]
        columns = stated(conversations)
        vision = self.files.vision if self.files is not None else None
        if self.files is not None and vision is None and not self.files.lacks_package:
            # Also media with stated tokens: the text around them cannot be built.
            columns.errors = {
                number: BadRecord(
                    "unsupported_media",
                    self.files.unknown or f"{self.files.name} takes no {medium.kind}",
                )
                for number, medium in enumerate(listed)
            }
        if self.files is None or vision is None or not listed:
            return columns
        owners, errors = columns.owners, {}
        for number, medium in enumerate(listed):
            if medium.requests:
                try:
                    known[number] = requested(medium, known[number], self.files)
                except BadRecord as error:
                    errors[number] = error
        for kind, name in enumerate(KINDS):
            if name in vision.unpredictable:
                continue  # such a sample is built
            of_kind = np.flatnonzero(columns.kind == kind).tolist()
            chosen = [i for i in of_kind if known[i] is not None]
            given = [info for i in chosen if (info := known[i]) is not None]
            if not given:
                continue
            fill(columns, chosen, vision.expand(name, given, owners[chosen]), EXACT)
        columns.errors |= not_together(self.files.name, vision, columns) | errors
        return columns

    # -- text --------------------------------------------------------------------------------------

    def _count_texts(self, conversations: Sequence[Conversation], media: MediaColumns) -> Texts:
        num = len(conversations)
        tokens, method, labels = (np.full(num, UNKNOWN, np.int64) for _ in range(3))
        texts = Texts(tokens, method, labels)
        rendered: list[int] = []
        expanded: list[Expanded] = []
        given: list[Spans] = []
        features = frozenset(() if self.files is None else self.files.feature_ids)
        for number, conversation in enumerate(conversations):
            if conversation.input_ids is not None:
                texts.tokens[number] = len(conversation.input_ids)
                trained = _given_labels(conversation)
                texts.labels[number] = trained.sum()
                texts.method[number] = EXACT
                given.append(Spans.of(trained, np.full(len(trained), number)))
                if not features.isdisjoint(conversation.input_ids):
                    texts.errors[number] = media_token_in_text("input_ids hold")
            elif self.text is None:
                texts.tokens[number], texts.method[number] = self._guess(conversation)
            else:
                try:
                    expanded.append(self.expand(conversation, number, media))
                    rendered.append(number)
                except BadRecord as error:
                    texts.errors[number] = error
        if rendered:
            given.append(self._tokenize(expanded, np.array(rendered), media, texts))
        columns = [np.concatenate(parts) for parts in zip(Spans.none(), *given, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        texts.spans = Spans(*(values[order] for values in columns))
        return texts

    def expand(self, conversation: Conversation, number: int, media: MediaColumns) -> Expanded:
        """Sample `number` of `media` as the text that is tokenized.

        Raises:
            BadRecord: as `ChatTemplate.render`; ``no_eos_token`` for a document.
        """
        files, vision = self._loaded[0], self._loaded[0].vision
        ending = document_ending(files, conversation) if conversation.is_document else None
        result = files.template_of(conversation).render(conversation)
        own = slice(media.offsets[number], media.offsets[number + 1])
        kinds = [medium.kind for medium in conversation.media]
        if vision is None or not kinds or not vision.feature_tokens.keys() >= {*kinds}:
            return Expanded(result.text, result.label_spans, (), ending=ending)
        tokens, expansions = media.tokens[own].tolist(), media.expansions[own]
        expanded = expand(result, kinds, tokens, expansions, vision.placeholders)
        expanded.ending = ending
        return expanded

    def tokens_of(self, conversation: Conversation, media: MediaColumns) -> SampleTokens:
        """Return the tokens of one conversation.

        Raises:
            BadRecord: as `ChatTemplate.render`; ``no_eos_token``, ``media_token_in_text``,
                ``cut_off``.
        """
        files, text = self._loaded
        expanded = self.expand(conversation, 0, media)
        batch, runs = self._encode([expanded])
        if runs.mismatched and (expanded.runs or not conversation.media):
            raise media_token_in_text()
        if (tokens := int(batch.lengths[0] + runs.extra[0])) > self._limit:
            raise cut_off(files, tokens)
        repeats = runs.repeats_of(batch)
        trained = trained_tokens(batch, text, [expanded], runs)
        ends = np.cumsum([len(medium) for medium in expanded.runs])[:-1]
        starts = [own.tolist() for own in np.split(runs.at, ends)] if expanded.runs else []
        order = range(len(starts)) if expanded.order is None else expanded.order
        return SampleTokens(
            np.repeat(batch.ids, repeats), np.repeat(trained, repeats), starts, order
        )

    def _encode(self, expanded: Sequence[Expanded]) -> tuple[TokenBatch, FeatureRuns]:
        """The tokens of some texts, and their runs."""
        files, text = self._loaded
        adds = [e.ending is not None or files.adds_special_tokens(e.text) for e in expanded]
        ends = [None if e.ending is None else e.ending.token for e in expanded]
        batch = text.encode([item.text for item in expanded], adds, ends)
        return batch, locate_runs(batch, expanded, files.feature_ids)

    def _tokenize(
        self, expanded: list[Expanded], rows: Int64s, media: MediaColumns, texts: Texts
    ) -> Spans:
        """Count the texts of `rows`; returns where their label tokens are."""
        files, text = self._loaded
        batch, runs = self._encode(expanded)
        has_media = np.diff(media.offsets) > 0
        for number in runs.mismatched:
            if expanded[number].runs or not has_media[rows[number]]:
                texts.errors[int(rows[number])] = media_token_in_text()
        texts.method[rows] = EXACT
        for number in np.flatnonzero(batch.lengths + runs.extra > self._limit).tolist():
            tokens = int(batch.lengths[number] + runs.extra[number])
            texts.errors[int(rows[number])] = cut_off(files, tokens)
        mask = trained_tokens(batch, text, expanded, runs)
        sums = np.concatenate([[0], np.cumsum(mask)])
        texts.labels[rows] = sums[batch.offsets[1:]] - sums[batch.offsets[:-1]]
        own = place_media(media, rows, expanded, runs)
        texts.tokens[rows] = batch.lengths + runs.extra - own
        spans = Spans.of(mask, np.repeat(rows, batch.lengths))
        first, last = (places(batch, runs, at) for at in (spans.start, spans.stop - 1))
        return spans._replace(start=first, stop=last + 1)

    def _guess(self, conversation: Conversation) -> tuple[int, int]:
        """Return (tokens of the text, method), as the record states them or by its UTF-8 bytes."""
        if conversation.text_tokens is not None:
            return conversation.text_tokens, PRECOMPUTED
        parts = (part for turn in conversation.turns for part in turn.parts)
        texts = "".join(part for part in parts if isinstance(part, str))
        return len(texts.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN, HEURISTIC


def _given_labels(conversation: Conversation) -> Bools:
    """Return which positions contribute to the loss of a record that holds its own ids, bool
    [T]."""
    trained = np.ones(len(conversation.input_ids or ()), bool)
    if conversation.labels is not None:
        trained = np.asarray(conversation.labels, np.int64) >= 0
    trained[:1] = False
    return trained


def document_ending(files: ProcessorFiles, document: Conversation) -> Ending:
    """Return what ends a document.

    Raises:
        BadRecord: ``no_eos_token``.
    """
    if files.end_of_text is None:
        text = "has no eos_token, with which a document must end: state it in"
        raise BadRecord("no_eos_token", f"{files.name} {text} its tokenizer_config.json")
    policy = files.policy
    return Ending(files.end_of_text, policy.end_of_turn and any(policy.trains(document.turns)))


def media_token_in_text(where: str = "a text holds") -> BadRecord:
    """Return why a text with feature tokens of its own is refused."""
    return BadRecord("media_token_in_text", f"{where} a token that stands for media: remove it")


def cut_off(files: ProcessorFiles, tokens: int) -> BadRecord:
    """Return why a sample is refused that the real processor would cut."""
    where = "take max_length and truncation out of its tokenizer_config.json and tokenizer.json"
    text = f"{tokens} tokens, of which {files.name} leaves {files.limit}: {where}"
    return BadRecord("cut_off", text)


def not_together(name: str, vision: MediaModel, media: MediaColumns) -> dict[int, BadRecord]:
    """Return why media that each can be used cannot be in one sample of `name`, by number."""
    errors = {}
    owners = media.owners
    mixed = media.mixed() if vision.one_kind_per_sample else set()
    for number, owner in enumerate(owners.tolist() if mixed else ()):
        if owner in mixed:
            text = f"{name} cannot encode images and videos of one sample together"
            errors[number] = BadRecord("unsupported_media", text)
    if vision.same_num_frames:
        videos = np.flatnonzero((media.kind == KINDS.index("video")) & (media.grid[:, 0] > 0))
        for last, number in itertools.pairwise(videos.tolist()):
            frames = media.grid[[last, number], 0].tolist()
            if owners[last] == owners[number] and frames[0] != frames[1]:
                text = f"{name} takes equally many frames of all videos of a sample, not "
                text += f"{frames[0]} and {frames[1]}: name as many of each in frame_indices"
                errors[number] = BadRecord("unsupported_media", text)
    return errors
