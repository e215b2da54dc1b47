"""Packs from a linear program, by column generation."""
