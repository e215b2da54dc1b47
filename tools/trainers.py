"""Which trainers packidx installs beside: ``make trainers`` writes docs/trainers.md.

The newest release of each trainer on the package index is resolved by uv together with
``packidx[torch,s3]``, with the ranges that pyproject.toml has; nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).parent.parent
EXTRAS = ("torch", "s3")
PYTHON, SYSTEM = "3.12", "x86_64-manylinux_2_35"

TRAINERS = {  # what people call it: what pip is given
    "NeMo Automodel": "nemo-automodel[vlm]",
    "axolotl": "axolotl",
    "ms-swift": "ms-swift",
    "LLaMA-Factory": "llamafactory",
    "LMMS Engine": "lmms-engine",
    "verl": "verl",
    "VeOmni": "veomni[gpu]",
    "Megatron-Bridge": "megatron-bridge",
    "TRL": "trl",
    "Lightning": "lightning",
}

# Requirements that are left out, each for its reason; none of them is one of ours.
EXCLUDED = {
    "flash-attn-3": "is an empty release on the package index",
    "flash-mla": "is source: without torch and CUDA its requirements are unknown",
}

SHOWN = ("transformers", "torch", "pyarrow", "numpy", "pillow", "huggingface-hub", "tokenizers")
"""What the table shows: asked for by the trainer, and come out."""
PLANNER = ("polars", "duckdb", "s3fs")
"""What it shows of the rest of packidx."""


class Trainer(NamedTuple):
    """A trainer's newest release."""

    name: str
    """As people call it."""
    wanted: str
    """``name[extras]==release``, for the resolver."""
    release: str
    asks: dict[str, str]
    """What it asks of the packages of `SHOWN`."""
    builds: dict[str, str]
    """Packages of which it asks for a build that is not on the package index, without its mark:
    ``{"torch": "2.11.0"}`` for ``torch==2.11.0+cu130``."""


class Resolved(NamedTuple):
    """What the resolver said."""

    versions: dict[str, str]
    """Of all packages; empty where there is no solution."""
    conflict: str
    """In the resolver's words."""


def newest(name: str, wanted: str) -> Trainer | None:
    """The newest release on the package index; None where there is none."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    options = ["--ignore-installed", "--disable-pip-version-check", "--report", "-", wanted]
    done = subprocess.run(command + options, capture_output=True, text=True)
    if done.returncode:
        return None
    metadata = json.loads(done.stdout)["install"][0]["metadata"]
    extras = re.findall(r"[\w-]+", wanted.partition("[")[2])
    asks, builds = {}, {}
    for one in metadata.get("requires_dist", []):
        requirement, _, marker = one.partition(";")
        package, ranges = split(requirement)
        of = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if of is not None and of[1] not in extras:
            continue
        if package in SHOWN:
            asks[package] = ranges or "any"
        if "+" in ranges:
            builds[package] = ranges.strip("= ").partition("+")[0]
    release = str(metadata["version"])
    return Trainer(name, f"{wanted}=={release}", release, asks, builds)


def split(requirement: str) -> tuple[str, str]:
    """A package's name as the index has it, and the range; extras are dropped."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[1]).lower(), found[2].strip()


def requirements(pyproject: Path) -> list[str]:
    """What ``packidx[torch,s3]`` requires."""
    project: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    of_extras = [project["optional-dependencies"][extra] for extra in EXTRAS]
    return [*project["dependencies"], *(one for extra in of_extras for one in extra)]


def resolve(trainer: Trainer, ours: list[str]) -> Resolved:
    """The trainer and our requirements at once."""
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--no-header"]
    system = ["--no-annotate", "--python-version", PYTHON, "--python-platform", SYSTEM]
    with tempfile.TemporaryDirectory() as folder:
        wanted, excluded, builds = (Path(folder) / name for name in ("in", "excludes", "overrides"))
        wanted.write_text("\n".join([trainer.wanted, *ours]))
        excluded.write_text("\n".join(EXCLUDED))
        builds.write_text("\n".join(f"{name}=={one}" for name, one in trainer.builds.items()))
        files = ["--excludes", str(excluded), "--overrides", str(builds), str(wanted)]
        done = subprocess.run(command + system + files, capture_output=True, text=True)
    if done.returncode:
        return Resolved({}, _in_words(done.stderr))
    pins = (line.split("==") for line in done.stdout.splitlines() if "==" in line)
    return Resolved({name.strip(): version.split()[0] for name, version in pins}, "")


def _in_words(error: str) -> str:
    """What uv says, without its decoration and without the addresses that it asked."""
    text = " ".join(re.sub(r"[×╰─▶│]+", " ", error).split())
    return re.sub(r"\S*://\S+", "(the index)", text)


def table(trainers: dict[str, Trainer | None], found: dict[str, Resolved]) -> list[str]:
    """The two tables: asked for, and come out."""
    columns = " | ".join(SHOWN)
    lines = [f"| trainer | release | {columns} |", "|" + "---|" * (len(SHOWN) + 2)]
    for name, trainer in trainers.items():
        if trainer is None:
            lines.append(f"| {name} | not on the package index |" + " |" * len(SHOWN))
            continue
        asks = " | ".join(f"`{trainer.asks[one]}`" if one in trainer.asks else "" for one in SHOWN)
        lines.append(f"| {name} | {trainer.release} | {asks} |")
    shown = (*SHOWN, *PLANNER)
    lines += ["", "What came out, with packidx beside it:", ""]
    lines += [f"| trainer | resolves | {' | '.join(shown)} |", "|" + "---|" * (len(shown) + 2)]
    for name, resolved in found.items():
        versions = " | ".join(resolved.versions.get(one, "") for one in shown)
        lines.append(f"| {name} | {'no, see below' if resolved.conflict else 'yes'} | {versions} |")
    for name, resolved in found.items():
        if resolved.conflict:
            lines += ["", f"**{name}** does not resolve: {resolved.conflict}"]
    return lines


def page(ours: list[str], tables: list[str]) -> str:
    """The whole of docs/trainers.md."""
    left_out = [f"- `{package}` {reason}." for package, reason in EXCLUDED.items()]
    asked = [one for one in ours if split(one)[0] in (*SHOWN, *PLANNER)]
    return "\n".join(
        [
            "# Trainers beside which packidx installs",
            "",
            "<!-- written by `make trainers` -->",
            f"On {datetime.now(UTC):%d %B %Y}, the newest release of each on the package index, "
            f"resolved together with `packidx[{','.join(EXTRAS)}]` for Python {PYTHON} on Linux "
            "(x86-64). `make trainers` writes this page anew.",
            "",
            "packidx asks for " + ", ".join(f"`{one}`" for one in asked) + ".",
            "",
            "In the clone and the trainer's environment, so that none of its releases moves:",
            "",
            "    pip freeze > pins.txt",
            '    pip install ".[torch,s3]" -c pins.txt',
            "",
            "The extra `video` is not in the table: it needs PyAV 17.1 or later, which "
            "LLaMA-Factory 0.9.5 (`av<=16.0.0`) and VeOmni 0.1.12 (`av<15`) do not take.",
            "",
            "What the trainers ask for themselves:",
            "",
            *tables,
            "",
            "`any` is a requirement without a range. Builds that are not on the package index "
            "(`+cu130`) are taken as the same release without the mark. Left out is what cannot be "
            "asked what it requires:",
            "",
            *left_out,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the page that is written")
    parser.add_argument("--pyproject", type=Path, default=REPO / "pyproject.toml", help="of ours")
    args = parser.parse_args()
    ours = requirements(args.pyproject)
    trainers = {name: newest(name, wanted) for name, wanted in TRAINERS.items()}
    found = {}
    for name, trainer in trainers.items():
        if trainer is not None:
            found[name] = resolve(trainer, ours)
            print(f"{name} {trainer.release}: {found[name].conflict or 'resolves'}", flush=True)
    args.output.write_text(page(ours, table(trainers, found)))
    return 1 if any(one.conflict for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
