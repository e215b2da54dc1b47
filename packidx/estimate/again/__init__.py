"""Counting again only what changed: rows of an earlier table that stand in the next one as well."""
