"""The versions of what packidx uses, as far as it is installed here, and what torch sees."""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import packidx
from packidx.software import installed

READING = ("numpy", "pyarrow", "orjson", "pillow")
"""Packages that an index is read with, besides torch (docs/training-image.md); others plan."""

_DEVELOPING = ("dev", "test", "all")
"""Extras of which nothing is told: the packages of the last one are those of the others."""

Row = dict[str, Any]


def examine_environment() -> Row:
    """Look at what is installed; of all packages torch alone is imported.

    Returns:
        ``packidx`` (its version) and ``folder``, ``python`` and ``executable``, ``platform``,
        ``cpus`` (cores for this process: by its affinity and its container's quota), ``packages``:
        ``name``, ``extra`` (of packidx, which asks for it; None where packidx itself does),
        ``wanted`` (the range that packidx's metadata asks for; empty: any), ``version`` (None where
        it is not installed) and ``inside`` (whether that is in the range); and ``torch`` (None
        where it cannot be imported): ``version``, ``cuda`` or ``hip`` that it was built for,
        ``available`` and ``devices``.
    """
    from packidx.run.workers import num_cpus

    return {
        "packidx": packidx.__version__,
        "folder": str(Path(packidx.__file__).parent),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": num_cpus(),
        "packages": _packages(),
        "torch": _torch(),
    }


def problems(environment: Row) -> Iterator[Row]:
    """Yield ``detail``, a sentence for each package that is missing or out of range, and what to
    ``do``.

    Where packs can be read, packages that only plan may be missing.
    """
    packages = environment["packages"]
    here = {package["name"] for package in packages if package["version"] is not None}
    reads = environment["torch"] is not None and here.issuperset(READING)
    for package in packages:
        name, version, extra = (package[key] for key in ("name", "version", "extra"))
        install = f'pip install "{name}{package["wanted"]}"'
        if version is None and extra is None and (name in READING or not reads):
            detail = f"{name} is not installed, which packidx needs"
            yield {"detail": detail, "do": install}
        elif package["inside"] is False:
            detail = f"{name} {version} is here, packidx asks for {name}{package['wanted']}"
            yield {"detail": detail, "do": install}


def torch_in_words(torch: Row) -> str:
    """Return what torch was built for, and what it sees."""
    built = "CUDA" if torch["cuda"] else "ROCm" if torch["hip"] else None
    if built is None:
        return "built for CPUs, no GPU can be used"
    built = f"{built} {torch['cuda'] or torch['hip']}"
    if not torch["available"]:
        return f"built for {built}, but it sees no GPU"
    names = Counter[str](torch["devices"])
    return f"{built}: " + ", ".join(f"{number} x {name}" for name, number in names.items())


def _packages() -> list[Row]:
    """All packages that packidx and its extras ask for; none where packidx is no package."""
    told = []
    for line in requires("packidx") or [] if installed("packidx") else []:
        asked = Requirement(line)
        is_needed = asked.marker is None or asked.marker.evaluate({"extra": ""})
        of_extra = re.search("""extra == ['"]([^'"]*)""", line)
        extra = None if is_needed or of_extra is None else of_extra[1]
        if extra in _DEVELOPING or not (is_needed or extra):
            continue
        version, specifier = installed(asked.name), asked.specifier
        inside = None if version is None else specifier.contains(version, prereleases=True)
        known = {"name": asked.name, "extra": extra, "wanted": str(specifier)}
        told.append({**known, "version": version, "inside": inside})
    return told


def _torch() -> Row | None:
    try:
        torch: Any = import_module("torch")
    except Exception:  # an installation that is broken raises anything
        return None
    available = bool(torch.cuda.is_available())
    devices = range(torch.cuda.device_count() if available else 0)
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": available,
        "devices": [torch.cuda.get_device_name(number) for number in devices],
    }
