"""The versions of what packidx uses, as far as it is installed here, and what torch sees."""

from __future__ import annotations

import platform
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

ENABLES = {
    "transformers": "real processors: pixels, `exact` compared",
    "torch": "packs for training: PackedDataset, PackSampler, collate",
    "video": "videos and sound: their headers and content",
    "fast": "text counted several times faster",
    "lmdb": "images given as path.lmdb::key",
    "ray": "--engine ray: many machines",
    "s3": "s3:// sources, lengths, indexes",
    "flash": "packs through flash-attention's kernels, on a GPU",
}
"""What each extra of pyproject.toml is for, in a few words; a test has one for each."""

Row = dict[str, Any]


def examine_environment() -> Row:
    """Look at what is installed; of all packages torch alone is imported.

    Returns:
        ``packidx`` (its version) and ``folder``, ``python`` and ``executable``, ``platform``,
        ``cpus`` (cores for this process: by its affinity and its container's quota), ``packages``:
        ``name``, ``wanted`` (the range that packidx's metadata asks for; empty: any), ``version``
        (None where it is not installed) and ``inside`` (whether that is in the range); ``extras``:
        ``name``, ``installed`` (all its packages are), ``enables``, ``install`` (the command) and
        ``packages``; and ``torch`` (None where it cannot be imported): ``version``, ``cuda`` or
        ``hip`` that it was built for, ``available`` and ``devices``.
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
        "extras": [_extra(name, _packages(name)) for name in ENABLES if installed("packidx")],
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
    needed = READING if reads else [package["name"] for package in packages]
    optional = [package for extra in environment["extras"] for package in extra["packages"]]
    for package in (*packages, *optional):
        name, version = package["name"], package["version"]
        install = f'pip install "{name}{package["wanted"]}"'
        if version is None and name in needed:
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


def _packages(extra: str = "") -> list[Row]:
    """The packages that an extra asks for besides; without one those that packidx needs."""
    if not installed("packidx"):  # packidx is here, but not as a package
        return []
    stated = [Requirement(line) for line in requires("packidx") or []]
    needed = [each for each in stated if each.marker is None or each.marker.evaluate({"extra": ""})]
    if not extra:
        return [_package(each) for each in needed]
    asked = [each for each in stated if each.marker and each.marker.evaluate({"extra": extra})]
    return [_package(each) for each in asked if each not in needed]


def _extra(name: str, packages: list[Row]) -> Row:
    return {
        "name": name,
        "installed": all(package["version"] is not None for package in packages),
        "enables": ENABLES[name],
        "install": f'pip install "packidx[{name}]"',
        "packages": packages,
    }


def _package(requirement: Requirement) -> Row:
    version, specifier = installed(requirement.name), requirement.specifier
    inside = None if version is None else specifier.contains(version, prereleases=True)
    known = {"name": requirement.name, "wanted": str(specifier)}
    return {**known, "version": version, "inside": inside}


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
