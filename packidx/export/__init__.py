"""Exports: a snapshot's packs for trainers that read WebDataset or Megatron-Energon.

Each module is one export; import what you need from it:

- `packidx.export.energon`: packs as text beside the original shards, no media copied.
- `packidx.export.wds`: packs as samples of new tars.
"""
