"""Makes a CUDA build of torchvision importable beside a CPU build of torch.

Its compiled operators cannot be loaded then, and the import fails on two whose shapes it registers;
declaring them is enough, since nothing here calls them. Import this before transformers.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import torch

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a Library that is collected takes its operators along


def register() -> None:
    """Declare the operators, once, if torchvision is installed and cannot provide them."""
    if _declared or importlib.util.find_spec("torchvision") is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in _OPERATORS:
                library.define(operator)
            _declared.append(library)
            importlib.import_module("torchvision")


register()
