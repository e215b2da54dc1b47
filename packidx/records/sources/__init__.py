"""Shards of arguments."""
