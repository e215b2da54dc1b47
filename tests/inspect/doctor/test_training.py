"""`packidx doctor` where packs are read: the release that makes the pixels, and fewer packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from absent import without
from packidx_cli.commands.doctor import make_dataset
from packidx_cli.options import make_encoder

from packidx import estimate_lengths, open_index, plan_packs
from packidx.inspect.doctor.encoder import choose
from packidx.inspect.doctor.finding import Given, Makers
from packidx.inspect.doctor.index import examine_index
from packidx.inspect.doctor.machine import Environment
from packidx.inspect.doctor.report import examine

TURNS = [{"role": "user", "content": "why is it"}, {"role": "assistant", "content": "so"}]
RUN = "from packidx_cli.main import run\nrun()"
PLANNER = (
    *("polars", "duckdb", "rich", "braceexpand", "fsspec", "s3fs", "packaging", "ray", "datasets"),
    *(
        "prompt_toolkit",
        "yaml",
        "pyyaml",
        "huggingface_hub",
        "huggingface-hub",
        "transformers",
        "torchdata",
    ),
)
ENCODE = """
def encode(record):
    return {"input_ids": [1] * len(record["messages"][0]["content"])}
"""


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.jsonl").write_text((json.dumps({"messages": TURNS}) + "\n") * 8)
    return tmp_path


@pytest.fixture
def counted(talks: Path, processors: Path) -> Path:
    """An index that was counted with a processor of images."""
    shutil.copytree(processors / "qwen2.5-vl", "qwen")
    estimate_lengths("talks.jsonl", "lengths", processor="qwen", workers=1)
    plan_packs("lengths", "index", capacity=256)
    return talks


@pytest.fixture
def own(talks: Path) -> Path:
    """An index that was counted with the user's own encoder."""
    (talks / "letters.py").write_text(ENCODE)
    estimate_lengths("talks.jsonl", "lengths", encode="letters:encode", workers=1)
    plan_packs("lengths", "index", capacity=64)
    return talks


def with_transformers(environment: Environment, release: str | None) -> Environment:
    extras = [
        replace(
            extra,
            packages=tuple(
                replace(one, version=release) if one.name == "transformers" else one
                for one in extra.packages
            ),
        )
        for extra in environment.extras
    ]
    return replace(environment, extras=tuple(extras))


def told(environment: Environment, **compared: Any) -> tuple[str, str]:
    """State and words of the encoder of an index whose manifest says that of the comparison."""
    index = open_index("index")
    lengths = index.snapshot.lengths
    assert lengths.encoder is not None and lengths.encoder.compared is not None
    changed = replace(lengths.encoder, compared={**lengths.encoder.compared, **compared})
    index.snapshot = replace(index.snapshot, lengths=replace(lengths, encoder=changed))
    finding = choose(index, Given("index", {}), environment).finding
    return finding.state, f"{finding.detail} -> {finding.do}"


def test_lengths_are_those_of_the_release_that_is_here_or_nobody_knows(
    counted: Path, environment: Environment
) -> None:
    package = environment.package("transformers")
    assert package is not None and package.version is not None
    release = f"transformers {package.version}"
    assert told(environment) == ("ok", told(environment)[1])
    assert f"lengths were compared with {release} -> None" in told(environment)[1]
    others = [(with_transformers(environment, here), here) for here in ("5.6.2", None)]
    for other, here in others:
        state, said = told(other)
        assert state == "unknown"
        assert f"lengths were compared with {release}, and {here or 'none'} is installed" in said
        assert "`packidx verify index --processor qwen --sample 200`" in said
    state, said = told(environment, **{"with": None, "reason": "it was not installed"})
    assert state == "unknown" and "not compared with the real processor (it was not in" in said
    state, said = told(environment, unequal=["image"])
    assert state == "unknown" and f"lengths were found to differ from {release}" in said


def test_packs_are_built_though_the_release_is_another(
    counted: Path, environment: Environment
) -> None:
    other = with_transformers(environment, "5.6.2")
    facts = examine_index(Given("index", {}), other, Makers(make_encoder, make_dataset))
    states = {one.name: one.state for one in facts.findings if one.state != "ok"}
    assert states == {"encoder": "unknown"}
    assert facts.reading is not None and facts.reading.how == "packs"


def test_no_release_matters_to_text_alone(
    talks: Path, processors: Path, environment: Environment
) -> None:
    shutil.copytree(processors / "qwen2.5-vl", "qwen", ignore=shutil.ignore_patterns("*processor*"))
    estimate_lengths("talks.jsonl", "lengths", processor="qwen", workers=1)
    plan_packs("lengths", "index", capacity=256)
    for release in ("5.6.2", None):
        state, said = told(with_transformers(environment, release))
        assert state == "ok" and "text alone" in said


def doctor(*args: str, absent: tuple[str, ...] = PLANNER) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", without(*absent) + RUN, "doctor", *args]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_training_image_without_the_planner_has_nothing_wrong(own: Path) -> None:
    done = doctor("index", "--encode", "letters:encode")
    said = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, ""), said + done.stderr
    assert "no problem found" in said and "packs built" in said
    assert not [line for line in done.stdout.splitlines() if line.startswith("NO")]
    assert "polars, duckdb" in said and "not needed to read packs" in said
    assert "torch, numpy, pyarrow, orjson, pillow; ProcessorEncoder tokenizers and jinja2" in said


def test_what_reading_needs_is_wrong_where_it_is_absent(own: Path) -> None:
    done = doctor("index", "--encode", "letters:encode", absent=(*PLANNER, "pillow", "PIL"))
    said = " ".join(done.stdout.split())
    assert "NO pillow not installed" in said and "polars is not installed" not in said
    assert '-> pip install "pillow>=' in said
    assert said.count("pip may move releases that a trainer pins: see docs/trainers.md") == 1


def test_what_a_processor_needs_is_named_where_it_is_absent(counted: Path) -> None:
    done = doctor("index", absent=(*PLANNER, "tokenizers", "jinja2"))
    said = " ".join(done.stdout.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "NO encoder" in said and "-> pip install tokenizers" in said
    assert "tokenizers is not installed" in done.stderr


def test_without_an_index_it_fails_only_where_packs_are_neither_planned_nor_read(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failure(*absent: str, has_torch: bool = True) -> str | None:
        packages = [
            replace(one, version=None, inside=None) if one.name in absent else one
            for one in environment.packages
        ]
        torch = environment.torch if has_torch else None
        here = replace(environment, packages=tuple(packages), torch=torch)
        monkeypatch.setattr("packidx.inspect.doctor.report.examine_environment", lambda: here)
        return examine(None, Makers(make_encoder, make_dataset)).failure

    assert failure() is None and failure(has_torch=False) is None
    assert failure("polars", "duckdb") is None
    assert "needs polars" in str(failure("polars", has_torch=False))
    assert "needs numpy, polars" in str(failure("numpy", "polars"))
