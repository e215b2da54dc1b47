"""A model made ready for packs, and proof that they stay apart in it."""
