"""Commands as shells start them: without streams, in another locale, with little address space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

PACKIDX = [sys.executable, "-m", "packidx_cli"]
PLAN = ["plan", "l.parquet", "--capacity", "16", "-o"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"length": [5, 6, 7, 8, 99]}), "l.parquet")
    return tmp_path


def shell(words: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, followed by redirections or preceded by limits."""
    command = ["sh", "-c", words, "sh", *PACKIDX, *args]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_without_stderr_or_stdin_a_plan_is_made_and_shown(closed: str) -> None:
    done = shell(f'"$@" {closed}', *PLAN, "i")
    assert done.returncode == 0 and "2 of 16 tokens" in done.stdout and done.stderr == ""
    assert main(["verify", "i"]) == 0


@pytest.mark.slow
def test_without_stdout_a_plan_is_made_and_a_sentence_says_what_is_closed() -> None:
    done = shell('"$@" >&-', *PLAN, "i")
    assert done.returncode == 1 and done.stderr.startswith("packidx: stdout is closed: ")
    assert done.stderr.count("\n") == 1
    assert shell('"$@" >&- 2>&- <&-', *PLAN, "j").returncode == 1
    assert main(["verify", "i"]) == main(["verify", "j"]) == 0
    assert shell('"$@" >&-', "sql", "i", "FROM packs", "-o", "o.csv").returncode == 0
    assert len(Path("o.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_nothing_that_is_printed_gets_into_a_file_that_took_a_streams_number() -> None:
    done = shell('"$@" >&- 2>&- <&-', "plan", "l.parquet", "--capacity", "16", "-o", "i", "--json")
    assert done.returncode == 1
    for path in Path("i").rglob("*"):
        if path.is_file():
            assert b"existed" not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}]
)
def test_names_are_utf8_in_any_locale(locale: dict[str, str]) -> None:
    talk = {"id": "schlüssel", "messages": [{"role": "user", "content": "eins"}]}
    Path("größe.jsonl").write_text(json.dumps(talk, ensure_ascii=False) + "\n")
    done = shell('"$@"', "estimate", "größe.jsonl", "-o", "längen", "--workers", "2", **locale)
    assert (done.returncode, "not UTF-8" in done.stderr) == (0, False), done.stderr
    assert "größe" in json.loads(Path("längen/manifest.json").read_text())["shards"][0]["uri"]
    query = "SELECT key, 'ß' AS s FROM lengths"
    done = shell('"$@"', "sql", "längen", query, "--format", "json", **locale)
    assert json.loads(done.stdout) == [{"key": "schlüssel", "s": "ß"}]


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [200_000, 1_000_000])
def test_a_limit_of_the_address_space_is_named_where_it_is_reached(kilobytes: int) -> None:
    assert main([*PLAN, "i"]) == 0
    Path("r.jsonl").write_text('{"messages": [{"role": "user", "content": "one"}]}\n')
    limited = f'ulimit -v {kilobytes}; "$@"'
    named = f"out of address space, which is limited to {kilobytes * 1.024e-3:,.0f} MB here (ulimit"
    failed = 0
    for command in ([*PLAN, "j"], ["estimate", "r.jsonl", "-o", "l"], ["sql", "i", "FROM packs"]):
        done = shell(limited, *command)
        assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
        if done.returncode:
            failed += 1
            assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("packidx: ")
            assert named in done.stderr or "memory" in done.stderr, done.stderr
    assert failed or kilobytes > 200_000


def test_a_crash_after_the_last_word_does_not_change_the_status() -> None:
    """Libraries that got no memory may crash when the interpreter ends."""
    code = (
        "import atexit, os, signal\n"
        "if 'PACKIDX_FINISHED' in os.environ:\n"
        "    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)\n"
        "from packidx_cli.main import main\n"
        "raise SystemExit(main())"
    )
    command = ["sh", "-c", 'ulimit -v 64000000; "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run([*command, "stats", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "nowhere" in done.stderr


@pytest.mark.slow
def test_a_status_is_passed_on_under_a_limit() -> None:
    assert shell('ulimit -v 64000000; "$@"', *PLAN, "i").returncode == 0
    done = shell('ulimit -v 64000000; "$@"', "stats", "nowhere")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "nowhere" in done.stderr
    assert shell('ulimit -v 64000000; "$@"', "plan").returncode == 2
