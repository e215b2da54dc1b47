"""Counting: conversations and what is known of their media in, columns of counts out.

What can be exact is: the template's rendering is tokenized, and media are expanded by their
family's arithmetic. What cannot falls back, and says so in `method`. All of a batch is counted at
once: media in one vectorised pass, texts in one call of the tokenizer, sums as columns.
"""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from packidx.arrays import Bools, Int64s
from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.chat_template.chat_template import Rendered
from packidx.processor.chat_template.marks import Span
from packidx.processor.counts import (
    EXACT,
    HEURISTIC,
    PRECOMPUTED,
    UNKNOWN,
    Counts,
    MediaColumns,
    Spans,
)
from packidx.processor.families import Expansion, MediaModel
from packidx.processor.kinds import KINDS
from packidx.processor.requests import apply_requests
from packidx.processor.text.encoder import TextEncoder, TokenBatch
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
        counts = Counts(media, *np.full((3, len(conversations)), UNKNOWN, np.int64))
        rendered: dict[int, Expanded] = {}
        spans: list[Spans] = []
        features = frozenset(() if self.files is None else self.files.feature_ids)
        for number, conversation in enumerate(conversations):
            if (ids := conversation.input_ids) is not None:
                labels = ids if conversation.labels is None else conversation.labels
                trained = np.asarray(labels, np.int64) >= 0
                trained[:1] = False
                counts.text_tokens[number], counts.label_tokens[number] = len(ids), trained.sum()
                counts.method[number] = EXACT
                spans.append(Spans.of(trained, np.full(len(ids), number)))
                if not features.isdisjoint(ids):
                    counts.errors[number] = refuse_media_token("input_ids hold")
            elif self.text is None:
                counts.text_tokens[number], counts.method[number] = _guess_tokens(conversation)
            else:
                try:
                    rendered[number] = self.expand(conversation, number, media)
                except BadRecord as error:
                    counts.errors[number] = error
        if rendered:
            spans.append(self._count_texts(rendered, counts))
        return counts.summed(spans)

    def count_media(
        self,
        conversations: Sequence[Conversation],
        infos: Sequence[Sequence[MediaInfo | None]],
    ) -> MediaColumns:
        """The media side of `count`; what cannot be used is in the columns' errors."""
        listed = [medium for c in conversations for medium in c.media]
        known = [info for of_sample in infos for info in of_sample]
        columns, files = MediaColumns.stated(conversations), self.files
        if files is None:
            return columns
        if (vision := files.vision) is None:
            # Also media with stated tokens: the text around them cannot be built.
            for number, medium in enumerate(() if files.lacks_package else listed):
                why = files.unknown or f"{files.name} takes no {medium.kind}"
                columns.errors[number] = BadRecord("unsupported_media", why)
            return columns
        owners, errors = columns.owners, dict[int, BadRecord]()
        for number, medium in enumerate(listed):
            if medium.requests:
                try:
                    known[number] = apply_requests(medium, known[number], files)
                except BadRecord as error:
                    errors[number] = error
        for kind, name in enumerate(KINDS):
            of_kind = np.flatnonzero(columns.kind == kind).tolist()
            given = {i: info for i in of_kind if (info := known[i]) is not None}
            if given and name not in vision.unpredictable:  # such a sample is built
                chosen = list(given)
                columns.fill(chosen, vision.expand(name, [*given.values()], owners[chosen]))
        columns.errors |= find_incompatible_media(files.name, vision, columns) | errors
        return columns

    def expand(self, conversation: Conversation, number: int, media: MediaColumns) -> Expanded:
        """Sample `number` of `media` as the text that is tokenized.

        Raises:
            BadRecord: as `ChatTemplate.render`; ``no_eos_token`` for a document.
        """
        files = self._loaded[0]
        ending = find_document_ending(files, conversation) if conversation.is_document else None
        result = files.template_of(conversation).render(conversation)
        kinds, vision = [medium.kind for medium in conversation.media], files.vision
        if vision is None or not kinds or not vision.feature_tokens.keys() >= {*kinds}:
            return Expanded(result.text, result.label_spans, None if kinds else (), ending=ending)
        own = slice(media.offsets[number], media.offsets[number + 1])
        tokens, expansions = media.tokens[own].tolist(), media.expansions[own]
        expanded = expand_media(result, kinds, tokens, expansions, vision.placeholders)
        expanded.ending = ending
        return expanded

    def tokens_of(self, conversation: Conversation, media: MediaColumns) -> SampleTokens:
        """Return the tokens of one conversation.

        Raises:
            BadRecord: as `ChatTemplate.render`; ``no_eos_token``, ``media_token_in_text``,
                ``cut_off``.
        """
        expanded = self.expand(conversation, 0, media)
        batch, runs, trained, errors = self._encode_texts([expanded])
        for error in errors.values():
            raise error
        repeats = np.ones(len(batch.ids), np.int64)
        repeats[runs.tokens] = runs.repeats
        ends = np.cumsum([len(medium) for medium in expanded.runs or ()])[:-1]
        starts = [own.tolist() for own in np.split(runs.at, ends)] if expanded.runs else []
        ids, trained = np.repeat(batch.ids, repeats), np.repeat(trained, repeats)
        return SampleTokens(ids, trained, starts, expanded.order)

    def _encode_texts(
        self, expanded: Sequence[Expanded]
    ) -> tuple[TokenBatch, FeatureRuns, Bools, dict[int, BadRecord]]:
        """Return the tokens of some texts, their runs, True for label tokens, and errors."""
        files, text = self._loaded
        adds = [e.ending is not None or files.adds_special_tokens(e.text) for e in expanded]
        ends = [None if e.ending is None else e.ending.token for e in expanded]
        batch = text.encode([item.text for item in expanded], adds, ends)
        runs = locate_runs(batch, expanded, files.feature_ids)
        lengths = batch.lengths + runs.extra
        errors = {n: refuse_media_token() for n in runs.mismatched if expanded[n].runs is not None}
        for number in np.flatnonzero(lengths > self._limit).tolist():
            detail = f"{lengths[number]} tokens, and {files.name} leaves {files.limit}: take "
            detail += (
                "max_length and truncation out of its tokenizer_config.json and tokenizer.json"
            )
            errors[number] = BadRecord("cut_off", detail)
        return batch, runs, mask_trained_tokens(batch, text, expanded, runs), errors

    def _count_texts(self, rendered: Mapping[int, Expanded], counts: Counts) -> Spans:
        """Count the texts of some samples; returns where their label tokens are."""
        rows, expanded = np.array(list(rendered)), list(rendered.values())
        batch, runs, trained, errors = self._encode_texts(expanded)
        counts.errors |= {int(rows[number]): error for number, error in errors.items()}
        counts.method[rows] = EXACT
        sums = np.concatenate([[0], np.cumsum(trained)])
        counts.label_tokens[rows] = np.diff(sums[batch.offsets])
        own = place_media(counts.media, rows, expanded, runs)
        counts.text_tokens[rows] = batch.lengths + runs.extra - own
        spans = Spans.of(trained, np.repeat(rows, batch.lengths))
        first, last = (locate_tokens(batch, runs, at) for at in (spans.start, spans.stop - 1))
        return spans._replace(start=first, stop=last + 1)


def _guess_tokens(conversation: Conversation) -> tuple[int, int]:
    """Return (tokens of the text, method), as the record states them or by its UTF-8 bytes."""
    if conversation.text_tokens is not None:
        return conversation.text_tokens, PRECOMPUTED
    parts = (part for turn in conversation.turns for part in turn.parts)
    texts = "".join(part for part in parts if isinstance(part, str))
    return len(texts.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN, HEURISTIC


def find_document_ending(files: ProcessorFiles, document: Conversation) -> Ending:
    """Return what ends a document; raise a BadRecord (``no_eos_token``) if nothing does."""
    if files.end_of_text is None:
        text = "has no eos_token, with which a document must end: state it in"
        raise BadRecord("no_eos_token", f"{files.name} {text} its tokenizer_config.json")
    policy = files.policy
    return Ending(files.end_of_text, policy.end_of_turn and any(policy.trains(document.turns)))


def refuse_media_token(where: str = "a text holds") -> BadRecord:
    """Return why a text with feature tokens of its own is refused."""
    return BadRecord("media_token_in_text", f"{where} a token that stands for media: remove it")


def find_incompatible_media(
    name: str, vision: MediaModel, media: MediaColumns
) -> dict[int, BadRecord]:
    """Return why media that each can be used cannot be in one sample of `name`, by number."""
    errors: dict[int, BadRecord] = {}
    is_video = (media.kind == KINDS.index("video")) & (media.grid[:, 0] > 0)
    several = ((a, b) for a, b in itertools.pairwise(media.offsets.tolist()) if b > a + 1)
    for start, stop in several:
        if vision.one_kind_per_sample and len({*media.kind[start:stop].tolist()}) > 1:
            text = f"{name} cannot encode images and videos of one sample together"
            errors |= dict.fromkeys(range(start, stop), BadRecord("unsupported_media", text))
        frames = media.grid[start:stop, 0][is_video[start:stop]]
        if vision.same_num_frames and len({*frames.tolist()}) > 1:
            text = f"{name} takes equally many frames of all videos of a sample, not "
            text += f"{min(frames)} and {max(frames)}: name as many of each in frame_indices"
            errors[stop - 1] = BadRecord("unsupported_media", text)
    return errors


# -- the token sequence of a rendered conversation: its media's tokens, and the trained ones -------


@dataclass(frozen=True, slots=True)
class Ending:
    """The token that ends a document."""

    token: int
    """Id of the end-of-text token; it is there once, even if the template writes it, too."""
    is_trained: bool
    """True if it contributes to the loss."""


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Expanded:
    """A rendered conversation with its media's text, every run of feature tokens written once."""

    text: str
    """The text that is tokenized."""
    label_spans: tuple[Span, ...]
    """Character ranges ``[start, end)`` that are trained on; feature tokens in them are not."""
    runs: tuple[tuple[int, ...], ...] | None
    """Per medium, as they stand in the text, how often each of its feature tokens is repeated; None
    if the media are not written out."""
    order: tuple[int, ...] = ()
    """The number of each of these media in the conversation."""
    ending: Ending | None = None
    """The end of a document, which gets the tokenizer's special tokens, too; else None."""


def expand_media(
    rendered: Rendered,
    kinds: Sequence[str],
    tokens: Sequence[int],
    expansions: Sequence[Expansion | None],
    placeholders: Mapping[str, str],
) -> Expanded:
    """Put the media's text in place of their placeholders.

    Args:
        rendered: the conversation as the template writes it.
        kinds, tokens, expansions: per medium; without an expansion its placeholder is the feature
            token, repeated `tokens` times.
        placeholders: kind of medium → what the template wrote for it.
    """
    order = sorted(range(len(rendered.media)), key=rendered.media.__getitem__)
    text, at = rendered.text, 0
    parts: list[str] = []
    cuts, added = list[int](), [0]  # where replaced placeholders end, and what is longer by then
    runs: list[tuple[int, ...]] = []
    for number in order:
        expansion = expansions[number]
        runs.append((tokens[number],) if expansion is None else expansion.runs)
        if expansion is not None:
            start, size = rendered.media[number], len(placeholders[kinds[number]])
            parts += (text[at:start], expansion.text)
            at = start + size
            cuts.append(at)
            added.append(added[-1] + len(expansion.text) - size)
    spans = rendered.label_spans
    if cuts:
        # What replaces a medium inside a span belongs to it.
        text = "".join([*parts, text[at:]])
        spans = tuple(
            [(_move_border(a, cuts, added), _move_border(b, cuts, added)) for a, b in spans]
        )
    return Expanded(text, spans, tuple(runs), tuple(order))


def _move_border(border: int, cuts: Sequence[int], added: Sequence[int]) -> int:
    return border + added[bisect.bisect_right(cuts, border)]


@dataclass(frozen=True, slots=True)
class FeatureRuns:
    """The runs of feature tokens in a batch of n texts, r in all."""

    tokens: Int64s
    """``[r]`` positions in the batch's ids, where a run is one token."""
    repeats: Int64s
    """``[r]`` how often it is repeated."""
    at: Int64s
    """``[r]`` first token of the run in its own sample, all runs before it written out."""
    extra: Int64s
    """``[n]`` tokens that writing out the runs adds."""
    mismatched: frozenset[int]
    """Texts that have more or fewer feature tokens than their media."""


def locate_runs(
    batch: TokenBatch, expanded: Sequence[Expanded], feature_ids: Sequence[int]
) -> FeatureRuns:
    """Find the feature tokens of `expanded` texts that were tokenized to `batch`."""
    tokens = np.flatnonzero(np.isin(batch.ids, feature_ids)) if feature_ids else batch.ids[:0]
    tokens = tokens.astype(np.int64)
    bounds = np.searchsorted(tokens, batch.offsets)
    expected = [[num for medium in item.runs or () for num in medium] for item in expanded]
    sizes = np.array([len(runs) for runs in expected], np.int64)
    wrong = frozenset(np.flatnonzero(np.diff(bounds) != sizes).tolist())
    if wrong:
        kept = [i for i in range(len(expanded)) if i not in wrong]
        inside = [tokens[bounds[i] : bounds[i + 1]] for i in kept]
        tokens = np.concatenate([*inside, tokens[:0]])
        sizes[list(wrong)] = 0
        expected = [expected[i] for i in kept]
    repeats = np.array([num for runs in expected for num in runs], np.int64)
    firsts = np.cumsum(sizes) - sizes
    added = np.concatenate([[0], np.cumsum(repeats - 1)])
    extra = added[firsts + sizes] - added[firsts]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    at = tokens - batch.offsets[owners] + added[:-1] - added[firsts][owners]
    return FeatureRuns(tokens, repeats, at, extra, wrong)


def mask_trained_tokens(
    batch: TokenBatch, text: TextEncoder, expanded: Sequence[Expanded], runs: FeatureRuns
) -> Bools:
    """``[total]`` which of the batch's tokens contribute to the loss.

    Those in a label span (`TextEncoder.borders`) and the special tokens around a document, but no
    feature token and no sample's first token, which nothing predicts.
    """
    texts = [item.text for item in expanded]
    starts, ends = text.borders(batch, texts, [item.label_spans for item in expanded])
    good = starts < ends
    steps = np.zeros(len(batch.ids) + 1, np.int64)
    np.add.at(steps, starts[good], 1)
    np.add.at(steps, ends[good], -1)
    mask: Bools = np.cumsum(steps)[:-1] > 0
    for number, item in enumerate(expanded):
        if item.ending is not None:
            begin, end = batch.offsets[number], batch.offsets[number + 1]
            mask[begin : begin + batch.prefix[number]] = bool(item.label_spans)
            mask[end - batch.suffix[number] : end] = item.ending.is_trained
    mask[runs.tokens] = False
    mask[batch.offsets[:-1][batch.lengths > 0]] = False
    return mask


def locate_tokens(batch: TokenBatch, runs: FeatureRuns, tokens: Int64s) -> Int64s:
    """Return where `tokens` of the batch, none of them a run's, stand in their own samples, all
    runs written out."""
    added = np.concatenate([[0], np.cumsum(runs.repeats - 1)])
    own = batch.offsets[np.searchsorted(batch.offsets, tokens, "right") - 1]
    before, first = (np.searchsorted(runs.tokens, values) for values in (tokens, own))
    stand: Int64s = tokens - own + added[before] - added[first]
    return stand


def place_media(
    media: MediaColumns, rows: Int64s, expanded: Sequence[Expanded], runs: FeatureRuns
) -> Int64s:
    """Put where the texts' media are into their columns.

    Returns:
        ``[len(expanded)]`` tokens of each text's media, what stands between their runs included.
    """
    offsets = media.offsets[rows].tolist()
    targets: list[int] = []
    owners: list[int] = []
    sizes: list[int] = []
    for number, item in enumerate(expanded):
        if item.runs and number not in runs.mismatched:
            targets += [offsets[number] + at for at in item.order]
            owners += [number] * len(item.runs)
            sizes += map(len, item.runs)
    last = np.cumsum(np.array(sizes, np.int64)) - 1
    first = last + 1 - np.array(sizes, np.int64)
    media.at[targets] = runs.at[first]
    media.tokens[targets] = runs.at[last] + runs.repeats[last] - runs.at[first]
    own = np.zeros(len(expanded), np.int64)
    np.add.at(own, owners, media.tokens[targets])
    return own
