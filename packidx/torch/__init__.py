"""Read packs in a training job: `PackedDataset`, `PackSampler` and `collate`.

Resume in one paragraph: the order of an epoch is a pure function of (snapshot, seed, epoch), so
the whole state of the data is one number, the global cursor in packs. Save
`sampler.state_at(step)` with the checkpoint of optimizer step `step`, load it into a sampler of any
world size, carry on.
"""

from __future__ import annotations

from packidx.torch.collate import collate
from packidx.torch.dataset import PackedDataset
from packidx.torch.sampler import PackSampler

__all__ = ["PackSampler", "PackedDataset", "collate"]
