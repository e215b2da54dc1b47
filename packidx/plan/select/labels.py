"""Label tokens of parts of samples: where a sample's are, the lengths table says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packidx.arrays import Bools, Int64s
from packidx.errors import FormatError
from packidx.lengths.rows import LengthsRows


def label_tokens(
    rows: LengthsRows, row: Int64s, first: Int64s, last: Int64s
) -> tuple[Int64s, Bools]:
    """Label tokens among the tokens ``first .. last - 1`` of rows, and where that is unknown.

    Args:
        row, first, last: int64 [n].

    Raises:
        FormatError: spans of label tokens are not as FORMAT.md has them.
    """
    numbers = np.unique(row)
    owner, start, stop, known = _spans(rows, numbers)
    keys, sums = owner << 32 | start, np.append(0, np.cumsum(stop - start))
    mine = np.searchsorted(numbers, row)

    def before(token: Int64s) -> Int64s:
        """Label tokens of all rows up to `mine` that stand before `token` of it."""
        at = np.searchsorted(keys, mine << 32 | token)  # spans that begin before it
        reaching = (at > 0) & (owner[at - 1] == mine) if len(owner) else np.zeros(len(at), bool)
        over = np.zeros(len(at), np.int64)  # of the last one, what lies behind it
        over[reaching] = np.maximum(stop[at[reaching] - 1] - token[reaching], 0)
        return np.asarray(sums[at] - over)

    counts = np.where(known[mine], before(np.maximum(last, first)) - before(first), 0)
    return counts, ~known[mine]


def _spans(rows: LengthsRows, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s, Bools]:
    """Spans of label tokens of the rows `numbers`: number of the row in these, first token and the
    one after the last, int64 [m]; and bool [n], where they are known.

    Where no token is trained, or every one that can be, the sum says which.
    """
    labels, null = rows.ints("label_tokens", numbers)
    is_stated = np.ones(len(numbers), bool) if null is None else ~null
    length = rows.length[numbers].astype(np.int64)
    every = is_stated & (labels == length - 1) & (labels > 0)
    known = every | is_stated & (labels == 0)
    lists = rows.lists("label_spans", numbers)
    all_owner = np.flatnonzero(every)
    owner, start, stop = all_owner, np.ones_like(all_owner), length[all_owner]
    if lists is None:
        return owner, start, stop, known
    has_list = lists.is_valid().to_numpy(zero_copy_only=False)
    sizes = lists.value_lengths().fill_null(0).to_numpy()
    listed = np.repeat(np.arange(len(numbers)), sizes)
    begin, end = (
        lists.flatten().field(name).cast(pa.int64()).fill_null(-1).to_numpy()
        for name in ("start", "stop")
    )
    _check(rows, numbers, has_list & is_stated, labels, (listed, begin, end))
    added = ~known[listed]
    owner, start, stop = (
        np.concatenate(values)
        for values in ((owner, listed[added]), (start, begin[added]), (stop, end[added]))
    )
    order = np.lexsort((start, owner))
    return owner[order], start[order], stop[order], known | has_list


def _check(
    rows: LengthsRows,
    numbers: Int64s,
    is_known: Bools,
    labels: Int64s,
    spans: tuple[Int64s, Int64s, Int64s],
) -> None:
    """Raise a FormatError unless the spans of every row ascend within it and sum up to `labels`."""
    owner, start, stop = spans
    before = np.append(0, stop[:-1])[: len(stop)]
    before[np.append(True, owner[1:] != owner[:-1])[: len(stop)]] = 1  # nothing predicts token 0
    bad = (start < before) | (stop <= start) | (stop > rows.length[numbers[owner]])
    sums = np.zeros(len(numbers), np.int64)
    np.add.at(sums, owner, stop - start)
    wrong = np.union1d(owner[bad], np.flatnonzero(is_known & (sums != labels)))
    if len(wrong):
        raise FormatError(
            f"{rows.uri}: the label_spans of sample {rows.sample_id[numbers[wrong[0]]]} do not lie "
            "in it one behind the other, or are not its label_tokens in number "
            f"({len(wrong)} such samples): correct them"
        )
