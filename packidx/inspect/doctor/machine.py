"""This machine, as far as packidx can use it: cores, memory, cache, torch and its devices."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import packidx
from packidx.errors import PackidxError
from packidx.inspect.doctor.finding import Finding
from packidx.inspect.doctor.imports import Imported, try_imports
from packidx.inspect.doctor.packages import READING, Extra, Package, extras, is_importable, required

# What is no package of ours, and runs batches of `collate`: imported as its models import it.
_THD, _INDEXED = "transformer_engine.pytorch", "nemo_automodel"
# Others would wait for these, so that they have processes of their own.
_SLOW = (("torch", "flash_attn"), ("transformers", "ray"), (_THD,), (_INDEXED,))


@dataclass(frozen=True, slots=True)
class Cache:
    """Local copies of files in object stores (`packidx.io.cache`)."""

    folder: str
    nbytes: int
    limit: int | None
    """None where what the user stated is no size."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Torch:
    """torch and the devices that it sees."""

    version: str
    cuda: str | None
    """The CUDA that it was built for; None of a build for CPUs or ROCm."""
    hip: str | None
    available: bool
    devices: Sequence[str]
    has_flex: bool


@dataclass(frozen=True, slots=True)
class Environment:
    """All that is known without an index."""

    packidx: str
    folder: str
    """Where packidx is."""
    python: str
    executable: str
    platform: str
    cpus: int
    """For this process: by its affinity and its container's quota."""
    machine_cpus: int
    memory: int
    """Bytes that the machine has."""
    memory_limit: int | None
    """Bytes that this process's container may take."""
    cache: Cache | None
    """None where the packages are not here that it is made with."""
    packages: tuple[Package, ...]
    extras: tuple[Extra, ...]
    torch: Torch | None
    """None where it is not here, or cannot be imported."""
    attention: tuple[Finding, ...]
    """Each way in which `collate` keeps samples apart, and whether models can run it here."""

    def package(self, name: str) -> Package | None:
        """One of the packages, of the extras', too."""
        listed = (*self.packages, *(package for extra in self.extras for package in extra.packages))
        return next((package for package in listed if package.name == name), None)

    def extra(self, name: str) -> Extra | None:
        return next((extra for extra in self.extras if extra.name == name), None)

    def needed(self, reading: bool) -> tuple[str, ...]:
        """Names of packages that must be here: all, or the reader's if packs are or can be read."""
        core = [package for package in self.packages if package.name in READING]
        if reading or (self.torch is not None and all(package.is_here for package in core)):
            return READING
        return tuple(package.name for package in self.packages)


def examine_environment() -> Environment:
    """Look around; every package that is installed is imported, in other processes."""
    from packidx.run.limits import memory_limit, num_cpus

    packages, optional = required(), extras()
    listed = [*packages, *(package for extra in optional for package in extra.packages)]
    here = dict.fromkeys(package.module for package in listed if package.version is not None)
    here |= {name: None for name in (_THD, _INDEXED) if is_importable(name.partition(".")[0])}
    slow = [[name for name in group if name in here] for group in _SLOW]
    quick = [name for name in here if not any(name in group for group in _SLOW)]
    imported = try_imports([group for group in (*slow, quick) if group])
    packages, optional = required(imported), extras(imported)
    torch = _torch(optional, imported)
    return Environment(
        packidx=packidx.__version__,
        folder=str(Path(packidx.__file__).parent),
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        cpus=num_cpus(),
        machine_cpus=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_limit=memory_limit(),
        cache=_cache(packages),
        packages=packages,
        extras=optional,
        torch=torch,
        attention=tuple(_attention(torch, imported)),
    )


def environment_problems(environment: Environment, reading: bool) -> list[Finding]:
    """Packages that are needed and not here, that are broken, or of another version than asked."""
    problems = []
    optional = [package for extra in environment.extras for package in extra.packages]
    listed = {package.name: package for package in (*optional, *environment.packages)}
    needed = environment.needed(reading)
    for name, package in listed.items():
        do = package.install
        if package.version is None and name in needed:
            said = f"{name} is not installed, which packidx needs"
        elif package.broken is not None:
            said = f"{name} {package.version} cannot be imported ({package.broken})"
            do = do.replace("pip install", "pip install --force-reinstall")
        elif package.inside is False:
            said = f"{name} {package.version} is here, packidx asks for {name}{package.wanted}"
        else:
            continue
        problems.append(Finding(name, "problem", said, do))
    cache = environment.cache
    if cache is not None and cache.error is not None:
        problems.append(Finding("cache", "problem", cache.error))
    return problems


def lacking(environment: Environment) -> list[str]:
    """Names of packages without which packidx cannot work here, or that are broken."""
    needed = environment.needed(reading=False)
    return [
        package.name
        for package in environment.packages
        if package.broken is not None or (package.version is None and package.name in needed)
    ]


def _cache(packages: tuple[Package, ...]) -> Cache | None:
    if any(package.name in ("numpy", "pyarrow") and not package.is_here for package in packages):
        return None
    from packidx.io import cache

    folder, nbytes, error, limit = cache.folder(), 0, None, None
    try:
        limit = cache.limit()
    except PackidxError:
        # Without what was stated: nothing of the variables' values is told.
        error = "PACKIDX_CACHE_SIZE is no size: set bytes, or a size such as 200GB"
    try:
        with os.scandir(os.path.join(folder, "files")) as entries:
            nbytes = sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:  # there is none yet
        pass
    return Cache(folder, nbytes, limit, error)


def _torch(extras: tuple[Extra, ...], imported: dict[str, Imported]) -> Torch | None:
    package = next((p for e in extras for p in e.packages if p.name == "torch"), None)
    outcome = imported.get("torch")
    if package is None or package.version is None or outcome is None or outcome.facts is None:
        return None
    return Torch(version=package.version, **outcome.facts)


def devices_in_words(torch: Torch) -> str:
    """What torch was built for, and what it sees."""
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else ""
    if not built:
        return "built for CPUs, no GPU can be used"
    if not torch.available:
        return f"built for {built}, but it sees no GPU"
    names = Counter(torch.devices)
    return f"{built}: " + ", ".join(f"{number} x {name}" for name, number in names.items())


def _attention(torch: Torch | None, imported: dict[str, Imported]) -> list[Finding]:
    """By `collate`'s names."""
    if torch is None:
        return [Finding("sdpa", "absent", "torch is not usable here")]
    gpu = torch.available
    if torch.has_flex:
        flex = Finding("flex", "ok", "" if gpu else "forward only: training needs a GPU")
    else:
        flex = Finding("flex", "absent", "this torch has no flex_attention")
    return [
        Finding("sdpa", "ok", "eager, too"),
        flex,
        _kernels("flash", "flash-attn", imported.get("flash_attn"), gpu),
        _kernels("thd", "Transformer Engine", imported.get(_THD), gpu),
        # Its models run on CPUs, too, with torch's own attention.
        _kernels("indexed", "NeMo Automodel", imported.get(_INDEXED), True),
    ]


def _kernels(name: str, package: str, imported: Imported | None, has_device: bool) -> Finding:
    """An attention that takes a package, what came of importing that, and its device."""
    if imported is None:
        return Finding(name, "absent", f"{package} is not installed")
    if imported.error is not None:
        return Finding(name, "problem", f"{package} cannot be imported: {imported.error}")
    if not has_device:
        return Finding(name, "absent", f"{package} is here, but no GPU")
    return Finding(name, "ok", "")
