"""Packs under several limits at once."""
