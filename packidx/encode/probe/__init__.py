"""Asking the real processor of transformers what it makes of samples."""
