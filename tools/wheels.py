"""For which Pythons there are wheels of what packidx needs: ``make wheels`` writes docs/pythons.md.

pip names the releases that have a wheel, of which those in pyproject.toml's ranges count; nothing
is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from trainers import REPO, split

GLIBC = 28
EXTRAS = ("transformers", "torch", "video", "fast", "lmdb", "ray", "s3")  # flash-attn has no wheels


def main(output: Path) -> int:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    extras = [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    asked = {
        (*split(requirement), python)
        for requirement in [*project["dependencies"], *extras]
        for python in pythons
    }
    with ThreadPoolExecutor(4) as pool:  # which wait for the package index
        found = dict(zip(asked, pool.map(lambda one: lowest_and_newest(*one), asked), strict=True))
    lines = [f"| package | range | {' | '.join(pythons)} |", "|" + "---|" * (len(pythons) + 2)]
    for name, ranges in sorted({one[:2] for one in asked}):
        cells = [found[name, ranges, python] for python in pythons]
        lines.append(f"| {' | '.join((name, f'`{ranges}`', *cells))} |")
    head = [
        "# Pythons",
        "",
        f"<!-- written by `make wheels` on {datetime.now(UTC):%d %B %Y} -->",
        f"packidx runs on Python {pythons[0]} to {pythons[-1]}. Of each package that it needs, the "
        "lowest and the newest release in its range that the package index has a wheel of, for "
        f"Linux (x86-64, glibc 2.{GLIBC}):",
        "",
    ]
    output.write_text("\n".join([*head, *lines, ""]))
    return 1 if "none" in found.values() else 0


def lowest_and_newest(name: str, ranges: str, python: str) -> str:
    """The lowest and the newest release of a range that have a wheel for a Python."""
    fitting = sorted(SpecifierSet(ranges).filter(wheels(name, python)))
    return f"{fitting[0]} – {fitting[-1]}" if fitting else "none"


def wheels(name: str, python: str) -> list[Version]:
    """All releases that have a wheel.

    pip lists them where it is asked for one that there is not; asked for any other, it would fetch
    that, too.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", f"{name}==0+none"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(5, GLIBC + 1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    options = [f"--platform={one}" for one in platforms]
    options += ["--only-binary=:all:", f"--python-version={python}", "--target=nowhere"]
    done = subprocess.run(command + options, capture_output=True, text=True)
    listed = re.search(r"from versions: ([^)]*)\)", done.stderr)
    if listed is None:
        raise SystemExit(f"pip does not list the releases of {name}: {done.stderr[-500:]}")
    return [Version(one) for one in listed[1].split(", ") if one != "none"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
