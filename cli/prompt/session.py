"""Queries and commands, one after another, of the same index or lengths table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packidx.errors import OptionError

from ..asking import Asker
from ..show.console import count, print_table, say
from .examples import EXAMPLES, Example

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
