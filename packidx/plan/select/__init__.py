"""Which samples are packed, how often, and what is left out."""
