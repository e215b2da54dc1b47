"""Which packs a step trains on."""

from packidx.index.order.epoch_order import EpochOrder, Epochs, permute

__all__ = ["EpochOrder", "Epochs", "permute"]
