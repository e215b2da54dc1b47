"""A run's log of its steps (`packidx.torch.StepLog`): columns, files, and which rows hold.

A folder of Parquet parts. A row is one rank's step, its samples in a list. A run that was killed
and resumed does some steps again: of two rows of a step the later one holds, and of a step that was
done again by another number of ranks, the rows of the later ones.
"""

from __future__ import annotations

import glob
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import fields_of
from packidx.io.files import refuse_open_files

_IDS = fields_of("int64 pack_id; int32 position; int64 sample_id")
_PACK = pa.struct(fields_of("int64 pack_id padded_length vision_patches num_samples"))
_SAMPLE = pa.struct([*_IDS, *fields_of("int32 label_tokens; double loss")])

STEP_LOG = pa.schema(
    [
        *fields_of("string snapshot_id; int64 seed; int32 global_batch; int64 session"),
        *fields_of("int32 epoch; int64 step; int32 rank world_size; double seconds grad_norm"),
        *fields_of("int64 length attention_cost vision_patches vision_cost memory"),
        *fields_of("double data_wait"),
        pa.field("packs", pa.list_(_PACK)),
        pa.field("samples", pa.list_(_SAMPLE)),
    ]
)
"""`session` is when the process began to log, or last went back to an earlier step, in nanoseconds
since 1970, or one above the latest session in the folder where the clock is behind; `seconds` are
null of a process's first step. The four sums are the plan's, over the rank's packs of the step.
`memory` is the peak of the step in bytes, `data_wait` the share of its time, from 0 to 1, that was
spent waiting for data; null if not measured. `packs` are the plan's sums of each pack. `samples`
are those with label tokens, in order; `loss` is the sum over their label tokens."""

LOG_VIEWS = ("losses", "outliers", "logged_steps")
_PREFIX = "steps"
_NAMED = re.compile(rf"{_PREFIX}-\d{{1,19}}-\d{{5,}}-\d{{6,}}\.parquet$", re.ASCII)


def part_name(session: int, rank: int, number: int) -> str:
    """The file of a rank's part, which no other session or rank has."""
    return f"{_PREFIX}-{session}-{rank:05d}-{number:06d}.parquet"


def last_session(folder: str) -> int:
    """The latest session that the names of a log's parts state; 0 if there is none."""
    return max((int(part.rsplit("-", 3)[1]) for part in log_parts(folder)), default=0)


def log_parts(folder: str) -> list[str]:
    """The parts of a log in `folder`, whatever else is in it."""
    named = os.path.join(glob.escape(folder), f"{_PREFIX}-*-*-*.parquet")
    return sorted(path for path in glob.glob(named) if _NAMED.search(path))


def log_files(folder: str, snapshot_id: str | None = None) -> list[str]:
    """The parts of the log in `folder`, the latest session's last.

    Args:
        snapshot_id: take only the parts of this snapshot.

    Raises:
        SourceError: there is none.
        FormatError: one is damaged, or of something else.
    """
    parts: dict[str, list[str]] = {}
    for file in log_parts(folder):
        try:
            rows = pq.read_table(file, partitioning=None, page_checksum_verification=True)
            if not rows.schema.equals(STEP_LOG):
                raise LookupError
            parts.setdefault(rows.column("snapshot_id")[0].as_py(), []).append(file)
        except (OSError, LookupError, pa.ArrowException) as error:
            refuse_open_files(error)
            raise FormatError(f"{file} is damaged, or not part of a log: remove it") from None
    if not parts:
        raise SourceError(f"{folder} holds no log of steps: name the folder that StepLog was given")
    if snapshot_id is None:
        return sorted(file for files in parts.values() for file in files)
    if snapshot_id not in parts:
        logged = ", ".join(f"@{ident[:12]}" for ident in parts)
        raise SourceError(
            f"{folder} has no step of @{snapshot_id[:12]}: it is of {logged}, ask that"
        )
    return parts[snapshot_id]


def logged_steps(files: list[str]) -> str:
    """SQL of the rows that hold, one for each snapshot, epoch, step and rank."""
    step = "PARTITION BY snapshot_id, epoch, step"
    return (
        f"SELECT * FROM {scan_of(files)} QUALIFY "
        f"row_number() OVER ({step}, rank ORDER BY session DESC) = 1 AND "
        f"world_size = first_value(world_size) OVER ({step} ORDER BY session DESC)"
    )


LOSSES = """SELECT epoch, step, rank, sample.* EXCLUDE (loss), source, key, sample.loss AS loss
FROM (SELECT epoch, step, rank, unnest(samples) AS sample FROM logged)
LEFT JOIN (SELECT pack_id, position, source, key FROM samples) AS planned
ON sample.pack_id = planned.pack_id AND sample.position = planned.position"""

OUTLIERS = """WITH dealt AS (
    SELECT *, loss / label_tokens AS per_token, count(*) OVER of_source AS number,
        (row_number() OVER (of_source ORDER BY epoch, step, rank) - 1)
        * greatest(1, least(80, number // 50)) // number AS bucket
    FROM losses WINDOW of_source AS (PARTITION BY source)
), centred AS (
    SELECT *, per_token - median(per_token) OVER (PARTITION BY source, bucket) AS above FROM dealt
)
SELECT * EXCLUDE (number, bucket, above), above
    / nullif(1.4826 * median(abs(above)) OVER (PARTITION BY source, bucket // 4), 0) AS sigmas
FROM centred QUALIFY sigmas > 5"""
"""A sample's loss per label token above the median of its source at about that time (an eightieth
of the log, or 50 samples); a sigma is 1.4826 times the median distance from it, of four times as
many."""
