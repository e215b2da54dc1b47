"""Import this before transformers: a CUDA build of torchvision beside a CPU build of torch."""

from __future__ import annotations

import warnings

from packidx.encode.imports import allow_cuda_torchvision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torchvision about its own missing image library
    allow_cuda_torchvision()
