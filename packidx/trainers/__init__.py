"""Adapters for trainers to train on packs: a module per trainer, which imports it."""
