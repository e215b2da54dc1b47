"""Samples of a lengths table as a model will see them: tokens in words, and which are trained."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.arrays import Bools, Int64s
from packidx.errors import PackidxError
from packidx.format.lengths import KIND, LengthsManifest
from packidx.format.manifest import load_manifest
from packidx.format.schema import PlannedSample
from packidx.io import urls
from packidx.io.cache import local_copy
from packidx.records.fetch import Fetcher
from packidx.user_code import Transform

Encode = Callable[[Any], Mapping[str, Any]]
_IGNORED = -100
_REPEATED = r"(<[^<>\s]{1,60}>|\[[A-Z_]{1,60}\])\1{3,}"
"""Four or more equal special tokens in a row."""


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
    tokenizer: Any,
    transform: Transform | None = None,
) -> list[dict[str, Any]]:
    """Return the first `number` usable samples of the lengths table at `path`, by turns of its
    sources, built as the reader builds them.

    Args:
        encode: what the table was counted with, as was `transform`.
        tokenizer: of `tokenizers`; None shows the numbers of tokens.

    Returns:
        ``sample_id``, ``source``, ``key``, ``planned_length`` (tokens by the table),
        ``length`` (tokens that the encoder made), ``label_tokens`` (those of them that are trained
        on), ``runs`` (`TokenRun`) and ``error`` (why the sample could not be built).

    Raises:
        FormatError, OSError: the table cannot be read.
        PackidxError: nothing can be encoded.
    """
    manifest = load_manifest(urls.join_path(path, KIND.manifest), LengthsManifest, "estimate again")
    fetcher = Fetcher(_Records(path, manifest), transform, encode)
    return [
        {
            **{name: getattr(sample, name) for name in ("sample_id", "source", "key")},
            "planned_length": sample.length,
            **_encode_sample(sample, fetcher, encode, tokenizer),
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


def _encode_sample(
    sample: PlannedSample, fetcher: Fetcher, encode: Encode, tokenizer: Any
) -> dict[str, Any]:
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
    runs = list(runs_of(ids, trained, tokenizer))
    numbers = {"length": len(ids), "label_tokens": int(trained.sum())}
    return {**numbers, "runs": [run._asdict() for run in runs], "error": None}


def runs_of(ids: Int64s, trained: Bools, tokenizer: Any) -> Iterator[TokenRun]:
    """The tokens in words, int64 [n] and bool [n], each run decoded by itself.

    A special token that is repeated, as what stands for a medium, is one and its number:
    ``<|image_pad|>×256``; a token that the tokenizer does not have is its number: ``⟨156669⟩``.
    """
    start, repeated = 0, r"( \d+\b)\1{3,}" if tokenizer is None else _REPEATED
    for is_trained, same in itertools.groupby(trained.tolist()):
        stop = start + len(list(same))
        text = _words_of(ids[start:stop].tolist(), tokenizer)
        folded = re.sub(repeated, lambda m: f"{m[1]}×{len(m[0]) // len(m[1])}", text)
        yield TokenRun(folded, stop - start, is_trained)
        start = stop


def _words_of(ids: list[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return "".join(f" {ident}" for ident in ids)
    words = []
    for is_known, some in itertools.groupby(
        ids, lambda ident: ident >= 0 and tokenizer.id_to_token(ident) is not None
    ):
        run = list(some)
        known = tokenizer.decode(run, skip_special_tokens=False) if is_known else ""
        words.append(known or "".join(f"⟨{ident}⟩" for ident in run))
    return "".join(words)
