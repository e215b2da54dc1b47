"""Ways to pack, one a file."""
