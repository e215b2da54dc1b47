"""Queries that are worth asking, as `.examples` shows them; tests run each."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple


class Example(NamedTuple):
    """A query, and what it answers."""

    question: str
    query: str

    def can_ask(self, views: Collection[str]) -> bool:
        """Whether there is each view that it names."""
        named = re.findall(r"(?:FROM|JOIN) (\w+)", self.query)
        return set(named) <= set(views)


EXAMPLES = (
    Example(
        "What is each source's share of the tokens in packs?",
        "SELECT source, count(*) AS samples, sum(length) AS tokens, "
        "round(100 * sum(length) / sum(sum(length)) OVER (), 2) AS percent "
        "FROM samples GROUP BY source ORDER BY tokens DESC;",
    ),
    Example(
        "Which packs are emptiest?",
        "SELECT pack_id, num_samples, length FROM packs ORDER BY length, pack_id LIMIT 10;",
    ),
    Example(
        "Why were samples dropped, and what did that cost?",
        "SELECT source, reason, count(*) AS samples, sum(length) AS tokens "
        "FROM dropped GROUP BY source, reason ORDER BY tokens DESC;",
    ),
    Example(
        "Which are the longest that were dropped?",
        "SELECT source, key, length, detail FROM dropped ORDER BY length DESC, sample_id LIMIT 10;",
    ),
    Example(
        "What could not be counted, and why?",
        "SELECT source, reason, any_value(detail) AS example, count(*) AS samples "
        "FROM rejected GROUP BY source, reason ORDER BY samples DESC;",
    ),
    Example(
        "How long are samples?",
        "SELECT source, 2 ** ceil(log2(greatest(length, 1))) AS up_to, count(*) AS samples "
        "FROM lengths WHERE status = 'ok' GROUP BY source, up_to ORDER BY source, up_to;",
    ),
    Example(
        "What are their tokens made of?",
        "SELECT source, avg(text_tokens) AS text, avg(image_tokens) AS image, "
        "avg(video_tokens) AS video, avg(label_tokens) AS trained "
        "FROM lengths WHERE status = 'ok' GROUP BY source ORDER BY source;",
    ),
    Example(
        "How were lengths got?",
        "SELECT source, method, count(*) AS samples FROM lengths "
        "GROUP BY source, method ORDER BY source, method;",
    ),
    Example(
        "What does the mix take of each source?",
        "SELECT name, weight, num_samples, num_rejected, num_dropped, num_tokens "
        "FROM sources ORDER BY name;",
    ),
    Example(
        "What is the first step trained on?",
        "SELECT samples.source, count(*) AS samples, sum(samples.length) AS tokens "
        "FROM steps JOIN samples USING (pack_id) WHERE epoch = 0 AND step = 0 "
        "GROUP BY samples.source ORDER BY tokens DESC;",
    ),
    Example(
        "Which packs does an epoch leave out, its last step being incomplete?",
        "SELECT epoch, position, pack_id, length FROM steps WHERE step IS NULL "
        "ORDER BY epoch, position;",
    ),
    Example(
        "When is a sample trained on?",
        "SELECT epoch, step, steps.position, pack_id, sample_id, key "
        "FROM samples JOIN steps USING (pack_id) WHERE sample_id = 0 "
        "ORDER BY epoch, steps.position;",
    ),
    Example(
        "In which steps does the work of micro-steps differ most?",
        "SELECT epoch, step, max(work) / min(work) AS most_to_least FROM ("
        "SELECT epoch, step, micro_step, sum(attention_cost) AS work FROM steps "
        "WHERE step IS NOT NULL GROUP BY epoch, step, micro_step) "
        "GROUP BY epoch, step ORDER BY most_to_least DESC, epoch, step LIMIT 10;",
    ),
    Example(
        "Which samples were cut into pieces?",
        "SELECT sample_id, key, count(*) AS pieces, sum(length) AS tokens FROM samples "
        "WHERE copy = 0 GROUP BY sample_id, key HAVING count(*) > 1 "
        "ORDER BY pieces DESC, sample_id LIMIT 10;",
    ),
)
