"""torch and transformers, imported when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from packidx.errors import MissingExtraError, SourceError
from packidx.processor.folder import MEMBERS
from packidx.recent import Recent
from packidx.software import installed_version

INSTALL = 'pip install "packidx[torch]"'
NEEDS_TORCHVISION = "transformers loads it with torchvision alone: pip install torchvision"

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LOADED: Recent[tuple[Any, ...], Any] = Recent(2)
_declared: list[Any] = []  # a torch.library.Library that is collected takes its operators along


def transformers_class(name: str) -> Any:
    """A class of transformers.

    Raises:
        MissingExtraError: transformers or what the class needs is missing or cannot be used.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # such as that torch is missing
    try:
        if name != "AutoTokenizer":  # which needs no torchvision, whose import takes a second
            allow_cuda_torchvision()
        return getattr(import_module("transformers"), name)
    except (ImportError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise MissingExtraError(
            f"transformers' {name} cannot be imported ({cause}): run {INSTALL}"
        ) from error


def import_torch() -> Any:
    """torch.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"building tensors needs torch, which cannot be imported ({error}): run {INSTALL}"
        ) from error
    return torch


def has_torch() -> bool:
    """Return True if torch is installed."""
    return find_spec("torch") is not None


def allow_cuda_torchvision() -> None:
    """Declare the missing operators if torchvision is there and cannot be imported without them.

    Call it before transformers is imported.
    """
    if _declared or find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except ImportError:  # torch is not there: transformers does without both
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library: Any = import_module("torch").library.Library("torchvision", "FRAGMENT")
        for operator in _OPERATORS:
            library.define(operator)
        _declared.append(library)
        import_module("torchvision")


Keywords = Mapping[str, Mapping[str, Any]]
"""Settings of a processor's parts (``images``, ``videos``, ``audio``, ``processor``) by part."""


def load_real(
    folder: str | None, name: str, trusts_code: bool, settings: Keywords | None = None
) -> Any:
    """Return what a class of transformers loads from a folder; nothing is fetched.

    The last two loaded are kept, and serve all callers: they must not be changed.

    Args:
        name: ``"AutoProcessor"``, ``"AutoTokenizer"`` …
        trusts_code: True to run code of the folder.
        settings: in place of the folder's own.

    Raises:
        MissingExtraError: as `transformers_class`, or torchvision is missing for it.
        SourceError: transformers cannot load it.
    """
    loader = transformers_class(name)
    files = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder))
    key = folder, name, trusts_code, repr(settings or None), *files
    made = _LOADED.get(key)
    if made is None:
        options = {"local_files_only": True, "trust_remote_code": trusts_code}
        try:
            made = loader.from_pretrained(folder, **options)
            for part, own in (settings or {}).items():
                made = _with_settings(made, MEMBERS.get(part), own)
        except MemoryError:
            raise
        except Exception as error:  # foreign code: it raises whatever the folder makes it raise
            if isinstance(error, ImportError) and "torchvision" in str(error).lower():
                raise MissingExtraError(NEEDS_TORCHVISION) from error
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            if isinstance(error, ImportError) or not has_torch():
                text = f"the {name[4:]} of {folder} needs a package ({reason}): run {INSTALL}"
                raise MissingExtraError(text) from error
            raise SourceError(
                f"transformers {installed_version('transformers')} cannot load the {name[4:]} of "
                f"{folder} ({reason}): use the release that saved it, or a newer one"
            ) from error
        _LOADED.put(key, made, 1)
    return made


def _with_settings(made: Any, member: str | None, settings: Mapping[str, Any]) -> Any:
    """Return a processor, or one of its parts, with settings in place of its own."""
    if member is None:
        for name, value in settings.items():
            setattr(made, name, value)
    elif hasattr(made, member):
        setattr(made, member, _with_settings(getattr(made, member), "", settings))
    else:  # it is the part itself
        made = type(made).from_dict({**made.to_dict(), **settings})
    return made
