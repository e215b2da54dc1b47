"""The packages that packidx asks for, by its own metadata, and those that are here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from importlib.util import find_spec
from types import MappingProxyType

from packidx.inspect.doctor.imports import Imported
from packidx.software import installed

_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;\s*(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")
# Where they are not called as their package is.
_MODULES = {"pillow": "PIL", "pyyaml": "yaml", "vl-convert-python": "vl_convert"}
_FOR_DEVELOPERS = {"dev", "test", "all"}

READING = ("numpy", "pyarrow", "orjson", "pillow")
"""What an index is read with, besides torch (docs/training-image.md); the rest plans."""

ENCODING = ("tokenizers", "jinja2")
"""What `ProcessorEncoder` needs besides."""

# What each extra of pyproject.toml is for, in a few words; a test has one for each.
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


@dataclass(frozen=True, slots=True)
class Package:
    """A package that packidx can use."""

    name: str
    wanted: str
    """The range that packidx's metadata asks for, ``'>=2.0,<3'``; empty: any."""
    version: str | None
    """None where it is not installed."""
    inside: bool | None
    """Whether the version is in the range; None where there is none, or nobody can compare."""
    broken: str | None = None
    """Why it cannot be imported, though it is installed."""

    @property
    def is_here(self) -> bool:
        return self.version is not None and self.broken is None

    @property
    def module(self) -> str:
        """What it is imported as."""
        return _module_of(self.name)

    @property
    def install(self) -> str:
        """The command that puts it right."""
        return f'pip install "{self.name}{self.wanted}"'


@dataclass(frozen=True, slots=True)
class Extra:
    """One of packidx's extras: ``packidx[name]``."""

    name: str
    installed: bool
    """Whether all its packages are here and can be imported."""
    enables: str
    install: str
    packages: tuple[Package, ...]


def required(imported: Mapping[str, Imported] = MappingProxyType({})) -> tuple[Package, ...]:
    """What packidx cannot do without; nothing where packidx itself is not installed as a package.

    Args:
        imported: what came of importing modules elsewhere.
    """
    return tuple(_packages(None, imported))


def extras(imported: Mapping[str, Imported] = MappingProxyType({})) -> tuple[Extra, ...]:
    """What packidx can do more with, but for its developers' tools; else as `required`."""
    try:
        names = metadata("packidx").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return ()
    listed = {name: tuple(_packages(name, imported)) for name in names}
    return tuple(
        Extra(
            name=name,
            installed=all(package.is_here for package in packages),
            enables=ENABLES.get(name, ""),
            install=f'pip install "packidx[{name}]"',
            packages=packages,
        )
        for name, packages in listed.items()
        if name not in _FOR_DEVELOPERS
    )


def _packages(extra: str | None, imported: Mapping[str, Imported]) -> Iterable[Package]:
    """Those of an extra, or those without which packidx cannot be."""
    try:
        stated = requires("packidx") or []
    except PackageNotFoundError:
        return
    for line in stated:
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            continue
        name, wanted, marker = match[1].lower(), _in_order(match[2]), match[3] or ""
        named = _EXTRA.search(marker)
        if (named[1] if named else None) != extra or not _holds(marker, extra or ""):
            continue
        here, outcome = _version(name), imported.get(_module_of(name))
        is_inside = None if here is None else _is_inside(here, wanted)
        yield Package(name, wanted, here, is_inside, None if outcome is None else outcome.error)


def _module_of(package: str) -> str:
    return _MODULES.get(package, package.replace("-", "_"))


def _in_order(wanted: str) -> str:
    """A range as people write it, its beginning first: metadata has it in any order."""
    parts = [part.strip() for part in wanted.split(",")]
    return ",".join(sorted(parts, key=lambda part: part.startswith("<")))


def _version(name: str) -> str | None:
    """Of a package that is installed; a module that nobody installed as one has none to tell."""
    there = installed(name)
    if there is None and is_importable(_module_of(name)):
        return "of unknown version"
    return there


def is_importable(module: str) -> bool:
    """Whether there is a module of this name, which has no dots; nothing of it is run."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _is_inside(here: str, wanted: str) -> bool | None:
    """Whether a version is in a range; None where `packaging` is not here or cannot read it."""
    # It is compared with what packidx's own metadata asks for, and with nothing else: that an
    # installer was overruled is the first thing to know about a bug.
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version

        return bool(SpecifierSet(wanted).contains(Version(here), prereleases=True))
    except Exception:
        return None


def _holds(marker: str, extra: str) -> bool:
    """Whether a requirement is for this Python and platform; it is, where nobody can tell."""
    try:
        from packaging.markers import Marker

        return not marker or bool(Marker(marker).evaluate({"extra": extra}))
    except Exception:
        return True
