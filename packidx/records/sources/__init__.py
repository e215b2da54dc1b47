"""From arguments to shards."""

MIX = "mix:"
"""Begins a source that is a mix by the user's word, whatever the file's name is."""
