"""`packidx sql`: DuckDB over a snapshot's Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError

from ..asking import Asker, Limits
from ..grouped import Group, GroupedCommand
from ..options import quiet_option, root_option
from ..show.console import status

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked

_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
_TIMEOUT, _MEMORY = 60.0, "4GB"  # of a locked query
_LONGEST = 1e6  # seconds; the system waits no longer than 2^31 milliseconds at once


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= _LONGEST:  # nan is neither
        raise click.BadParameter(f"{value:g} is no number above 0 and up to {_LONGEST:,.0f}.")
    return value


class _Query(GroupedCommand):
    """A query that begins with a comment is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name for param in self.params for name in param.opts}
        for at, arg in enumerate(args):
            words = arg.split()
            is_option = not words or words[0].partition("=")[0] in options
            if arg.startswith("--") and not is_option and words != [arg]:
                args[at] = "\n" + arg
        return super().parse_args(ctx, args)


_NUMBER = click.IntRange(min=0)
_POSITIVE = click.IntRange(min=1)


_GROUPS = (
    Group(
        "the view steps",
        "--global-batch 512 --world-size 64 --epoch 0",
        ("seed", "epoch", "global_batch", "world_size"),
    ),
    Group(
        "what a query may do",
        "--timeout 600 --memory-limit 16GB",
        ("unlocked", "timeout", "memory_limit"),
    ),
    Group("output", "--format csv -o packs.csv", ("kind", "output", "roots", "quiet")),
)


@click.command(cls=_Query, groups=_GROUPS)
@click.argument("index")
@click.argument("query", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="How to print.  [default: by the name of FILE, else table]",
)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout.")
@click.option(
    "--seed", type=_NUMBER, metavar="N", help="Of the view steps: PackSampler's.  [default: 0]"
)
@click.option(
    "--epoch",
    type=_NUMBER,
    metavar="N",
    help="Of the view steps: one epoch.  [default: each that was planned apart]",
)
@click.option(
    "--global-batch",
    type=_POSITIVE,
    metavar="N",
    help="Of the view steps: packs per step.  [default: what was planned for]",
)
@click.option(
    "--world-size",
    type=_POSITIVE,
    metavar="N",
    help="Of the view steps: data-parallel ranks.  [default: packs of a planned micro-step]",
)
@click.option(
    "--unlocked",
    is_flag=True,
    help="Let QUERY do all that DuckDB can: read and write files, attach, set, install.",
)
@click.option(
    "--timeout",
    type=float,
    callback=_seconds,
    metavar="SECONDS",
    help="Stop QUERY after so long.  [default: 60; none with --unlocked]",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory that QUERY may take, as 500MB.  [default: 4GB; none with --unlocked]",
)
@root_option
@quiet_option
def sql(
    index: str,
    query: str | None,
    kind: str | None,
    output: str | None,
    unlocked: bool,
    timeout: float | None,
    memory_limit: str | None,
    roots: dict[str, str],
    quiet: bool,
    **steps: Any,
) -> None:
    """Run QUERY over INDEX, INDEX@ID or LENGTHS. Without QUERY, ask at a prompt.

    \b
    packidx sql index/ "SELECT source, count(*) FROM samples GROUP BY 1"
    packidx sql index/ < queries.sql
    packidx sql index/

    The views are packs, samples, dropped, sources and steps (the packs in the order of training),
    and lengths and rejected where that table is still there. QUERY is a SELECT, which sees nothing
    but them. "-" reads queries from stdin, as does a missing QUERY where stdin is no terminal; each
    ends in a semicolon, and where there is none, columns are listed. Of what is in an object store,
    only the tables that QUERY names are fetched.
    """
    kind = kind or _kind_of(output)
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    file = _file_of(output)
    limits = Limits(
        unlocked,
        timeout or (None if unlocked else _TIMEOUT),
        _bytes(memory_limit or (None if unlocked else _MEMORY)),
    )
    with Asker(limits, quiet) as asker:  # its process starts while the index is opened
        from packidx.inspect.sql import asked as opened

        with status(quiet):
            asked = opened(index, roots, **steps)
        if query is None and output is None and sys.stdin.isatty() and sys.stdout.isatty():
            from ..prompt.loop import prompt

            prompt(asker, asked, kind)
            return
        queries = _queries(query)
        if output is not None:
            _write(asker, asked, queries, kind, output, file)
            return
        from ..prompt.session import Session

        session = Session(asker, asked, kind)
        for text in queries:
            session.run(text)


def _queries(query: str | None) -> list[str]:
    """Those that are given, or stand in stdin, or else one that lists the columns."""
    from ..prompt.session import ALL_COLUMNS
    from ..prompt.statements import statements

    if query == "-" or (query is None and not sys.stdin.isatty()):
        listed, rest = statements(sys.stdin.read(), is_all=True)
        return listed or [ALL_COLUMNS]
    return [query] if query and query.strip() else [ALL_COLUMNS]


def _write(
    asker: Asker, asked: Asked, queries: list[str], kind: str, output: str, file: Path | None
) -> None:
    """Write a query's result into the file, or into what `output` names that is no file."""
    from packidx.io.files import atomic_file

    if len(queries) > 1:
        raise OptionError(f"-o {output}: there are {len(queries)} queries: give one at a time")
    with status(asker.quiet) as doing:
        doing("running the query")
        answer = asker.answer(asked, queries[0], kind)
        if file is not None:
            with atomic_file(file) as out:
                out.writelines(answer)
        else:
            text = b"".join(answer)
            with open(output, "wb") as device:
                device.write(text)


def _kind_of(output: str | None) -> str:
    if output is None:
        return "table"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"-o {output}: say what to write with --format, or end it in {known}")
    return _SUFFIXES[suffix]


def _bytes(size: str | None) -> int | None:
    from packidx.io.sizes import parse_size

    if size is None:
        return None
    limit = parse_size(size)
    if not limit:
        raise OptionError(f"--memory-limit {size}: give bytes, or a size such as 500MB")
    return limit


def _file_of(output: str | None) -> Path | None:
    """The file to write as a whole; None for stdout and what else `output` names: a pipe, a device.

    Raises:
        OptionError: its folder does not exist.
    """
    if output is None:
        return None
    target = Path(output).resolve()
    if target.exists() and not target.is_file():
        return None
    if not target.parent.is_dir():
        raise OptionError(f"-o {output}: the folder {target.parent} does not exist")
    return target
