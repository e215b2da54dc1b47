"""From a rendered text to tokens: media expanded, text tokenized."""
