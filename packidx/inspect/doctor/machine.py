"""This machine, as far as packidx can use it: cores, memory, cache, torch and its devices."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packidx
from packidx.errors import PackidxError
from packidx.inspect.doctor.finding import Finding
from packidx.inspect.doctor.imports import Imported, try_imports
from packidx.inspect.doctor.packages import (
    Extra,
    Package,
    extras,
    extras_with_imports,
    is_importable,
    required,
    with_imports,
)

# Others would wait for these, so that they have processes of their own.
_SLOW = (("torch", "flash_attn"), ("transformers", "ray"))


@dataclass(frozen=True, slots=True)
class Cache:
    """Local copies of files in object stores (`packidx.cache`)."""

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
    devices: tuple[str, ...]
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
        listed = (*self.packages, *(one for extra in self.extras for one in extra.packages))
        return next((one for one in listed if one.name == name), None)

    def extra(self, name: str) -> Extra | None:
        return next((one for one in self.extras if one.name == name), None)


def examine_environment() -> Environment:
    """Look around; every package that is installed is imported, in other processes."""
    from packidx.run.workers import memory_limit, num_cpus

    packages, optional = required(), extras()
    listed = [*packages, *(one for extra in optional for one in extra.packages)]
    here = dict.fromkeys(one.module for one in listed if one.version is not None)
    slow = [[name for name in group if name in here] for group in _SLOW]
    quick = [name for name in here if not any(name in group for group in _SLOW)]
    imported = try_imports([group for group in (*slow, quick) if group])
    packages = with_imports(packages, imported)
    optional = extras_with_imports(optional, imported)
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
        cache=_cache() if _can_cache(packages) else None,
        packages=packages,
        extras=optional,
        torch=torch,
        attention=tuple(_attention(torch, optional)),
    )


def environment_problems(environment: Environment) -> list[Finding]:
    """Packages that packidx asks for and that are not here, broken, or of another version."""
    problems = []
    for one in environment.packages:
        if one.version is None:
            problems.append(_problem(one, f"{one.name} is not installed, which packidx needs"))
    seen: set[str] = set()
    for one in (*environment.packages, *(p for e in environment.extras for p in e.packages)):
        if one.name in seen:
            continue
        seen.add(one.name)
        if one.broken is not None:
            problems.append(
                _problem(one, f"{one.name} {one.version} cannot be imported ({one.broken})")
            )
        elif one.inside is False:
            said = f"{one.name} {one.version} is here, packidx asks for {one.name}{one.wanted}"
            problems.append(_problem(one, said))
    cache = environment.cache
    if cache is not None and cache.error is not None:
        problems.append(Finding("cache", "problem", cache.error))
    return problems


def lacks_a_need(environment: Environment) -> bool:
    """Whether packidx itself cannot work here as a whole."""
    return not all(one.is_here for one in environment.packages)


def _problem(package: Package, detail: str) -> Finding:
    again = "pip install --force-reinstall" if package.broken else "pip install"
    return Finding(
        package.name, "problem", detail, package.install.replace("pip install", again, 1)
    )


def _can_cache(packages: tuple[Package, ...]) -> bool:
    return not any(one.name in ("numpy", "pyarrow") and not one.is_here for one in packages)


def _cache() -> Cache:
    from packidx import cache

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
    found = imported.get("torch")
    if package is None or package.version is None or found is None or found.facts is None:
        return None
    facts: dict[str, Any] = found.facts
    return Torch(
        version=package.version,
        cuda=facts["cuda"],
        hip=facts["hip"],
        available=facts["available"],
        devices=tuple(facts["devices"]),
        has_flex=facts["has_flex"],
    )


def devices_in_words(torch: Torch) -> str:
    """What torch was built for, and what it sees."""
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else ""
    if not built:
        return "built for CPUs, no GPU can be used"
    if not torch.available:
        return f"built for {built}, but it sees no GPU"
    names = Counter(torch.devices)
    return f"{built}: " + ", ".join(f"{number} x {name}" for name, number in names.items())


def _attention(torch: Torch | None, extras: tuple[Extra, ...]) -> list[Finding]:
    """By `collate`'s names."""
    if torch is None:
        return [Finding("sdpa", "absent", "torch is not usable here")]
    flash = next((p for e in extras for p in e.packages if p.name == "flash-attn"), None)
    found = [Finding("sdpa", "ok", "eager, too")]
    if torch.has_flex:
        only = "" if torch.available else "forward only: training needs a GPU"
        found.append(Finding("flex", "ok", only))
    else:
        found.append(Finding("flex", "absent", "this torch has no flex_attention"))
    if flash is None or flash.version is None:
        found.append(Finding("flash", "absent", "flash-attn is not installed"))
    elif flash.broken is not None:
        found.append(Finding("flash", "problem", "flash-attn cannot be imported"))
    elif not torch.available:
        found.append(Finding("flash", "absent", "flash-attn is here, but no GPU"))
    else:
        found.append(Finding("flash", "ok", ""))
    for name, module, words in (
        ("thd", "transformer_engine", "Transformer Engine"),
        ("indexed", "nemo_automodel", "NeMo Automodel"),
    ):
        there = is_importable(module)
        detail = "" if there else f"{words} is not installed"
        found.append(Finding(name, "ok" if there else "absent", detail))
    return found
