"""Print the lowest release that pyproject.toml admits of each package, as pip takes it.

    python tests/versions/floors.py pyproject.toml    # numpy==1.26, pyarrow==21, …

Left out is what cannot stand beside this environment: torch, whose other releases come with
gigabytes of CUDA, flash-attn, which builds only where CUDA is, Ray and s3fs, whose releases bring
many packages of theirs with them, and the tools of development.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

LEFT_OUT = {"torch", "flash-attn", "ray", "s3fs", "packidx"}
TOOLS = {"dev", "test"}


def floors(pyproject: Path) -> list[str]:
    """``name==floor`` of every requirement in `pyproject`, extras of a package kept."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"]]
    requirements += [line for name in extras if name not in TOOLS for line in extras[name]]
    pinned = {}
    for line in requirements:
        named = re.match(r"([\w.-]+)(\[[\w,-]+\])?(.*)", line)
        if named is None or named[1] in LEFT_OUT:
            continue
        floor = re.search(r">=\s*([\w.]+)", named[3])
        if floor is None:
            raise ValueError(f"{pyproject}: `{line}` has no floor: write `>=` and a release")
        pinned[named[1]] = f"{named[1]}{named[2] or ''}=={floor[1]}"
    return list(pinned.values())


if __name__ == "__main__":
    print("\n".join(floors(Path(sys.argv[1]))))
