"""A plan's options in groups, in the order in which one comes to think of them; each is in one."""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "what to pack": (
        *("capacity", "on_long", "mix", "mix_by", "holdout", "side", "exclude", "max_packs"),
        "shift",
    ),
    "what may share a pack": (
        *("strategy", "group_by", "max_samples", "max_images", "max_vision_patches", "seed"),
    ),
    "room in a pack": (*("margin", "align", "pad_pack_to", "reserve"),),
    "order": ("schedule", "global_batch", "micro_steps", "cost", "epochs"),
    "scale": ("window_shards", "window_samples", "memory_limit"),
}
"""Name of a group -> fields of `PlanOptions`."""
