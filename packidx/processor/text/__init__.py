"""Tokens of a rendered text: media expanded, text tokenized."""
