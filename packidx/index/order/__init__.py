"""Which packs a step trains on."""

from packidx.index.order.epochs import EpochOrder, Epochs
from packidx.permutation import permute

__all__ = ["EpochOrder", "Epochs", "permute"]
