"""Kept tokens: ids and labels of a lengths table's samples, in Arrow files beside its parts.

Row r of ``tokens-00000.arrow`` is that of row r of ``part-00000.parquet``. The files are not
compressed, and are mapped: a sample costs its own bytes, wherever in a table of any size it lies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools
from packidx.format.manifest import File
from packidx.io.copies import StoredFile, local_copy
from packidx.recent import Recent

KEPT = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("trained", pa.list_(pa.bool_())),
        pa.field("mark", pa.binary()),
    ]
)
"""Columns of the files (FORMAT.md)."""

_MAPPED_BYTES = 1 << 26  # of files that a process keeps mapped: pages it touched count as its own


def read_tokens(file: StoredFile) -> pa.Table:
    """Return the rows of a file of tokens, mapped.

    Raises:
        FormatError: it has another content than its manifest says, or is not there.
        OSError: a store cannot be asked.
    """
    with local_copy(file) as copy:
        return pa.ipc.open_file(pa.memory_map(copy)).read_all()


class KeptSample(NamedTuple):
    """The tokens of one sample."""

    ids: NDArray[np.int32]
    """``[t]``; a run of feature tokens of its media is one."""
    trained: Bools
    """``[t]`` which contribute to the loss."""
    mark: bytes | None
    """Of the text that was tokenized, where media are in it; None of text alone."""


class KeptTokens:
    """The tokens of a table's samples, by their `sample_id`, which is the number of their row.

    Files are compared with their manifest when they are first opened. It pickles small.

    Args:
        folder: of the table.
        files: what its manifest says of them.
    """

    def __init__(self, folder: str, files: Sequence[File]) -> None:
        self._files = [file.within(folder) for file in files]
        self._starts = list(accumulate((file.rows for file in files), initial=0))
        self._opened: Recent[int, list[pa.Array]] = Recent(_MAPPED_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": Recent(_MAPPED_BYTES)}

    def of(self, sample_id: int) -> KeptSample | None:
        """Return the tokens of a sample; None where none were kept.

        Raises:
            FormatError: a file is damaged, or is not there any more.
            OSError: a store cannot be asked.
        """
        number = bisect_right(self._starts, sample_id) - 1
        columns = self._opened.get(number)
        if columns is None:
            file = self._files[number]
            columns = [column.chunk(0) for column in read_tokens(file).columns]
            self._opened.put(number, columns, file.nbytes or 0)
        ids, trained, mark = (column[sample_id - self._starts[number]] for column in columns)
        if not ids.is_valid:
            return None
        mask = trained.values.to_numpy(zero_copy_only=False)
        return KeptSample(ids.values.to_numpy(), mask, mark.as_py())
