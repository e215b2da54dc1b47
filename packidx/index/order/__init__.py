"""Which packs a step trains on."""

from packidx.index.order.epoch_order import EpochOrder
from packidx.index.order.epochs import Epochs
from packidx.permutation import permute

__all__ = ["EpochOrder", "Epochs", "permute"]
