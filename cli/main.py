"""`packidx`: every command is loaded only when it runs, so that `--help` is instant."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any

from packidx.errors import PackidxError, missing_package

try:
    import click
except ModuleNotFoundError as _error:  # an image in which packs are only read
    sys.exit(f"packidx: {missing_package('the command line', _error)}")

from .lazy import LazyGroup
from .show.console import say
from .startup import LEAST, address_space, finished, is_near_limit, no_memory, prepare

# command -> (module, one line of help); the order is the order of work.
_COMMANDS = {
    "pack": ("pack", "Count, plan, verify and draw a report: by one recipe."),
    "estimate": ("estimate", "Count the tokens of every sample into a lengths table."),
    "precompute": ("precompute", "Write the data back with every record's counts."),
    "plan": ("plan", "Assign samples to packs; write a snapshot of the index."),
    "stats": ("stats", "Say how good a plan is, or what a lengths table holds."),
    "report": ("report", "Draw a plan or lengths on one page, with pictures."),
    "trace": ("trace", "Show what a step trains on, or when a sample is trained on."),
    "diff": ("diff", "Show what two plans differ in."),
    "log": ("log", "List the snapshots of an index, newest first."),
    "sql": ("sql", "Ask an index or lengths in SQL; without a query, at a prompt."),
    "export": ("export", "Write packs for Megatron-Energon or as WebDataset tars."),
    "verify": ("verify", "Check a snapshot against its own promises and its data."),
    "doctor": ("doctor", "Show the versions of what is installed here."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="packidx")
def cli() -> None:
    """Sequence packing for vision-language training, with the plan as a file.

    \b
    packidx estimate data/*.jsonl -o lengths/ --processor Qwen/Qwen2.5-VL-7B-Instruct
    packidx plan lengths/ -o index/ --capacity 8192
    packidx stats index/
    """
    if (address_space() or LEAST) < LEAST:  # Arrow would print a traceback of its own
        raise MemoryError


def main(args: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr, never a traceback."""
    if args is not None:
        return _main(args)
    status = prepare()
    if status is None:
        status = _main(None)
        _give_up_stdout()
        finished(status or 0)
    return status


def _give_up_stdout() -> None:
    """Where what is left cannot be written, let the interpreter end without a word about it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(args: list[str] | None) -> Any:
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # since modules were loaded
            signal.signal(signal.SIGINT, signal.default_int_handler)
        given = sys.argv[1:] if args is None else args
        return cli.main(args, standalone_mode=False, obj=list(given)) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), err=True, lines=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _failed("stopped", 130)
    except BrokenPipeError:  # `packidx sql … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PackidxError as error:
        return _failed(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if os.environ.get("PACKIDX_TRACEBACK"):
            raise
        return _failed(str(missing_package("this command", error)))
    except MemoryError:
        return _failed(no_memory())
    except OSError as error:
        if error.errno == errno.EBADF and error.filename is None:
            return _failed(
                "stdout is closed: what was to be written is, but what is to be said has "
                "nowhere to go; send it to a file, or to /dev/null"
            )
        if error.errno == errno.ENOMEM:
            return _failed(no_memory())
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}")
    except SystemExit:
        raise
    except BaseException as error:  # of which a panic in Rust is one, and no Exception
        if os.environ.get("PACKIDX_TRACEBACK"):
            raise
        if is_near_limit():  # libraries fail in any way where they get no memory
            return _failed(f"{no_memory()} ({type(error).__name__})")
        words = " ".join(str(error).split())[:300]
        return _failed(
            f"unexpected {type(error).__name__}: {words}; this is a defect of packidx,"
            " please report it with what `packidx doctor` and PACKIDX_TRACEBACK=1 show"
        )


def _failed(why: str, status: int = 1) -> int:
    say(f"packidx: {why}", err=True)
    return status


def run() -> None:
    """Entry point for ``python -m packidx_cli``."""
    sys.exit(main())


if __name__ == "__main__":
    run()
