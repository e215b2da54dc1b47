"""Which samples are held out of training: a property of the sample, not of the table or the seed.

A sample is held out if the hash of its source's name and its key lies below the share, both taken
as parts of 2^64. So adding data, planning again with another seed or mixing sources otherwise moves
no sample to the other side, and a larger share holds out every sample of a smaller one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa

from packidx.arrays import Bools, Int64s
from packidx.hashing import below, derive_key, hash_ints, hash_strings, splitmix64s

_KEYED = derive_key("holdout", "key")
_NUMBERED = derive_key("holdout", "sample_id")


def holdout(
    source: pa.Array | pa.ChunkedArray | None,
    key: pa.Array | pa.ChunkedArray | None,
    sample_id: Int64s,
    share: Fraction,
) -> Bools:
    """Whether each sample is held out, bool [n].

    Args:
        source: strings [n], the name of each one's source; None where the table does not say.
        key: strings [n]. Where one is null, or there are none, the sample's id stands for it, and
            the sample keeps its side only as long as it keeps its id.
        sample_id: int64 [n].
        share: of the samples of each source, 0 <= share <= 1. Samples with the same source and key
            are on the same side.
    """
    if key is None:
        hashes = hash_ints(sample_id, _NUMBERED)
    else:
        hashes = hash_strings(key) ^ np.uint64(_KEYED)
        if key.null_count:
            unnamed = np.flatnonzero(np.asarray(key.is_null()))
            hashes[unnamed] = hash_ints(sample_id[unnamed], _NUMBERED)
    if source is not None:
        hashes ^= splitmix64s(hash_strings(_encoded(source)))
    return below(splitmix64s(hashes), share)


def _encoded(source: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Names that repeat as a dictionary: each is hashed once."""
    return source if pa.types.is_dictionary(source.type) else source.dictionary_encode()
