"""Samples of packs as one batch of tensors."""
