"""Looking into an index."""
