"""Queries and commands, one after another, of the same index or lengths table."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from packidx.errors import OptionError

from ..asking import Asker
from ..show.console import count, print_table, say

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked

MODES = ("table", "csv", "json")
COMMANDS = {
    ".tables": "list the views",
    ".schema": "list the columns of all views, or of .schema VIEW",
    ".examples": "list useful queries; .examples N runs one",
    ".mode": f"print results as .mode {' or '.join(MODES)}",
    ".help": "show this",
    ".quit": "end, as Ctrl-D does",
}
_COLUMNS = "SELECT column_name, column_type FROM (DESCRIBE {})"
ALL_COLUMNS = (
    "SELECT table_name AS view, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'main'"
)
_HELP = """A query is a SELECT over the views, and ends in a semicolon:
    SELECT source, count(*) FROM samples GROUP BY source;
Ctrl-C stops a query. The columns "window", "group" and "offset" need their double quotes."""


class Session:
    """What is asked, and in which form it is answered."""

    def __init__(self, asker: Asker, asked: Asked, mode: str) -> None:
        self.asker = asker
        self.asked = asked
        self.mode = mode

    def run(self, text: str) -> bool:
        """Answer one query or command; whether there may be another.

        Raises:
            OptionError: why there is no answer.
            FormatError, OSError: what is asked cannot be read.
        """
        if not text.startswith("."):
            self.asker.show(self.asked, text, self.mode)
            return True
        name, *arguments = text.rstrip(";").split()
        argument = " ".join(arguments)
        if name not in COMMANDS:
            raise OptionError(f"there is no command {name}: see .help")
        if argument and name in (".tables", ".help", ".quit"):
            raise OptionError(f"{name} takes nothing behind it, not {argument!r}")
        if name == ".tables":
            rows = [(view, about, count(size)) for view, size, about in self.asked.about()]
            print_table(["view", "what a row is", "rows"], rows, right=2)
        elif name == ".schema":
            self._schema(argument)
        elif name == ".examples":
            self._examples(argument)
        elif name == ".mode":
            self._set_mode(argument)
        elif name == ".help":
            say(_HELP, lines=True)
            print_table(["command", "what it does"], COMMANDS.items(), right=2)
        return name != ".quit"

    @property
    def examples(self) -> list[Example]:
        """Those that can be asked here."""
        return [example for example in EXAMPLES if example.can_ask(self.asked.names)]

    def _schema(self, view: str) -> None:
        if view and view.lower() not in self.asked.names:
            listed = ", ".join(self.asked.names)
            raise OptionError(f"there is no view {view!r}: there are {listed}")
        query = _COLUMNS.format(view.lower()) if view else ALL_COLUMNS
        self.asker.show(self.asked, query, self.mode)

    def _examples(self, number: str) -> None:
        if not number:
            for at, example in enumerate(self.examples, 1):
                say(f"{at:2}  {example.question}\n    {example.query}", lines=True)
            return
        if not number.isdecimal() or not 1 <= int(number) <= len(self.examples):
            raise OptionError(f".examples {number}: give a number from 1 to {len(self.examples)}")
        query = self.examples[int(number) - 1].query
        say(query)
        self.asker.show(self.asked, query, self.mode)

    def _set_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise OptionError(f".mode {mode}: choose from {', '.join(MODES)}")
        self.mode = mode


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
