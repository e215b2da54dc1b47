"""What the prompt offers to complete: views, columns, words of SQL, commands."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from packidx.format.index import TABLES
from packidx.format.schema import ALL_LENGTHS
from packidx.index.tables import SOURCES, STEPS

from .session import COMMANDS, MODES

_COLUMNS = {
    **{name: schema.names for name, schema in TABLES.items()},
    "lengths": ALL_LENGTHS.names,
    "rejected": ALL_LENGTHS.names,
    "sources": SOURCES.names,
    "steps": STEPS.names,
}
_QUOTED = {"window", "group", "offset"}  # words of SQL
_SQL = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DISTINCT", "JOIN"),
    *("USING", "LEFT JOIN", "ON", "AS", "AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL"),
    *("LIKE", "BETWEEN", "CASE WHEN", "THEN", "ELSE", "END", "DESC", "UNION ALL", "WITH", "OVER"),
    *("PARTITION BY", "EXPLAIN", "DESCRIBE", "SUMMARIZE"),
    *("count(*)", "sum(", "avg(", "min(", "max(", "median(", "quantile_cont(", "round("),
    *("any_value(", "list(", "unnest("),
)
_AFTER_FROM = re.compile(r"\b(?:FROM|JOIN)\s+\w*$", re.IGNORECASE)
_WORD = re.compile(r'[\w."]*$')


class Words(Completer):
    """Completes the word before the cursor."""

    def __init__(self, views: Iterable[str]) -> None:
        self.columns = {view: [_shown(name) for name in _COLUMNS[view]] for view in views}

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        for word, meaning in self._offered(before):
            typed = _typed(before)
            if word.lower().startswith(typed.lower()) and word != typed:
                yield Completion(word, -len(typed), display_meta=meaning)

    def _offered(self, before: str) -> Iterable[tuple[str, str]]:
        """Words and what they are, the likeliest first."""
        if before.lstrip().startswith("."):
            yield from self._of_commands(before.lstrip())
            return
        typed = _typed(before)
        view, dot, _ = typed.rpartition(".")
        if dot:
            for name in self.columns.get(view.lower(), []):
                yield f"{view}.{name}", "column"
            return
        if not typed:
            return
        if _AFTER_FROM.search(before):
            yield from ((view, "view") for view in self.columns)
            return
        asked = [view for view in self.columns if re.search(rf"\b{view}\b", before, re.I)]
        names = {name: "column" for view in asked or self.columns for name in self.columns[view]}
        yield from names.items()
        yield from ((view, "view") for view in self.columns)
        upper = typed.isupper()
        yield from ((word if upper else word.lower(), "") for word in _SQL)

    def _of_commands(self, before: str) -> Iterable[tuple[str, str]]:
        command, space, _ = before.partition(" ")
        if not space:
            yield from COMMANDS.items()
        elif command == ".schema":
            yield from ((view, "view") for view in self.columns)
        elif command == ".mode":
            yield from ((mode, "") for mode in MODES)


def _typed(before: str) -> str:
    """The word before the cursor."""
    word = _WORD.search(before)
    return word[0] if word else ""


def _shown(name: str) -> str:
    return f'"{name}"' if name in _QUOTED else name
