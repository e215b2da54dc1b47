"""Completion by click's own protocol."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    environment = os.environ | {
        "_PACKIDX_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["packidx", *words]),
        "COMP_CWORD": str(len(words)),
    }
    # As the installed program does it: its name decides the variable's.
    code = (
        "import sys; sys.argv[0] = 'packidx'; from packidx_cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], ["plan"]),
        (["plan", "--on-long", "s"], ["split"]),
        (["plan", "--on-l"], ["--on-long"]),
        (["plan", "--strategy", "b"], ["bfd", "balanced"]),
        (["estimate", "--engine", ""], ["local", "ray"]),
        (["export", "w"], ["wds"]),
        (["pack", "--on-long", "tr"], ["truncate"]),
    ],
    ids=" ".join,
)
def test_the_shell_is_offered(words: list[str], offered: list[str]) -> None:
    assert completed(*words) == offered


def test_nothing_heavy_is_loaded_for_it() -> None:
    code = (
        "import sys; sys.argv[0] = 'packidx'; from packidx_cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'polars', 'duckdb', 'ray', 'pyarrow', 'numpy'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    words = {"_PACKIDX_COMPLETE": "bash_complete", "COMP_WORDS": "packidx p", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True
    )
    assert done.stdout.split() and done.stderr.strip() == "set()"
