"""Read packs in a training job: `PackedDataset`, `PackSampler` and `collate`.

Resume in one paragraph: the order of an epoch is a pure function of (snapshot, seed, epoch), so
the whole state of the data is one number, the global cursor in packs. Save
`sampler.state_at(step)` with the checkpoint of optimizer step `step`, load it into a sampler of any
world size, carry on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packidx.errors import MissingExtraError

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        'packidx.torch needs PyTorch: run pip install "packidx[torch]"'
    ) from None

from packidx.torch.collate import collate
from packidx.torch.dataset import PackedDataset
from packidx.torch.ordered import OrderedPacks, as_hf_dataset
from packidx.torch.packs import Pack
from packidx.torch.pixels import normalise_pixels
from packidx.torch.sampler import PackSampler

if TYPE_CHECKING:
    from packidx.torch.context import shard_for_cp
    from packidx.torch.isolation import IsolationError, check_isolation
    from packidx.torch.loss import LossWeights, packed_loss
    from packidx.torch.prepare import prepare_model
    from packidx.torch.ranks import check_ranks
    from packidx.torch.step_log import StepLog
    from packidx.torch.stream import StreamingPackedDataset, StreamLoader, merge_states

# What the process that trains needs, and a worker that reads packs need not wait for.
_LATER = {
    "IsolationError": "isolation",
    "LossWeights": "loss",
    "StepLog": "step_log",
    "StreamLoader": "stream",
    "StreamingPackedDataset": "stream",
    "check_isolation": "isolation",
    "check_ranks": "ranks",
    "merge_states": "stream",
    "packed_loss": "loss",
    "prepare_model": "prepare",
    "shard_for_cp": "context",
}

__all__ = [
    "IsolationError",
    "LossWeights",
    "OrderedPacks",
    "Pack",
    "PackSampler",
    "PackedDataset",
    "StepLog",
    "StreamLoader",
    "StreamingPackedDataset",
    "as_hf_dataset",
    "check_isolation",
    "check_ranks",
    "collate",
    "merge_states",
    "normalise_pixels",
    "packed_loss",
    "prepare_model",
    "shard_for_cp",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
