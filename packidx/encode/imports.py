"""torch and transformers, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from packidx.errors import MissingExtraError, SourceError
from packidx.processor.counts import NEEDS_TORCHVISION
from packidx.processor.folder import folder_content
from packidx.recent import Recent
from packidx.software import installed

INSTALL = 'pip install "packidx[transformers,torch]"'

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LOADED: Recent[tuple[Any, ...], Any] = Recent(1)
_declared: list[Any] = []  # a torch.library.Library that is collected takes its operators along


def transformers_class(name: str) -> Any:
    """A class of transformers.

    Raises:
        MissingExtraError: transformers or what the class needs is missing or cannot be used.
    """
    try:
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


def allow_cuda_torchvision() -> None:
    """Declare the missing operators if torchvision is there and cannot be imported without them.

    Call it before transformers is imported.
    """
    if _declared or find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library: Any = import_module("torch").library.Library("torchvision", "FRAGMENT")
        for operator in _OPERATORS:
            library.define(operator)
        _declared.append(library)
        import_module("torchvision")


def builders() -> list[str]:
    """Return all packages that have a say in what a real processor builds, with their releases."""
    names = ("packidx", "transformers", "torch", "torchvision", "tokenizers", "pillow")
    return [f"{name} {installed(name)}" for name in names]


def load_real(folder: str, name: str, trusts_code: bool) -> Any:
    """Return what a class of transformers loads from a folder, the same for all who ask in turn;
    nothing is fetched.

    Args:
        name: ``"AutoProcessor"``, ``"AutoTokenizer"`` …
        trusts_code: whether code of the folder is run.

    Raises:
        MissingExtraError: as `transformers_class`, or torchvision is missing for it.
        SourceError: the folder makes transformers stumble.
    """
    loader = transformers_class(name)
    key = folder, name, trusts_code, *folder_content(folder)
    made = _LOADED.get(key)
    if made is None:
        options = {"local_files_only": True, "trust_remote_code": trusts_code}
        try:
            made = loader.from_pretrained(folder, **options)
        except MemoryError:
            raise
        except Exception as error:  # foreign code stumbles over whatever is in the folder
            if isinstance(error, ImportError) and "torchvision" in str(error).lower():
                raise MissingExtraError(NEEDS_TORCHVISION) from error
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise SourceError(
                f"transformers {installed('transformers')} cannot load the {name[4:]} of {folder} "
                f"({reason}): use the release that saved it, or a newer one"
            ) from error
        _LOADED.put(key, made, 1)
    return made
