"""DuckDB over views of Parquet files, locked: a query sees the views, and nothing else.

The engine itself opens no other file, loads no extension and takes no setting any more. What it
would still run beside questions to the views (other statements, functions that look at the
process or take addresses) is refused by the query's syntax tree, before it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from packidx.errors import OptionError
from packidx.format.parquet import pattern_of, quoted
from packidx.index.frames import create_views
from packidx.index.tables import Views

UNLOCKED = "--unlocked lets the query do all that DuckDB can"
"""What a refusal ends in."""

# No macro that takes a table by its name: what it opens is not in the query's syntax tree.
_TABLE_FUNCTIONS = {
    *("range", "generate_series", "unnest", "repeat", "repeat_row", "summary"),
    *("json_each", "json_tree"),
    *("duckdb_columns", "duckdb_functions", "duckdb_tables", "duckdb_types"),
}
_CLOSED = {
    *("getenv", "current_setting", "getvariable", "write_log", "json_execute_serialized_sql"),
    *("json_serialize_plan", "pg_get_viewdef"),
}
_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_SHOWN = {"tables", "__show_tables_expanded", ""}
_STATIC = "write ON column IN ('a', 'b')"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
_EARLY = re.compile(r"\b(PRAGMA|IMPORT)\b", re.IGNORECASE)
_DESCRIBED = {"columns", "schemata", "tables"}
"""Of information_schema; others tell where the files are."""
_OWN_VIEWS = (
    "SELECT lower(view_name) FROM duckdb_views() "
    "WHERE internal AND schema_name <> 'information_schema'"
)

_VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"


def connect(views: Views, unlocked: bool, memory_limit: int | None) -> duckdb.DuckDBPyConnection:
    """A database with `views`, of which it tells in `absent` those that cannot be.

    Args:
        unlocked: leave the engine as DuckDB has it, but for Python's objects in this process.
        memory_limit: bytes.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    config: dict[str, Any] = {"python_enable_replacements": False}
    if memory_limit is not None:
        config["memory_limit"] = f"{memory_limit}B"
    if not unlocked:
        # Nothing on disk: queries that outgrow the memory are told so.
        config |= {"temp_directory": "", "allow_community_extensions": False}
        config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(config=config)
    create_views(connection, views)
    if not unlocked:
        files = [file for listed in views.files.values() for file in listed]
        allowed = dict.fromkeys([*files, *map(pattern_of, files)])
        connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def check(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Refuse all but one question to the views; returns the text to run, made of what was checked.

    Args:
        connection: of `connect`; runs nothing of `query`.

    Raises:
        OptionError: with what is refused.
        duckdb.ParserException: the query is no SQL.
    """
    _check_nothing_runs_early(connection, query)
    text, kind = _only_statement(connection, query)
    before = ""
    if kind == "EXPLAIN":
        before, text, kind = _explained(connection, text)
    tree = _tree(connection, text)
    if kind != "SELECT" or tree.get("error", True):
        what = f"dynamic PIVOT ({_STATIC})" if kind == "MULTI" else before + kind
        raise _locked(f"is no SELECT but {what}")
    views = {name.lower() for (name,) in connection.execute(_VIEWS).fetchall()}
    nodes = list(_nodes(tree["statements"]))
    defined = {name for node in nodes for name in _with_names(node)}
    own = {name for (name,) in connection.execute(_OWN_VIEWS).fetchall()}
    for name in sorted(defined & own):  # where this WITH does not hold, it is the engine's
        raise OptionError(f"the query names a WITH {name!r}, as a view of DuckDB: rename it")
    for node in nodes:
        _check_node(node, views, defined, own)
    return before + text


def _check_nothing_runs_early(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse what DuckDB 1 begins as soon as it takes a query apart: it computes the arguments of
    a PRAGMA, and opens the files of an IMPORT."""
    early = _EARLY.search(query)
    if early is None:
        return
    # In nothing but SELECTs, the word is a name, a text or a comment.
    explained = _EXPLAIN.match(query)
    if _tree(connection, query[explained.end() :] if explained else query).get("error", True):
        what = early[0].upper()
        raise _locked(f"is no SELECT but {what}")


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The syntax tree of SELECTs; nothing of `text` runs. With ``error``, where it is none."""
    [(parsed,)] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
    try:
        tree: dict[str, Any] = json.loads(parsed)
    except RecursionError:
        raise OptionError("the query is nested too deeply: take it apart") from None
    return tree


def _only_statement(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[str, str]:
    """Text and kind of the one statement of `query`."""
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        is_pivot = re.search(r"\bPIVOT\b", query, re.IGNORECASE)  # DuckDB 1 makes two of it
        hint = f", and {_STATIC} in a PIVOT" if is_pivot else ""
        raise OptionError(f"the query holds {len(statements)} statements: give one at a time{hint}")
    return statements[0].query, statements[0].type.name


def _explained(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[str, str, str]:
    """``"EXPLAIN "`` or ``"EXPLAIN ANALYZE "``, and text and kind of what follows.

    EXPLAIN's options in parentheses are not taken: they are no statement, and only a whole
    statement is read here as the engine reads it.
    """
    explain = _EXPLAIN.match(text)
    try:
        if explain is not None:
            before = "EXPLAIN ANALYZE " if explain[1] else "EXPLAIN "
            return before, *_only_statement(connection, text[explain.end() :])
    except duckdb.ParserException:
        pass
    raise OptionError(
        "the query is EXPLAIN with options: begin it with EXPLAIN SELECT or EXPLAIN ANALYZE SELECT"
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    todo = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield value
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _with_names(node: Mapping[str, Any]) -> Iterator[str]:
    """Names of queries that a WITH defines."""
    defined = node.get("cte_map")
    if isinstance(defined, dict):
        yield from (entry["key"].lower() for entry in defined["map"])
    if isinstance(node.get("cte_name"), str):
        yield node["cte_name"].lower()


def _locked(what: str) -> OptionError:
    return OptionError(f"the query {what}, which is locked: {UNLOCKED}")


def _check_node(node: Mapping[str, Any], views: set[str], defined: set[str], own: set[str]) -> None:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    if kind.endswith("_NODE") and kind not in _NODES:
        what = kind.removesuffix("_NODE").removesuffix("_QUERY")
        raise _locked(f"has {what} in it")
    if kind == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "")
        if name.lower() not in _TABLE_FUNCTIONS:
            raise _locked(f"calls {name}()")
    elif kind == "FUNCTION":
        if node.get("function_name", "").lower() in _CLOSED:
            raise _locked(f"calls {node['function_name']}()")
    elif kind == "BASE_TABLE":
        _check_table(node, views, defined, own)
    elif kind == "SHOW_REF" and (name := node["table_name"].strip('"')) not in _SHOWN:
        raise _locked(f"is SHOW {name}")


def _check_table(
    node: Mapping[str, Any], views: set[str], defined: set[str], own: set[str]
) -> None:
    name, path = node["table_name"], [node["catalog_name"], node["schema_name"]]
    where = ".".join(part.lower() for part in path if part)
    if where == "information_schema" and name.lower() in _DESCRIBED:
        return
    if name.lower() in (views if where == "main" else views | defined) and where in ("", "main"):
        return
    asked = name if where in ("", "main") else f"{where}.{name}"
    listed = ", ".join(sorted(views | defined))
    is_wrong = asked.isidentifier() and asked.lower() not in own  # there is none, locked or not
    hint = "" if is_wrong else f"; {UNLOCKED}"
    raise OptionError(f"the query asks {asked!r}, but there are {listed} alone{hint}")
