"""Selection: the samples that are packed, how often, and those that are left out."""
