"""Samples of a lengths table as a model will see them: tokens in words, and which are trained."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.arrays import Bools, Int64s
from packidx.errors import PackidxError
from packidx.format.lengths import KIND, LengthsManifest
from packidx.format.manifest import load
from packidx.format.schema import PlannedSample
from packidx.io import urls
from packidx.io.copies import local_copy
from packidx.records.fetch import Fetcher
from packidx.user_code import Transform

Encode = Callable[[dict[str, Any]], Mapping[str, Any]]
_IGNORED = -100
_FOLDED = 4
"""Equal special tokens in a row, from which on they are told by their number."""


class Words:
    """Tokens as text; as their numbers where nobody knows their text."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: of `tokenizers`; None where there is none."""
        self._tokenizer = tokenizer
        self._special = None if tokenizer is None else set(tokenizer.get_added_tokens_decoder())

    def is_special(self, ids: Int64s) -> Bools:
        """bool [n]: a token that no text is made of."""
        return np.ones(len(ids), bool) if self._special is None else np.isin(ids, [*self._special])

    def of(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        if self._tokenizer is None:
            return "".join(f" {ident}" for ident in ids)
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def are_known(self, ids: Int64s) -> Bools:
        """bool [n]: the tokenizer has such a token."""
        if self._tokenizer is None:
            return np.ones(len(ids), bool)
        known = {i for i in set(ids.tolist()) if i >= 0 and self._tokenizer.id_to_token(i)}
        return np.isin(ids, list(known))

    def token(self, ident: int) -> str:
        """One token; the number of one that the tokenizer does not have: ``⟨156669⟩``."""
        if self._tokenizer is None:
            return f" {ident}"
        token = self._tokenizer.id_to_token(ident) if ident >= 0 else None
        return f"⟨{ident}⟩" if token is None else str(token)


class TokenRun(NamedTuple):
    """Neighbouring tokens that are all trained on, or none of which is."""

    text: str
    num_tokens: int
    trained: bool


class _Records:
    """A lengths table as what a `Fetcher` reads by."""

    def __init__(self, path: str, manifest: LengthsManifest) -> None:
        self.path, self.id, self.snapshot = path, manifest.fingerprint, manifest
        self.roots: dict[str, str] = {}

    def resolve(self, uri: str) -> str:
        """Return where a file is: where it was counted."""
        return urls.local_path(uri)


def shown_samples(
    path: str,
    number: int,
    encode: Encode,
    words: Words,
    transform: Transform | None = None,
) -> list[dict[str, Any]]:
    """Return the first `number` usable samples of the lengths table at `path`, by turns of its
    sources, built as the reader builds them.

    Args:
        encode: what the table was counted with, as was `transform`.

    Returns:
        ``sample_id``, ``source``, ``key``, ``planned_length`` (tokens by the table),
        ``length`` (tokens that the encoder made), ``label_tokens`` (those of them that are trained
        on), ``runs`` (`TokenRun`) and ``error`` (why the sample could not be built).

    Raises:
        FormatError, OSError: the table cannot be read.
        PackidxError: nothing can be encoded.
    """
    manifest = load(urls.join(path, KIND.manifest), LengthsManifest, "estimate again")
    fetcher = Fetcher(_Records(path, manifest), transform)
    return [
        {
            **{name: getattr(sample, name) for name in ("sample_id", "source", "key")},
            "planned_length": sample.length,
            **_built(sample, fetcher, encode, words),
        }
        for sample in _first_samples(path, manifest, number)
    ]


def _first_samples(path: str, manifest: LengthsManifest, number: int) -> list[PlannedSample]:
    """The first `number` usable rows, one of each source after the other, as a pack of their own
    would have them; fewer where there are no more.

    Raises:
        FormatError, OSError: a part of the table at `path` cannot be read.
    """
    wanted = {
        source.name: min(number, source.num_samples - source.num_rejected)
        for source in manifest.sources
    }
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _usable_rows(path, manifest):
        if not any(len(taken[name]) < enough for name, enough in wanted.items()):
            break
        if len(taken[row["source"]]) < wanted[row["source"]]:
            taken[row["source"]].append(row)
    by_turns = itertools.chain.from_iterable(
        itertools.zip_longest(*(taken[name] for name in wanted))
    )
    rows = [row for row in by_turns if row is not None][:number]
    whole = dict.fromkeys(("pack_id", "copy", "piece", "token_start", "start"), 0)
    return [
        PlannedSample(**row | whole, position=position, padded_length=row["length"])
        for position, row in enumerate(rows)
    ]


def _usable_rows(path: str, manifest: LengthsManifest) -> Iterator[dict[str, Any]]:
    for file in manifest.files:
        with pq.ParquetFile(local_copy(file.within(path))) as part:
            names = [name for name in part.schema_arrow.names if name in PlannedSample._fields]
            for batch in part.iter_batches(256, columns=[*names, "status"]):
                rows = batch.filter(pc.equal(batch["status"], "ok")).select(names)
                yield from rows.to_pylist()


def _built(sample: PlannedSample, fetcher: Fetcher, encode: Encode, words: Words) -> dict[str, Any]:
    """Return what the encoder makes of a sample."""
    failed: dict[str, Any] = {"length": 0, "label_tokens": 0, "runs": []}
    try:
        encoded = encode(fetcher.read(sample))
        ids = np.asarray(encoded["input_ids"], np.int64).reshape(-1)
    except PackidxError as error:
        return {**failed, "error": str(error)}
    except MemoryError:  # no sample's error
        raise
    except (Exception, SystemExit) as error:  # an encoder may be foreign code
        return {**failed, "error": f"{type(error).__name__}: {error}"}
    labels = encoded.get("labels")
    labels = ids if labels is None else np.asarray(labels, np.int64).reshape(-1)
    trained = labels != _IGNORED
    trained[:1] = False  # nothing predicts the first token
    runs = list(runs_of(ids, trained, words))
    numbers = {"length": len(ids), "label_tokens": int(trained.sum())}
    return {**numbers, "runs": [run._asdict() for run in runs], "error": None}


def runs_of(ids: Int64s, trained: Bools, words: Words) -> Iterator[TokenRun]:
    """The tokens in words, int64 [n] and bool [n].

    What stands for a medium, and whatever special token comes again and again, is one token and
    its number: ``<|image_pad|>×256``. No token is left out: the text of some tokens depends on
    those before, so a run's is what they make together with the run before more than that alone.
    """
    folded, known = _repeated(ids, words.is_special(ids)), words.are_known(ids)
    border = np.ones(len(ids) + 1, bool)
    border[1:-1] = (trained[1:] != trained[:-1]) | (folded[1:] != folded[:-1])
    border[1:-1] |= (known[1:] != known[:-1]) | (folded[1:] & (ids[1:] != ids[:-1]))
    context = 0
    pieces = []
    for start, stop in itertools.pairwise(np.flatnonzero(border).tolist()):
        if folded[start]:
            text = f"{words.token(int(ids[start]))}×{stop - start}"
        elif not known[start]:
            text = "".join(map(words.token, ids[start:stop].tolist()))
        else:
            before, upto = (words.of(ids[context:end].tolist()) for end in (start, stop))
            text = upto[len(os.path.commonprefix([before, upto])) :]
        pieces.append(TokenRun(text, stop - start, bool(trained[start])))
        context = start if known[start] else stop
    for is_trained, same in itertools.groupby(pieces, key=lambda run: run.trained):
        neighbours = list(same)
        num_tokens = sum(run.num_tokens for run in neighbours)
        yield TokenRun("".join(run.text for run in neighbours), num_tokens, is_trained)


def _repeated(ids: Int64s, special: Bools) -> Bools:
    """bool [n]: the token is one of `_FOLDED` equal special ones in a row, or more."""
    first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]) if len(ids) else ids
    sizes = np.diff(np.append(first, len(ids)))
    return np.repeat(sizes >= _FOLDED, sizes) & special
