"""Which packs make a step, and what they cost."""
