"""The versions of what packidx uses, as far as it is installed here, and what torch sees."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires
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
    "hub": "data sets of the Hub by id: their splits, their cache",
    "report": "charts of `packidx report`",
    "flash": "packs through flash-attention's kernels, on a GPU",
}
"""What each extra of pyproject.toml is for, in a few words; a test has one for each."""

_FOR_DEVELOPERS = {"dev", "test", "all"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that packidx can use."""

    name: str
    wanted: str
    """The range that packidx's metadata asks for, ``'<3,>=2.0'``; empty: any."""
    version: str | None
    """None where it is not installed."""
    inside: bool | None
    """Whether the version is in the range; None where it is not installed."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One of packidx's extras: ``packidx[name]``."""

    name: str
    installed: bool
    """Whether all its packages are installed."""
    enables: str
    install: str
    """The command that installs it."""
    packages: tuple[Package, ...]


@dataclass(frozen=True, slots=True)
class Torch:
    """torch and the devices that it sees."""

    version: str
    cuda: str | None
    """The CUDA that it was built for; None of a build for CPUs or ROCm."""
    hip: str | None
    available: bool
    devices: tuple[str, ...]

    @property
    def in_words(self) -> str:
        """What torch was built for, and what it sees."""
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else ""
        if not built:
            return "built for CPUs, no GPU can be used"
        if not self.available:
            return f"built for {built}, but it sees no GPU"
        names = Counter(self.devices)
        return f"{built}: " + ", ".join(f"{number} x {name}" for name, number in names.items())


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed here."""

    packidx: str
    folder: str
    """Where packidx is."""
    python: str
    executable: str
    platform: str
    cpus: int
    """Cores for this process: by its affinity and its container's quota."""
    packages: tuple[Package, ...]
    extras: tuple[Extra, ...]
    torch: Torch | None
    """None where it is not installed, or cannot be imported."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """A sentence for each package that is missing or out of range, and the command against it.

        Where packs can be read, packages that only plan may be missing.
        """
        here = {package.name for package in self.packages if package.version is not None}
        reads = self.torch is not None and here.issuperset(READING)
        needed = READING if reads else tuple(package.name for package in self.packages)
        optional = [package for extra in self.extras for package in extra.packages]
        for package in (*self.packages, *optional):
            install = f'pip install "{package.name}{package.wanted}"'
            if package.version is None and package.name in needed:
                yield f"{package.name} is not installed, which packidx needs", install
            elif package.inside is False:
                asked = f"packidx asks for {package.name}{package.wanted}"
                yield f"{package.name} {package.version} is here, {asked}", install


def examine_environment() -> Environment:
    """Look at what is installed; of all packages torch alone is imported."""
    from packidx.run.workers import num_cpus

    return Environment(
        packidx=packidx.__version__,
        folder=str(Path(packidx.__file__).parent),
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        cpus=num_cpus(),
        packages=_packages(""),
        extras=_extras(),
        torch=_torch(),
    )


def _extras() -> tuple[Extra, ...]:
    try:
        names = metadata("packidx").get_all("Provides-Extra") or []
    except PackageNotFoundError:  # packidx is here, but not as a package
        return ()
    packages = {name: _packages(name) for name in names if name not in _FOR_DEVELOPERS}
    return tuple(
        Extra(
            name=name,
            installed=all(package.version is not None for package in of_extra),
            enables=ENABLES.get(name, ""),
            install=f'pip install "packidx[{name}]"',
            packages=of_extra,
        )
        for name, of_extra in packages.items()
    )


def _packages(extra: str) -> tuple[Package, ...]:
    """The packages that an extra asks for; with ``""`` those that packidx cannot do without."""
    try:
        stated = [Requirement(line) for line in requires("packidx") or []]
    except PackageNotFoundError:
        return ()
    asked = [
        each for each in stated if each.marker is None or each.marker.evaluate({"extra": extra})
    ]
    if extra:  # without what packidx needs in any case
        asked = [each for each in asked if each.marker and not each.marker.evaluate({"extra": ""})]
    return tuple(map(_package, asked))


def _package(requirement: Requirement) -> Package:
    version, specifier = installed(requirement.name), requirement.specifier
    inside = None if version is None else specifier.contains(version, prereleases=True)
    return Package(requirement.name, str(specifier), version, inside)


def _torch() -> Torch | None:
    try:
        torch: Any = import_module("torch")
    except Exception:  # an installation that is broken raises anything
        return None
    available = bool(torch.cuda.is_available())
    devices = range(torch.cuda.device_count() if available else 0)
    return Torch(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        available=available,
        devices=tuple(torch.cuda.get_device_name(number) for number in devices),
    )
