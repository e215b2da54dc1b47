"""The lengths table on disk."""
