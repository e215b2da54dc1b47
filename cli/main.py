"""`packidx`: every command is loaded only when it runs, so that `--help` is instant."""

from __future__ import annotations

import io
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import packidx
from packidx.errors import LimitError, PackidxError, missing_package
from packidx.software import installed_version

try:
    import click
except ModuleNotFoundError as _error:  # an image in which packs are only read
    sys.exit(f"packidx: {missing_package('the command line', _error)}")

from .show.console import print_line

# command, and its module -> one line of help; the order is the order of work.
_COMMANDS = {
    "pack": "Count, plan, verify and draw a report: by one recipe.",
    "estimate": "Count the tokens of every sample into a lengths table.",
    "precompute": "Write the data back with every record's counts.",
    "plan": "Assign samples to packs; write a snapshot of the index.",
    "stats": "Say how good a plan is, or what a lengths table holds.",
    "report": "Draw a plan or lengths on one page, with pictures.",
    "trace": "Show what a step trains on, or when a sample is trained on.",
    "diff": "Show what two plans differ in.",
    "log": "List the snapshots of an index, newest first.",
    "sql": "Ask an index or lengths in SQL; without a query, at a prompt.",
    "export": "Write packs for Megatron-Energon or as WebDataset tars.",
    "push": "Publish a snapshot as a data set of the Hugging Face Hub.",
    "freeze": "Make a snapshot of the packs that a stream gave out.",
    "verify": "Check a snapshot against its own promises and its data.",
}


class LazyGroup(click.Group):
    """Commands in the order of the help, each imported when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"packidx_cli.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and lines of help, without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, with `--verbose` also the environment, and exit."""
    if not wanted or context.resilient_parsing:
        return
    print_line(f"packidx {packidx.__version__}")
    if context.params.get("verbose"):
        for name, value in _list_environment():
            print_line(f"{name:<18} {value}")
    context.exit()


def _list_environment() -> Iterator[tuple[str, str]]:
    from packidx.run.workers import num_workers

    yield "folder", str(Path(packidx.__file__).parent)
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "platform", platform.platform()
    yield "cores", f"{num_workers(None)} for this process"
    lines = requires("packidx") if installed_version("packidx") else []
    of_users = [line for line in lines or [] if not re.search("extra == .(dev|test)", line)]
    for name in dict.fromkeys(
        [*(re.split(r"[^\w.-]", line)[0] for line in of_users), "torchvision"]
    ):
        if name != "packidx":  # in an extra made of others
            yield name, installed_version(name) or "not installed"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--verbose", is_flag=True, is_eager=True, help="With --version: the environment too.")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def cli(verbose: bool) -> None:
    """Sequence packing for vision-language training, with the plan as a file.

    \b
    packidx estimate data/*.jsonl -o lengths/ --processor Qwen/Qwen2.5-VL-7B-Instruct
    packidx plan lengths/ -o index/ --capacity 8192
    packidx stats index/
    """


def main(args: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr, never a traceback."""
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # since modules were loaded
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return cli.main(args, standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        print_line(shown.getvalue().rstrip("\n"), err=True, lines=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _print_failure("stopped", 130)
    except BrokenPipeError:  # `packidx sql … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PackidxError as error:
        return _print_failure(str(error), error.exit_code)
    except SystemExit:
        raise
    except BaseException as error:  # of which a panic in Rust is one, and no Exception
        if isinstance(error, OSError):
            from packidx.io.files import refuse_open_files

            try:
                refuse_open_files(error)
            except LimitError as limit:
                return _print_failure(str(limit))
            where = f"{error.filename}: " if error.filename else ""
            return _print_failure(f"{where}{error.strerror or error}")
        if os.environ.get("PACKIDX_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            return _print_failure(str(missing_package("this command", error)))
        if isinstance(error, MemoryError):
            return _print_failure("not enough memory: use fewer --workers, or smaller windows")
        words = " ".join(str(error).split())[:300]
        return _print_failure(
            f"unexpected {type(error).__name__}: {words}; this is a defect of packidx,"
            " please report it with what `packidx --version --verbose` and PACKIDX_TRACEBACK=1 show"
        )


def _print_failure(why: str, status: int = 1) -> int:
    print_line(f"packidx: {why}", err=True)
    return status


def run() -> None:
    """Entry point for ``python -m packidx_cli``."""
    sys.exit(main())


if __name__ == "__main__":
    run()
