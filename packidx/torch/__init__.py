"""Read packs in a training job: `PackedDataset`, `PackSampler` and `collate`.

Resume in one paragraph: the order of an epoch is a pure function of (snapshot, seed, epoch), so
the whole state of the data is one number, the global cursor in packs. Save
`sampler.state_at(step)` with the checkpoint of optimizer step `step`, load it into a sampler of any
world size, carry on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packidx.errors import missing_package

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as _error:
    raise missing_package("packidx.torch", _error, '"packidx[torch]"') from None

from packidx.torch.collate import collate as collate
from packidx.torch.dataset import PackedDataset as PackedDataset
from packidx.torch.packs import Pack as Pack
from packidx.torch.pixels import normalise_pixels as normalise_pixels
from packidx.torch.sampler import OrderedPacks as OrderedPacks
from packidx.torch.sampler import PackSampler as PackSampler
from packidx.torch.sampler import as_hf_dataset as as_hf_dataset
from packidx.torch.sampler import check_ranks as check_ranks

if TYPE_CHECKING:
    from packidx.torch.isolation import IsolationError as IsolationError
    from packidx.torch.isolation import check_isolation as check_isolation
    from packidx.torch.loss import LossWeights as LossWeights
    from packidx.torch.loss import packed_loss as packed_loss
    from packidx.torch.prepare import prepare_model as prepare_model
    from packidx.torch.step_log import StepLog as StepLog
    from packidx.torch.stream import StreamingPackedDataset as StreamingPackedDataset
    from packidx.torch.stream import StreamLoader as StreamLoader
    from packidx.torch.stream import merge_states as merge_states

# What the process that trains needs, and a worker that reads packs need not wait for.
_LATER = {
    "IsolationError": "isolation",
    "LossWeights": "loss",
    "StepLog": "step_log",
    "StreamLoader": "stream",
    "StreamingPackedDataset": "stream",
    "check_isolation": "isolation",
    "merge_states": "stream",
    "packed_loss": "loss",
    "prepare_model": "prepare",
}
_NOW = ("OrderedPacks", "Pack", "PackSampler", "PackedDataset", "as_hf_dataset", "check_ranks")
__all__ = [*_NOW, "collate", "normalise_pixels", *_LATER]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
