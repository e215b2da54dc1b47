"""Rungs 2 and 3 of a length: compare the rules once per kind of record, and build what differs.

The first record of each kind (`packidx.processor.kinds`) is also built by the real processor. If
its tokens are those that the rules give, the kind's lengths are computed by the rules. If not,
every record of the kind is built, and its length is ``len(input_ids)``. The parent process compares
the kinds that it finds in a sample of the data, and a worker those that it meets first, once per
task: the rows of a task depend on its records alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packidx.arrays import Bools, Int64s
from packidx.encode.imports import has_torch, load_real
from packidx.encode.media import NotBuilt, as_requested, info_of
from packidx.encode.prober import ProbedMedia
from packidx.encode.whole import whole_sample, with_labels
from packidx.errors import BadRecord, PackidxError
from packidx.format.manifest import Compared
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.counter import ConversationCounter
from packidx.processor.kinds import DOCUMENT, TEXT, record_kind, words_of
from packidx.records.conversation import Conversation, MediaInfo
from packidx.software import installed_version

MAX_KINDS = 64
"""Kinds that are compared; records of rarer ones are built."""
_MOST_PATCHES = 1 << 17
"""Patches of a sample that is built, some 3 GB."""
MERGING = "text that merges with media"
"""Word of the kinds of such records, which are built."""


class Comparer:
    """Compares kinds of records with the real processor, and builds the records that need it.

    Args:
        files: the processor.
        known: kinds that were compared before.
    """

    def __init__(self, files: ProcessorFiles, known: Compared | None = None) -> None:
        self.files = files
        self.compared = known or Compared(by=None)
        self.kinds: dict[str, str | None] = {}
        """Kind → None if the rules count it, else the first difference; of this task alone."""
        self.reason: str | None = files.doubt
        self.rules = ConversationCounter(files)
        self._loaded: dict[bool, Any] = {}

    def _real_processor(self, kind: str) -> Any:
        """Return what training builds records of this kind with; None if it cannot be loaded."""
        is_text = self.files.is_plain and not words_of(kind).isdisjoint((TEXT, DOCUMENT))
        if is_text not in self._loaded:
            self._loaded[is_text] = self._load_real(is_text)
        return self._loaded[is_text]

    def _load_real(self, is_text: bool) -> Any:
        """Return the processor, or for texts the tokenizer with the processor's chat template."""
        files, vision = self.files, self.files.vision
        if files.doubt is not None:
            return None
        if isinstance(vision, ProbedMedia):
            return vision.processor
        try:
            if not is_text:
                return load_real(files.folder, files.auto_class, files.trusts_code, files.keywords)
            made = copy.copy(load_real(files.folder, "AutoTokenizer", files.trusts_code))
        except PackidxError as error:
            self.reason = str(error) if has_torch() else "torch is not installed"
            return None
        made.chat_template = files.template.plain_source
        return made

    def close(self) -> Compared:
        """Return what was compared, in the process that decides for all."""
        if self.reason is not None:
            return Compared(by=None, reason=self.reason)
        built = {kind: why for kind, why in sorted(self.kinds.items()) if why is not None}
        computed = tuple(sorted(self.kinds.keys() - built.keys()))
        version = f"transformers {installed_version('transformers')}"
        return Compared(by=version, computed=computed, built=built)

    def is_exact(self, kind: str) -> bool:
        """Return True if the rules count records of this kind."""
        files = self.files
        is_other = kind in self.compared.built or self.kinds.get(kind)
        if files.doubt is not None or is_other or files.builds_all:
            return False
        # The rules of a family are compared by our tests.
        return not files.is_probed or kind in self.compared.computed or kind in self.kinds

    def needs(self, kind: str) -> bool:
        """Return True if a record of this kind is to be compared or built."""
        if kind in self.compared.computed or self.files.doubt is not None:
            return False
        is_equal = kind in self.kinds and self.kinds[kind] is None
        return not is_equal and self._real_processor(kind) is not None

    def kind_of(self, conversation: Conversation, infos: Sequence[MediaInfo | None]) -> str:
        """Return the kind of a record; `MERGING` if its text may merge with what the processor
        writes for media of these sizes."""
        kind, vision = record_kind(conversation, fine=self.files.is_probed), self.files.vision
        if isinstance(vision, ProbedMedia):
            for medium, info in zip(conversation.media, infos, strict=True):
                if info is not None and not vision.is_apart(medium.kind, info):
                    return f"{kind}, {MERGING}"
        return kind

    def build(
        self, conversation: Conversation, kind: str, *, only_compare: bool = False
    ) -> dict[str, Any] | None:
        """Build a record, unless it turns out that the rules count its kind.

        Args:
            conversation: its media are opened.
            only_compare: compare the kind if it is new, and build nothing else.

        Returns:
            ``input_ids`` and ``labels``, int64 ``[T]``, and the processor's other outputs; None if
            the rules count the record, or it cannot be built.

        Raises:
            BadRecord: ``not_built``, where only the real processor can build it.
        """
        why = self.compared.built.get(kind) or self.kinds.get(kind)
        is_new, files, rules = why is None, self.files, self.rules
        if only_compare and not is_new:
            return None
        must_build = not is_new or ((files.is_probed or files.builds_all) and not only_compare)
        conversation = as_requested(conversation, files)
        media = rules.count_media([conversation], [[info_of(each) for each in conversation.media]])
        patches = np.maximum(media.patches, media.tokens).clip(0).sum()
        if media.errors or patches > _MOST_PATCHES:
            return None
        try:
            own = rules.tokens_of(conversation, media)[:2]
        except Exception:  # of `tokenizers`, plain ones: the row is rejected when it is counted
            return None
        try:
            built = whole_sample(self._real_processor(kind), files, conversation, every_frame=True)
            if is_new:
                why = self.kinds[kind] = self._find_difference(kind, own, built, conversation)
                if why is None:
                    return None
            return with_labels(built, files, own, conversation)
        except NotBuilt as error:
            if must_build:
                text = f"{files.name} builds no sample: {error}"
                raise BadRecord("not_built", text) from None
        except BadRecord:
            if must_build:
                raise
        return None  # as any other record whose pixels are not decoded

    def _find_difference(
        self,
        kind: str,
        own: tuple[Int64s, Bools],
        built: Mapping[str, Any],
        conversation: Conversation,
    ) -> str | None:
        """Return the first difference of two samples; None if they are equal."""
        (ours, trained), real = own, built["input_ids"]
        vision = self.files.vision
        if self.files.builds_all:
            return "its tokenizer has rules of its own"
        if vision is not None and not words_of(kind).isdisjoint((*vision.unpredictable, MERGING)):
            return "lengths depend on more than the sizes of media"
        if len(self.compared.computed) + len(self.compared.built) + len(self.kinds) >= MAX_KINDS:
            return f"more than {MAX_KINDS} kinds of records"
        num = len(real)
        if len(ours) != num:
            return f"a record has {len(ours)} tokens, the processor's {num}"
        if np.array_equal(ours, real):
            return None
        if not self.files.is_probed:
            at = int(np.flatnonzero(ours != real)[0])
            return f"a record of {num} tokens has another one at {at}"
        labels = int((with_labels(built, self.files, own, conversation)["labels"] >= 0).sum())
        if labels != trained.sum():
            return f"a record has {trained.sum()} label tokens, the processor's {labels}"
        return None
