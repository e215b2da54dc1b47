"""Lets transformers work beside a torchvision that was built for another torch.

The torchvision wheels on PyPI are CUDA builds. Beside a CPU build of torch their library cannot be
loaded, and importing them, and with them transformers' processors, fails for want of two operators
that no image processor calls. Declaring those is enough.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch.library.Library that is collected takes its operators along


def allow_cuda_torchvision() -> bool:
    """Declare the missing operators if torchvision is there and cannot be imported without them.

    Call it before transformers is imported.

    Returns:
        whether they had to be declared, now or earlier.
    """
    if _declared or find_spec("torchvision") is None:
        return bool(_declared)
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
    return bool(_declared)
