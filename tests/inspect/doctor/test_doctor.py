"""`packidx doctor` without an index: what is installed, and what of it cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import torch
from absent import without
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packidx_cli.main import main

from packidx.inspect.doctor.imports import try_imports
from packidx.inspect.doctor.packages import ENABLES, extras, is_importable, required
from packidx.inspect.doctor.report import without_secrets

REPO = Path(__file__).parents[3]
RUN = "from packidx_cli.main import run\nrun()"
LARGE = ("torch", "transformers", "ray")
LIGHT = without(*LARGE) + RUN
"""What says nothing of these packages need not import them, which takes ten seconds."""
ONCE = """
import functools, sys
from packidx.inspect.doctor import report
from packidx_cli.main import main
report.examine_environment = functools.cache(report.examine_environment)
"""
"""Several commands in a process look around once."""
LOADED = """
main(["doctor", "--json"])
main(["doctor"])
print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def doctor(*args: str, program: str = RUN, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, "doctor", *args]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)


def told(*args: str, program: str = RUN, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        doctor("--json", *args, program=program, **environment).stdout
    )
    return found


@pytest.fixture(scope="module")
def here() -> tuple[dict[str, Any], set[str]]:
    """What it says where everything is, and what its own process has loaded by then."""
    done = doctor(program=ONCE + LOADED)
    return json.JSONDecoder().raw_decode(done.stdout)[0], set(done.stderr.split())


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Packages that stand before the installed ones, and cannot be imported."""
    bodies = {
        "lmdb": "raise ImportError('undefined symbol: mdb_open')",
        "polars": "raise OSError('libpolars.so: cannot open shared object file')",
        "av": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "gigatoken": "import sys; print('a banner'); sys.exit(3)",
    }
    for name, body in bodies.items():
        (tmp_path / "broken" / name).mkdir(parents=True)
        (tmp_path / "broken" / name / "__init__.py").write_text(body + "\n")
    return tmp_path / "broken"


def test_versions_are_those_that_are_installed_and_ranges_those_of_the_metadata(
    here: tuple[dict[str, Any], set[str]],
) -> None:
    found, _ = here
    assert set(found) == {"ok", "failure", "environment", "index", "problems"}
    assert (found["index"], found["ok"], found["failure"]) == (None, True, None)
    environment = found["environment"]
    assert set(environment) == {
        *("packidx", "folder", "python", "executable", "platform", "cpus", "machine_cpus"),
        *("memory", "memory_limit", "cache", "packages", "extras", "torch", "attention"),
    }
    packages = {one["name"]: one for one in environment["packages"]}
    asked = [Requirement(line) for line in requires("packidx") or [] if "extra ==" not in line]
    ranges = {one.name: one.specifier for one in asked}
    assert set(packages) == set(ranges)
    for name, one in packages.items():
        assert set(one) == {"name", "wanted", "version", "inside", "broken"}
        assert (one["version"], one["inside"], one["broken"]) == (version(name), True, None)
        assert SpecifierSet(one["wanted"]) == ranges[name]
    seen = environment["torch"]
    assert (seen["version"], seen["cuda"]) == (version("torch"), torch.version.cuda)
    assert len(seen["devices"]) == torch.cuda.device_count()
    attention = {one["name"]: one["state"] for one in environment["attention"]}
    assert attention["sdpa"] == attention["flex"] == "ok"
    assert is_importable("flash_attn") or attention["flash"] == "absent"


def test_every_extra_says_what_it_is_for_and_every_package_is_named_as_it_is_imported() -> None:
    stated = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert set(ENABLES) == set(stated["optional-dependencies"]) - {"dev", "test", "all"}
    for one in (*required(), *(package for extra in extras() for package in extra.packages)):
        assert is_importable(one.module) is (one.version is not None), one.name


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.usefixtures("known")
def test_it_is_one_screen(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= (30 if columns == 100 else 40)
    for words in ("ok  numpy", "--  flash", "cores", "cache", "no problem found"):
        assert words in out


def test_packages_that_cannot_be_imported_are_a_line_each(broken: Path) -> None:
    done = doctor(program=LIGHT, PYTHONPATH=str(broken))
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("packidx: packidx needs polars, ")
    assert done.stderr.count("\n") == 1
    problems = " ".join(done.stdout.partition("what is wrong")[2].split())
    for words in (
        f"lmdb {version('lmdb')} cannot be imported (ImportError: undefined symbol: mdb_open)",
        "(OSError: libpolars.so: cannot open shared object file)",
        f"av {version('av')} cannot be imported (importing it ended the process by signal SIGSEGV)",
        "(SystemExit: 3)",
        '-> pip install --force-reinstall "polars',
    ):
        assert words in problems
    assert "NO  video" in done.stdout and "ok  s3" in done.stdout


def test_what_crashes_hides_nothing_that_stands_behind_it(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(broken))
    found = try_imports([["json", "av", "lmdb", "csv"], ["av"], ["nothing_like_it"]])
    assert [name for name, one in found.items() if one.error is None] == ["json", "csv"]
    assert "nothing_like_it" in str(found["nothing_like_it"].error)


def test_a_version_outside_the_range_is_told_and_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "duckdb-0.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: duckdb\nVersion: 0.3\n")
    found = told(program=LIGHT, PYTHONPATH=str(tmp_path))
    [problem] = found["problems"]
    [wanted] = [one.wanted for one in required() if one.name == "duckdb"]
    assert problem["detail"] == f"duckdb 0.3 is here, packidx asks for duckdb{wanted}"
    assert problem["do"] == f'pip install "duckdb{wanted}"' and found["ok"] is True


def test_extras_that_are_not_here_are_no_problem() -> None:
    names = ("torch", "transformers", "av", "lmdb", "ray", "s3fs", "gigatoken")
    done = doctor(program=without(*names) + RUN)
    assert (done.returncode, done.stderr) == (0, "") and "no problem found" in done.stdout
    said = " ".join(done.stdout.split())
    assert "not installed: lengths can be counted and planned" in said
    for extra in ("transformers", "torch", "video", "lmdb", "ray", "s3", "fast"):
        assert f'-- {extra} {ENABLES[extra]}: pip install "packidx[{extra}]"' in said


def test_without_what_the_planner_needs_it_says_so() -> None:
    program = without("polars", "duckdb", "pyarrow", *LARGE) + RUN
    done = doctor("nowhere", program=program)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "nowhere cannot be read here: it cannot be opened without pyarrow" in done.stderr
    done = doctor(program=program)
    assert done.returncode == 1
    assert done.stderr.startswith("packidx: packidx needs pyarrow, polars, duckdb, missing or ")
    assert "NO  duckdb not installed (" in done.stdout
    assert '-> pip install "polars' in done.stdout


def test_it_imports_no_large_library_in_its_own_process(
    here: tuple[dict[str, Any], set[str]],
) -> None:
    found, loaded = here
    assert found["environment"]["torch"] is not None and "packidx" in loaded
    assert loaded & {"torch", "transformers", "polars", "duckdb", "rich", "ray"} == set()


def test_it_tells_no_secret(tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice"
    (home / "data").mkdir(parents=True)
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "HF_TOKEN": "hf_abcdefghijkl",
        "PACKIDX_CACHE_SIZE": "hunter2hunter2",
    }
    places = [
        f"{home}/data/index",
        "s3://AKIA123:wJalrXUtnFEMI/K7MDENG@bucket/index",
        "https://bucket/index?X-Amz-Signature=abcdef",
    ]
    cache = f"{home}/cache"
    each = "for place in sys.argv[2:]: print('status', main(['doctor', place]))"
    program = without(*LARGE) + ONCE + each
    done = doctor(*places, program=program, HOME=str(home), PACKIDX_CACHE=cache, **secrets)
    said = done.stdout + done.stderr
    assert done.stdout.count("status 1\n") == len(places) and "Traceback" not in said
    for secret in (*secrets.values(), str(home), "AKIA123", "K7MDENG", "X-Amz", "abcdef"):
        assert secret not in said, said
    assert said.count("~/cache holds 0 bytes") == len(places)
    assert said.count("PACKIDX_CACHE_SIZE is no size") >= len(places)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://corpus/a@b/c", "s3://corpus/a@b/c"),
        ("ftp://me@host/x y", "ftp://***@host/x y"),
        ("see https://u:p@h/x?sig=1 and s3://b/k", "see https://***@h/x?*** and s3://b/k"),
        ("s3://user:p@ss/w0rd@127.0.0.1:1/index", "s3://***@127.0.0.1:1/index"),
        ("https://h/x#access_token=1 https://h/x;t='1'", "https://h/x#*** https://h/x;***"),
        ("/home/alice/x and /home/alice2/y, /mnt/home/alice", None),
    ],
)
def test_what_is_shown_of_places(
    text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    expected = shown or "~/x and /home/alice2/y, /mnt/home/alice"
    assert without_secrets([{"a": (text,)}]) == [{"a": (expected,)}]


def test_values_of_variables_named_like_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DB_PWD": "hunter22", "MY_APIKEY": "s3cr3ts3cr3t"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"GIT_AUTHOR_NAME": "packidx", "TOKENIZERS_VERSION": "0.23.3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_KEYRING_PROVIDER", "import")
    told = "packidx 0.23.3 cannot be imported: hunter22 at postgres, key=s3cr3ts3cr3t"
    shown = "packidx 0.23.3 cannot be imported: *** at postgres, key=***"
    assert without_secrets(told) == shown


def test_options_of_an_index_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--processor", "x"]) == 1
    assert "name INDEX as well" in capsys.readouterr().err
