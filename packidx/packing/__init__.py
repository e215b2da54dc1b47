"""Sizes and limits in, packs out: knows no table and no file."""
