"""Checks of a snapshot against itself and against its data."""
