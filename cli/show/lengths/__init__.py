"""Lengths tables in words."""
