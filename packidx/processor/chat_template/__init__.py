"""A conversation rendered by a chat template, and one rendering for all records alike."""
