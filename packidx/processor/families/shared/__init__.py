"""What families have in common: sizes, tiles, frames, words."""
